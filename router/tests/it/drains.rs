//! Cells that are drained: what is under way there and has no end of its own is cut when the Router's `drainTimeout` is
//! over.

use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{post, read_head};
use crate::fake::Behaviour;
use crate::http2::{self, Http2, call};
use crate::world::{ROUTER, Setup, World, eventually, rules, shift};

/// Everything goes to `a`, and to `b` where `a` is drained.
async fn world(restart: &str) -> World {
    let groups = "[{cells: [{name: a}]}, {cells: [{name: b}]}]";
    let policy = rules(&format!("  - {{name: all, restart: {{{restart}}}, groups: {groups}}}\n"));
    Setup { policy, ..Setup::default() }.start().await
}

const NEVER: &str = "policy: Never";

fn drain_timeout(world: &World, timeout: &str) {
    world.write("router.yaml", &ROUTER.replace("LIMITS", "{}").replace("5m", timeout));
}

/// How many the router says that it cut in that cell.
async fn cuts(world: &World, cell: &str) -> u64 {
    let series = format!("bulkhead_router_drain_cuts_total{{cell=\"{cell}\"}} ");
    let text = world.metrics().await;
    let count = text.lines().find_map(|line| line.strip_prefix(&series)).map(str::parse);
    count.map_or(0, |count| count.expect("is a number"))
}

/// An answer in HTTP/1.1, of which the head is read.
async fn answer(world: &World, fields: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    let request = format!("GET / HTTP/1.1\r\nhost: test\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.expect("writes");
    (read_head(&mut stream).await, stream)
}

/// One of each kind without an end, under way in one cell.
struct Endless {
    upgraded: TcpStream,
    /// Says nothing.
    quiet: TcpStream,
    /// Says more than its client takes.
    unread: TcpStream,
    unread_stream: RecvStream,
    call: (RecvStream, SendStream<Bytes>),
    /// Has no head of an answer.
    waiting: ResponseFuture,
    _client: Http2,
}

const KINDS: u64 = 6;

impl Endless {
    /// Begins them in that cell, which gets what comes now.
    async fn begin(world: &World, cell: usize) -> Self {
        let (cell, client) = (&world.cells[cell], Http2::connect(world.address).await);
        let name = format!("x-cell: {}\r\n", cell.name());
        let open = async |behaviour, fields| {
            cell.behave(behaviour);
            let (head, stream) = answer(world, fields).await;
            assert!(head.contains(&name), "{head}");
            stream
        };
        let upgraded = open(Behaviour::Upgrade, "connection: upgrade\r\nupgrade: echo\r\n").await;
        let quiet = open(Behaviour::Quiet, "").await;
        let unread = open(Behaviour::Endless, "").await;
        let (unread_stream, _) = client.open(http2::get("/"), true).await.expect("opens");
        let unread_stream = unread_stream.await.expect("is answered").into_body();
        cell.behave(Behaviour::Echo);
        let (response, sending) = client.open(call(&[]), false).await.expect("opens");
        let call_of_both = (response.await.expect("is answered").into_body(), sending);
        cell.behave(Behaviour::Hang);
        let before = cell.hits();
        let (waiting, _) = client.open(call(&[]), true).await.expect("opens");
        eventually("the call is in the cell", async || cell.hits() > before).await;
        let mut all =
            Self { upgraded, quiet, unread, unread_stream, call: call_of_both, waiting, _client: client };
        all.check().await;
        all
    }

    /// That they go on.
    async fn check(&mut self) {
        self.upgraded.write_all(b"ping").await.expect("writes");
        let mut echo = [0; 4];
        self.upgraded.read_exact(&mut echo).await.expect("reads");
        assert_eq!(&echo, b"ping");
        let (receiving, sending) = &mut self.call;
        sending.send_data(Bytes::from_static(b"ping"), false).expect("is sent");
        let echo = receiving.data().await.expect("comes").expect("comes");
        receiving.flow_control().release_capacity(echo.len()).expect("was taken");
        assert_eq!(echo, "ping");
    }

    /// That each has ended as what breaks off does.
    async fn check_cut(mut self) {
        assert!(matches!(self.upgraded.read(&mut [0]).await, Ok(0) | Err(_)));
        for mut stream in [self.quiet, self.unread] {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.expect("is closed");
            assert!(!rest.ends_with(b"0\r\n\r\n"), "it must not pass for whole");
        }
        for stream in [self.unread_stream, self.call.0] {
            let error = http2::read(stream).await.expect_err("is reset");
            assert_eq!(http2::reason(&error), (true, Some(Reason::INTERNAL_ERROR)));
        }
        let refused = self.waiting.await.expect("is told");
        let message = refused.headers()["grpc-message"].to_str().expect("is text");
        assert!(message.starts_with("CellDisabled: "), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_is_cut_when_the_time_of_its_cells_drain_is_over() {
    let drains: [fn(&World); 3] = [
        |world| world.set_weight(0, 0),
        |world| world.write("shift.yaml", &shift("cell: a, weight: 0", Duration::from_secs(3_600))),
        |world| world.remove("cell-a.yaml"),
    ];
    for drain in drains {
        let world = world(NEVER).await;
        let mut endless = Endless::begin(&world, 0).await;
        drain(&world);
        world.until_share("b", 1_000_000).await;
        endless.check().await;
        assert_eq!(cuts(&world, "a").await, 0, "its time is not over");
        drain_timeout(&world, "300ms");
        eventually("all are cut", async || cuts(&world, "a").await == KINDS).await;
        endless.check_cut().await;
        // New ones go elsewhere, and go on there.
        Endless::begin(&world, 1).await.check().await;
        assert_eq!((cuts(&world, "a").await, cuts(&world, "b").await), (KINDS, 0));
        let gone = world.serving().await.cells.get("a").is_none_or(|cell| cell.in_flight == 0);
        assert!(gone, "nothing counts there any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_goes_on_where_its_cell_gets_weight_again_in_time() {
    let world = world(NEVER).await;
    let mut endless = Endless::begin(&world, 0).await;
    world.write("shift.yaml", &shift("cell: a, state: Drained", Duration::from_secs(3_600)));
    world.until_share("b", 1_000_000).await;
    let other = Endless::begin(&world, 1).await;
    world.remove("shift.yaml");
    world.until_share("a", 1_000_000).await;
    world.set_weight(1, 0);
    world.serves("Cell/b", 2).await;
    drain_timeout(&world, "1ms");
    eventually("the other cell's are cut", async || cuts(&world, "b").await == KINDS).await;
    other.check_cut().await;
    endless.check().await;
    assert_eq!((cuts(&world, "a").await, world.serving().await.cells["a"].in_flight), (0, KINDS as u32));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_in_a_cell_whose_drain_is_over_starts_over_where_its_rule_lets_it() {
    // Without an answer, or with one that is held until it is whole.
    for behaviour in [Behaviour::Hang, Behaviour::Quiet] {
        let world = world("policy: UntilPointOfNoReturn, deadline: 5m, perAttempt: 5m").await;
        world.cells[0].behave(behaviour);
        let mut client = world.client().await;
        let waiting = tokio::spawn(async move { client.send(post("/", "x")).await });
        eventually("it is in a", async || world.hits()[0] == 1).await;
        world.set_weight(0, 0);
        world.until_share("b", 1_000_000).await;
        assert!(!waiting.is_finished() && world.hits() == [1, 0], "its time is not over");
        drain_timeout(&world, "100ms");
        let answer = waiting.await.expect("ends");
        assert_eq!((answer.status.as_u16(), answer.cell(), &answer.body[..]), (200, "b", &b"x"[..]));
        assert_eq!(cuts(&world, "a").await, 1);
    }
}
