//! Starting, limits, keep-alive and the drain.

use std::process::Command;
use std::time::Duration;

use bulkhead_process::Shutdown;
use bulkhead_protocol::Serving;
use bulkhead_router::{Config, Source, start};
use futures::FutureExt as _;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::client::{Client, check_refused, get, post, raw, read_head};
use crate::fake::Behaviour;
use crate::world::{PATIENCE, Setup, World, address_of, eventually, policy, rules};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_what_is_in_flight_and_then_ends() {
    let world = World::start().await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Hang));
    let address = world.address;
    let slow = tokio::spawn(async move { Client::connect(address).await.send(post("/", "x")).await });
    let mut idle = Client::connect(address).await;
    eventually("the request is in a cell", async || world.hits().iter().sum::<u64>() == 1).await;
    world.shutdown.trigger();
    eventually("it is no longer ready", async || !world.is_ready().await).await;
    eventually("nobody listens", async || TcpStream::connect(address).await.is_err()).await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Echo));
    let answer = slow.await.expect("ends");
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, "close"));
    world.router.ended().await.expect("ends well");
    assert!(idle.try_send(get("/")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_ends_with_the_runtime_that_it_was_started_on() {
    let (folder, cells) = Setup { limits: "{idleTimeout: 1h}", ..Setup::default() }.lay_out().await;
    let runtime = Runtime::new().expect("a runtime can be made");
    let config = Config::local("main", "http", Source::Folder(folder.path().to_owned()));
    let router = runtime.spawn(start(config, Shutdown::new())).await.expect("runs").expect("starts");
    let address = address_of(&router, "http").await;
    let mut idle = TcpStream::connect(address).await.expect("connects");
    runtime.shutdown_background();
    eventually("no stream is open", async || cells.iter().all(|cell| cell.open_streams() == 0)).await;
    let read = tokio::time::timeout(PATIENCE, idle.read_u8()).await.expect("comes to an end");
    assert!(read.is_err(), "the connection is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_a_head_that_does_not_come() {
    let world = Setup { threads: 1, limits: "{headerTimeout: 300ms}", ..Setup::default() }.start().await;
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
    // Longer than the test, so that what is seen is within it.
    let world = Setup { drain_delay: Duration::from_secs(3_600), ..Setup::default() }.start().await;
    world.shutdown.trigger();
    eventually("it is no longer ready", async || !world.is_ready().await).await;
    let answer = world.client().await.send(get("/")).await;
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, "close"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_starts_listens_only_once_a_cell_has_spoken() {
    let mut world = World::start().await;
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
    for cell in &mut world.cells {
        cell.start_again().await;
    }
    let address = address_of(&router, "http").await;
    assert_eq!(Client::connect(address).await.send(get("/")).await.status, 200);
    shutdown.trigger();
    router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_kept_connections_do_not_notice_an_edit() {
    // Both ends of each are this process's.
    let files = ["--nofile=8192:".to_owned(), format!("--pid={}", std::process::id())];
    let raised = Command::new("prlimit").args(files).status().expect("prlimit is there");
    assert!(raised.success(), "the process may not have as many files");
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

/// A few at a time: each may take a connection to a cell too.
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
    // All over one connection: a new one would cost more than what is refused.
    for request in [get("/"), post("/", "a body that nobody wants"), get("/")] {
        assert_eq!(second.send(request).await.problem(), (503, "RouterOverloaded".to_owned()));
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn old_and_odd_clients_are_served_or_told() {
    let world = World::start().await;
    let answer = raw(world.address, "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close\r\n"), "{answer}");
    for hosts in ["", "host: a\r\nhost: b\r\n"] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        check_refused(&raw(world.address, &request).await, 400, "Malformed");
    }
    for (absolute, origin) in [("/abs", "/abs"), ("?q=1", "/?q=1"), ("", "/")] {
        world.cells.iter().for_each(|cell| drop(cell.seen()));
        let request =
            format!("GET http://shop:81{absolute} HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n");
        assert!(raw(world.address, &request).await.starts_with("HTTP/1.1 200"));
        let seen = world.cells.iter().flat_map(|cell| cell.seen()).next().expect("was hit");
        assert_eq!((&*seen.target, &seen.headers["host"]), (origin, &"shop:81".parse().expect("legal")));
    }
    let head = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(head.as_bytes()).await.expect("writes");
    assert_eq!(read_head(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ok").await.expect("writes");
    let answer = read_head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Who does not wait to be told need not be.
    let answer = raw(world.address, &format!("{head}ok")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nok"), "{answer}");
    for text in ["GET / HTTP/1.1\r\nbad header\r\n\r\n", "GET / HTTP/9\r\n\r\n", "no HTTP\r\n\r\n"] {
        check_refused(&raw(world.address, text).await, 400, "Malformed");
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
    let answer = raw(world.address, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await;
    assert!(answer.contains("bulkhead-transaction: "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_a_refused_connect_is_no_request() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    let inside = "GET /inside HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
    let connect = format!("CONNECT other:80 HTTP/1.1\r\nhost: other:80\r\n\r\n{inside}");
    let answer = raw(world.address, &connect).await;
    check_refused(&answer, 400, "Malformed");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert!(world.cells[0].seen().is_empty());
    assert!(raw(world.address, inside).await.starts_with("HTTP/1.1 200"), "by itself it is one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_head_says_the_length_and_has_no_body() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    world.cells[0].behave(Behaviour::Lengthy);
    let answer = raw(world.address, "HEAD / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("content-length: 1000\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_larger_than_the_limit_is_refused() {
    let world = Setup { limits: "{headerBytes: 2048}", ..Setup::default() }.start().await;
    let large = "x".repeat(4096);
    let answer =
        raw(world.address, &format!("GET / HTTP/1.1\r\nhost: test\r\nx-large: {large}\r\n\r\n")).await;
    check_refused(&answer, 431, "HeadTooLarge");
    assert_eq!(world.hits(), [0, 0]);
}

/// What a client gets that sends this to a listener with that limit alone: on a machine that stalls, a second short one
/// might end what the first is to end.
async fn ended_by(limits: &'static str, text: &str) -> String {
    let world = Setup { limits, ..Setup::default() }.start().await;
    raw(world.address, text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_and_a_connection_that_idles_are_ended() {
    assert_eq!(ended_by("{headerTimeout: 300ms}", "GET / HTTP/1.1\r\nhost: te").await, "");
    let answer = ended_by("{idleTimeout: 600ms}", "GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let half = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n\r\nab";
    let answer = ended_by("{bodyTimeout: 300ms}", half).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("RequestTimeout"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_takes_longer_than_the_rules_deadline_was_never_sent() {
    let all = "  - {name: all, restart: {deadline: 300ms}, groups: [{cells: [{name: a}]}]}\n";
    let by_body = all.replace("all,", "card, matches: [{all: [{jsonPointer: /card, exact: x}]}],");
    let world = Setup { cells: vec!["a"], policy: rules(all), ..Setup::default() }.start().await;
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 12\r\n\r\n";
    let late = raw(world.address, &format!("{head}{{\"card\"")).await;
    assert!(late.starts_with("HTTP/1.1 408") && late.contains("RequestTimeout"), "{late}");
    // Where it takes the body to find the rule, its deadline is known afterwards.
    world.write("policy.yaml", &rules(&by_body));
    world.serves("RoutingPolicy/default/shop", 2).await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(format!("{head}{{\"card\"").as_bytes()).await.expect("writes");
    let under_way = "bulkhead_router_in_flight{listener=\"http\"} 1\n";
    eventually("its time has begun", async || world.metrics().await.contains(under_way)).await;
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
            && text.contains("bulkhead_router_table_age_seconds ")
            && !text.contains("bulkhead_router_table_age_seconds 0\n")
    })
    .await;
}
