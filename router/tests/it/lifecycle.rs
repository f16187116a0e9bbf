//! Starting, limits, keep-alive and the drain.

use std::time::Duration;

use bulkhead_process::Shutdown;
use bulkhead_protocol::{Problem, Serving};
use bulkhead_router::{Config, Source, start};
use futures::FutureExt as _;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, get, post};
use crate::fake::{Behaviour, FakeCell};
use crate::world::{PATIENCE, ROUTER, Setup, World, eventually, policy, rules};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_what_is_in_flight_and_then_ends() {
    let world = World::start().await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Slow(Duration::from_millis(700))));
    let address = world.address;
    let slow = tokio::spawn(async move { Client::connect(address).await.send(post("/", "x")).await });
    let mut idle = Client::connect(address).await;
    eventually("the request is in a cell", async || world.hits().iter().sum::<u64>() == 1).await;
    world.shutdown.trigger();
    eventually("it is no longer ready", async || !world.is_ready().await).await;
    let answer = slow.await.expect("ends");
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, "close"));
    world.router.ended().await.expect("ends well");
    assert!(idle.try_send(get("/")).await.is_err());
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_a_head_that_does_not_come() {
    let limits = "{headerTimeout: 300ms}";
    let world = Setup { threads: 1, limits, ..Setup::default() }.start().await;
    world.write("router.yaml", &ROUTER.replace("LIMITS", limits).replace("5s", "60s"));
    world.serves("Router/main", 2).await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(b"GET / HTTP/1.1\r\n").await.expect("writes");
    // On the same thread, which has read what came before.
    assert_eq!(world.client().await.send(get("/")).await.status, 200);
    world.shutdown.trigger();
    let ended = tokio::time::timeout(PATIENCE, world.router.ended()).await;
    ended.expect("does not take the drain's whole time").expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stops_goes_on_accepting_for_a_while() {
    let world = Setup { drain_delay: Duration::from_secs(2), ..Setup::default() }.start().await;
    world.shutdown.trigger();
    eventually("it is no longer ready", async || !world.is_ready().await).await;
    let answer = world.client().await.send(get("/")).await;
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, "close"));
    world.router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_starts_listens_only_once_a_cell_has_spoken() {
    let mut world = World::start().await;
    let places: Vec<_> = world.cells.iter().map(|cell| cell.address).collect();
    for cell in &mut world.cells {
        cell.kill().await;
    }
    let config = Config::local("main", "http", Source::Folder(world.folder.path().to_owned()));
    let shutdown = Shutdown::new();
    let router = start(config, shutdown.clone()).await.expect("starts");
    let admin = router.admin_address();
    eventually("it has a table, and cells that cannot be reached", async || {
        let serving = Client::connect(admin).await.send(get("/v1/serving")).await;
        let serving: Serving = serde_json::from_slice(&serving.body).expect("is a state");
        serving.cells.len() == 2 && serving.cells.values().all(|cell| cell.reason == "ConnectFailed")
    })
    .await;
    assert!(router.address("http").now_or_never().is_none(), "whoever connects now gets a 503");
    let _cells = (FakeCell::start_at("a", places[0]).await, FakeCell::start_at("b", places[1]).await);
    let address = router.address("http").await.expect("opens");
    assert_eq!(Client::connect(address).await.send(get("/")).await.status, 200);
    shutdown.trigger();
    router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_kept_connections_do_not_notice_an_edit() {
    let world = World::start().await;
    let mut clients = Vec::new();
    for _ in 0..1_000 {
        clients.push(world.client().await);
    }
    all_are_answered(&mut clients).await;
    for (edit, weight) in [(2, 1), (3, 0), (4, 100)] {
        world.set_weight(0, weight);
        world.serves("Cell/a", edit).await;
        all_are_answered(&mut clients).await;
    }
}

/// A few at a time: the cells of a test share its threads, and their beats must not wait behind a thousand requests.
async fn all_are_answered(clients: &mut [Client]) {
    for some in clients.chunks_mut(50) {
        join_all(some.iter_mut().map(async |client| {
            let answer = client.send(get("/")).await;
            assert_eq!(answer.status, 200, "{:?}", answer.header("content-type"));
        }))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn past_its_limits_it_sheds_at_once_with_a_reason() {
    let world = Setup {
        cells: vec!["a"],
        policy: policy("[{cells: [{name: a}]}]"),
        limits: "{inFlight: 1, connections: 3}",
        ..Setup::default()
    }
    .start()
    .await;
    world.cells[0].behave(Behaviour::Hang);
    let mut first = world.client().await;
    let hanging = tokio::spawn(async move { first.send(get("/")).await });
    eventually("the request is in the cell", async || world.hits()[0] == 1).await;
    let mut second = world.client().await;
    assert_eq!(second.send(get("/")).await.problem(), (503, "RouterOverloaded".to_owned()));
    // Connections are taken and held until there are too many.
    let mut held = Vec::new();
    eventually("a connection too many is refused", async || {
        let Ok(mut stream) = TcpStream::connect(world.address).await else { return false };
        let mut text = String::new();
        let read = tokio::time::timeout(Duration::from_millis(500), stream.read_to_string(&mut text)).await;
        held.push(stream);
        read.is_ok() && text.starts_with("HTTP/1.1 503") && text.contains("RouterOverloaded")
    })
    .await;
    assert!(held.len() <= 4, "{} were let in", held.len());
    hanging.abort();
}

async fn raw(world: &World, text: &str) -> String {
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(text.as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    read.expect("the connection is closed in time").expect("reads");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the head comes"));
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// That the text is one whole answer with a problem document of that reason.
fn check_refused(answer: &str, status: u16, reason: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for field in ["content-type: application/problem+json", "connection: close"] {
        assert!(head.lines().any(|line| line == field), "{field} is missing: {answer}");
    }
    assert!(head.lines().any(|line| line == format!("content-length: {}", body.len())), "{answer}");
    let problem: Problem = serde_json::from_str(body).expect("is a problem document");
    assert_eq!((problem.status, &*problem.reason), (status, reason));
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_odd_clients_are_served_or_told() {
    let world = World::start().await;
    let answer = raw(&world, "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    for hosts in ["", "host: a\r\nhost: b\r\n"] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        check_refused(&raw(&world, &request).await, 400, "Malformed");
    }
    for (absolute, origin) in [("/abs", "/abs"), ("?q=1", "/?q=1"), ("", "/")] {
        world.cells.iter().for_each(|cell| drop(cell.seen()));
        let request =
            format!("GET http://shop:81{absolute} HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n");
        assert!(raw(&world, &request).await.starts_with("HTTP/1.1 200"));
        let seen = world.cells.iter().flat_map(|cell| cell.seen()).next().expect("was hit");
        assert_eq!((&*seen.target, &seen.headers["host"]), (origin, &"shop:81".parse().expect("legal")));
    }
    let answer = raw(
        &world,
        "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 100") && answer.contains("HTTP/1.1 200"), "{answer}");
    for text in ["GET / HTTP/1.1\r\nbad header\r\n\r\n", "GET / HTTP/9\r\n\r\n", "no HTTP\r\n\r\n"] {
        check_refused(&raw(&world, text).await, 400, "Malformed");
    }
    // On a connection that was of use before.
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("writes");
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    stream.write_all(b"no HTTP\r\n\r\n").await.expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    check_refused(&answer, 400, "Malformed");
    // A refusal of a request that could be read is its own and says which request.
    let answer = raw(&world, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(answer.contains("bulkhead-transaction: "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_head_says_the_length_and_has_no_body() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    world.cells[0].behave(Behaviour::Lengthy);
    let answer = raw(&world, "HEAD / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("content-length: 1000\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_larger_than_the_limit_is_refused() {
    let world = Setup { limits: "{headerBytes: 2048}", ..Setup::default() }.start().await;
    let large = "x".repeat(4096);
    let answer = raw(&world, &format!("GET / HTTP/1.1\r\nhost: test\r\nx-large: {large}\r\n\r\n")).await;
    check_refused(&answer, 431, "HeadTooLarge");
    assert_eq!(world.hits(), [0, 0]);
}

/// A router with one cell that leaves HTTP, and a connection that has done so.
async fn left_http() -> (World, TcpStream) {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    world.cells[0].behave(Behaviour::Upgrade);
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    let request = "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("writes");
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("upgrade: echo\r\n"), "{head}");
    check_echo(&mut stream, "ping").await;
    (world, stream)
}

async fn check_echo(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.expect("writes");
    let mut echo = vec![0; text.len()];
    stream.read_exact(&mut echo).await.expect("reads");
    assert_eq!(String::from_utf8_lossy(&echo), text);
}

async fn connections(world: &World) -> Option<String> {
    let text = world.metrics().await;
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix("bulkhead_router_connections{listener=\"http\"} "))
        .map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_leave_http_when_the_cell_agrees_and_counts_until_it_ends() {
    let (world, mut stream) = left_http().await;
    assert_eq!(world.serving().await.cells["a"].in_flight, 1);
    assert_eq!(connections(&world).await.as_deref(), Some("1"));
    // Its bytes are its own, even where they look like ours.
    check_echo(&mut stream, "HTTP/1.1 400 Bad Request\r\n\r\n").await;
    drop(stream);
    eventually("it is over", async || {
        world.serving().await.cells["a"].in_flight == 0 && connections(&world).await.as_deref() == Some("0")
    })
    .await;
}

/// Of the kernel's IPv4 connections, those with that port at this side and that one at the other, where given: in how
/// many seconds the kernel probes each that it probes.
fn probed_in(local: Option<u16>, remote: Option<u16>) -> Vec<Option<u64>> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the kernel tells");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let is = |wanted: Option<u16>, address| wanted.is_none() || port(address) == wanted;
    let ours = rows.filter(|row| row[3] == "01" && is(local, row[1]) && is(remote, row[2]));
    // Timer 2 is that of keepalive, in hundredths of a second.
    let due = |timer: &str| u64::from_str_radix(timer.strip_prefix("02:")?, 16).ok();
    ours.map(|row| due(row[5]).map(|hundredths| hundredths / 100)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_probes_quiet_connections_on_both_sides_of_the_router() {
    let (world, _stream) = left_http().await;
    let client = || probed_in(Some(world.address.port()), None);
    let cell = || probed_in(None, Some(world.cells[0].address.port()));
    eventually("each is probed soon", async || {
        let all: Vec<_> = client().into_iter().chain(cell()).collect();
        all.len() >= 2 && all.iter().all(|due| due.is_some_and(|seconds| seconds <= 10))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_leave_http_is_not_asked_for_and_a_cell_that_leaves_it_unasked_makes_no_sense() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    let h2c = "connection: close, upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    let unnamed = "connection: close\r\nupgrade: echo\r\n";
    for fields in [h2c, unnamed] {
        world.cells[0].behave(Behaviour::Echo);
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\n{fields}\r\n");
        assert!(raw(&world, &request).await.starts_with("HTTP/1.1 200"));
        let seen = world.cells[0].seen().pop().expect("was hit");
        for name in ["connection", "upgrade", "http2-settings"] {
            assert!(!seen.headers.contains_key(name), "{name} after {fields}");
        }
        world.cells[0].behave(Behaviour::Upgrade);
        check_refused(&raw(&world, &request).await, 502, "UpstreamProtocol");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_a_connection_that_left_http_end_by_itself() {
    let (world, mut stream) = left_http().await;
    world.shutdown.trigger();
    eventually("nobody listens", async || TcpStream::connect(world.address).await.is_err()).await;
    let cut = tokio::time::timeout(Duration::from_millis(500), stream.read_u8()).await;
    assert!(cut.is_err(), "nothing comes, not even an end: {cut:?}");
    check_echo(&mut stream, "still there").await;
    drop(stream);
    world.router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_cuts_a_connection_that_left_http_when_its_time_is_over() {
    let (world, mut stream) = left_http().await;
    world.write("router.yaml", &ROUTER.replace("LIMITS", "{}").replace("5s", "300ms"));
    world.serves("Router/main", 2).await;
    world.shutdown.trigger();
    world.router.ended().await.expect("ends well");
    let read = tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("comes to an end");
    assert!(read.is_err(), "the connection is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_and_a_connection_that_idles_are_ended() {
    let world = Setup {
        limits: "{headerTimeout: 300ms, idleTimeout: 600ms, bodyTimeout: 300ms}",
        ..Setup::default()
    }
    .start()
    .await;
    assert_eq!(raw(&world, "GET / HTTP/1.1\r\nhost: te").await, "");
    let answer = raw(&world, "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = raw(&world, "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\nab").await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("RequestTimeout"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_takes_longer_than_the_rules_deadline_was_never_sent() {
    let all = "  - {name: all, restart: {deadline: 300ms}, groups: [{cells: [{name: a}]}]}\n";
    let by_body = all.replace("all,", "card, matches: [{all: [{jsonPointer: /card, exact: x}]}],");
    let world = Setup { cells: vec!["a"], policy: rules(all), ..Setup::default() }.start().await;
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 12\r\n\r\n";
    let late = raw(&world, &format!("{head}{{\"card\"")).await;
    assert!(late.starts_with("HTTP/1.1 408") && late.contains("RequestTimeout"), "{late}");
    // Where it takes the body to find the rule, its deadline is known afterwards.
    world.write("policy.yaml", &rules(&by_body));
    world.serves("RoutingPolicy/default/shop", 2).await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(format!("{head}{{\"card\"").as_bytes()).await.expect("writes");
    let early = tokio::time::timeout(Duration::from_millis(400), stream.read_u8()).await;
    assert!(early.is_err(), "the body is waited for: {early:?}");
    stream.write_all(b":\"x\"}").await.expect("writes");
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 408"));
    assert_eq!(world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_can_be_counted() {
    let world = World::start().await;
    world.spread(10).await;
    world.cells.iter().for_each(|cell| cell.say(false, "ServiceNotReady"));
    world.until_in("a", false).await;
    world.until_in("b", false).await;
    world.client().await.send(get("/")).await;
    eventually("the counts are handed in", async || {
        let text = world.metrics().await;
        let answered: u64 = ["a", "b"]
            .iter()
            .filter_map(|cell| {
                let line = format!("bulkhead_router_requests_total{{cell=\"{cell}\",outcome=\"2xx\"}} ");
                text.lines()
                    .find_map(|found| found.strip_prefix(&line))
                    .and_then(|count| count.parse::<u64>().ok())
            })
            .sum();
        answered == 10
            && text.contains("bulkhead_router_requests_total{cell=\"\",outcome=\"NoHealthyCell\"} 1\n")
            && text.contains("bulkhead_router_cell_transitions_total{cell=\"a\",to=\"out\"} 1\n")
            && text.contains("bulkhead_router_cell_in{cell=\"a\"} 0\n")
    })
    .await;
}
