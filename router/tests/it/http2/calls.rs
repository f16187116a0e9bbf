//! Calls of gRPC, from a client through a router to a cell that speaks HTTP/2, and back.

use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_cell_runtime::{Bound, Discovery, config};
use bulkhead_process::Shutdown;
use bytes::Bytes;
use futures::future::join_all;
use h2::Reason;
use http::{HeaderMap, Request};
use serde_json::json;
use tokio::time::timeout;

use super::{Http2, read, reason, write};
use crate::client::Answer;
use crate::fake::{Behaviour, FakeCell};
use crate::world::{PATIENCE, Setup, World, cell, eventually, policy, rules};

/// One rule for cell `a`, and `b` behind it, with these limits of a listener.
async fn world(restart: &str, limits: &'static str) -> World {
    let groups = "[{cells: [{name: a}]}, {cells: [{name: b}]}]";
    let policy = match restart {
        "" => policy(groups),
        restart => rules(&format!("  - {{name: all, restart: {{{restart}}}, groups: {groups}}}\n")),
    };
    Setup { policy, limits, threads: 1, ..Setup::default() }.start().await
}

const NEVER: &str = "policy: Never";

pub(crate) fn call(fields: &[(&str, &str)]) -> Request<()> {
    let head = Request::post("http://test/shop.Carts/Add").header("content-type", "application/grpc+proto");
    let head = head.header("te", "trailers");
    fields.iter().fold(head, |head, (name, value)| head.header(*name, *value)).body(()).expect("legal")
}

async fn send(client: &Http2, fields: &[(&str, &str)], body: &'static str) -> (Answer, Option<HeaderMap>) {
    client.try_send(call(fields), body).await.expect("is answered")
}

/// What a call is told that is refused, which is an answer that ends with its head.
async fn refused(client: &Http2, fields: &[(&str, &str)]) -> (String, String) {
    let (response, mut stream) = client.open(call(fields), false).await.expect("opens");
    stream.send_data(Bytes::from_static(b"x"), true).expect("is sent");
    let response = response.await.expect("is answered");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/grpc".parse().expect("legal"))
    );
    assert!(response.body().is_end_stream(), "it is told in trailers alone");
    assert!(response.headers().contains_key("bulkhead-transaction"));
    let told = |name: &str| response.headers()[name].to_str().expect("is text").to_owned();
    (told("grpc-status"), told("grpc-message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_and_its_answer_pass_with_their_trailers() {
    let world = world("", "{}").await;
    let client = Http2::connect(world.address).await;
    let (answer, trailers) = send(&client, &[("x-partner", "acme"), ("grpc-timeout", "5S")], "message").await;
    assert_eq!((answer.status.as_u16(), answer.cell(), &answer.body[..]), (200, "a", &b"message"[..]));
    let trailers = trailers.expect("are there");
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-sum"], trailers.len()),
        (&"0".parse().expect("legal"), &"3".parse().expect("legal"), 2)
    );
    let seen = world.cells[0].seen().pop().expect("was hit");
    let said = |name: &str| seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_eq!((&*seen.target, &seen.body[..]), ("http://test/shop.Carts/Add", &b"message"[..]));
    assert_eq!(
        [said("te"), said("x-partner"), said("bulkhead-cell"), said("bulkhead-attempt")],
        ["trailers", "acme", "a", "1"]
    );
    assert_eq!(said("bulkhead-transaction"), answer.header("bulkhead-transaction"));
    let left: u64 = said("bulkhead-deadline").parse().expect("is a number");
    assert!(left <= 5_000, "the caller waits no longer: {left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cell_says_in_its_head_alone_is_passed_on_so() {
    let world = world("", "{}").await;
    world.cells[0].behave(Behaviour::Say("no such cart"));
    let told = refused(&Http2::connect(world.address).await, &[]).await;
    assert_eq!(told, ("5".to_owned(), "no such cart".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_both_ways_as_they_come_where_nothing_is_started_over() {
    let world = world(NEVER, "{bodyTimeout: 1s}").await;
    let client = Http2::connect(world.address).await;
    let (response, mut stream) = client.open(call(&[]), false).await.expect("opens");
    stream.send_data(Bytes::from_static(b"0"), false).expect("is sent");
    let mut answers = response.await.expect("is answered before the end").into_body();
    let begun = bulkhead_process::Monotonic::start();
    let mut number = 0;
    // For longer than a body may take, and than any rule's attempt.
    while number < 20 || begun.elapsed() < Duration::from_secs(2) {
        let echoed = answers.data().await.expect("comes").expect("comes");
        assert_eq!(echoed, number.to_string());
        answers.flow_control().release_capacity(echoed.len()).expect("was taken");
        number += 1;
        stream.send_data(Bytes::from(number.to_string()), false).expect("is sent");
    }
    stream.send_data(Bytes::new(), true).expect("is sent");
    let (last, trailers) = read(answers).await.expect("is whole");
    assert_eq!(
        (last, trailers.expect("are there")["grpc-status"].to_str().ok()),
        (number.to_string().into(), Some("0"))
    );
    let seen = world.cells[0].seen().pop().expect("was hit");
    assert!(!seen.headers.contains_key("bulkhead-deadline"), "there is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn much_goes_both_ways_whoever_reads_first() {
    let world = world(NEVER, "{}").await;
    let client = Http2::connect(world.address).await;
    let body = Bytes::from(vec![7; 4 << 20]);
    let (answer, trailers) = client.try_send(call(&[]), body.clone()).await.expect("is answered");
    assert!(answer.body == body && trailers.is_some());
    // Who takes none of the answer still gets to say all of its own.
    world.cells[0].behave(Behaviour::Endless);
    let (response, mut stream) = client.open(call(&[]), false).await.expect("opens");
    let endless = response.await.expect("is answered");
    eventually("all that the client has room for is there", async || world.cells[0].sent() > 1 << 20).await;
    // No more than a cell takes that does not read it, and more than there is room for in between.
    let taken = timeout(PATIENCE / 2, write(&mut stream, Bytes::from(vec![7; 512 << 10]))).await;
    assert_eq!(taken, Ok(true));
    drop(endless);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_for_answers_is_told_what_its_rule_lacks() {
    let world = world("", "{bodyTimeout: 1s}").await;
    let client = Http2::connect(world.address).await;
    let (response, mut stream) = client.open(call(&[]), false).await.expect("opens");
    stream.send_data(Bytes::from_static(b"first"), false).expect("is sent");
    let response = response.await.expect("is answered");
    assert_eq!(response.headers()["grpc-status"], "4");
    let message = response.headers()["grpc-message"].to_str().expect("is text");
    assert!(message.starts_with("RequestTimeout: ") && message.contains("restart.policy Never"), "{message}");
    assert_eq!(world.hits(), [0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_passed_on_as_they_come_and_end_when_nobody_wants_them() {
    let world = world("", "{}").await;
    world.cells[0].behave(Behaviour::Endless);
    let client = Http2::connect(world.address).await;
    let (response, mut stream) = client.open(call(&[]), false).await.expect("opens");
    stream.send_data(Bytes::new(), true).expect("is sent");
    let mut answers = response.await.expect("is answered").into_body();
    for _ in 0..100 {
        let piece = answers.data().await.expect("comes").expect("comes");
        answers.flow_control().release_capacity(piece.len()).expect("was taken");
    }
    // What it does not take stays where it is.
    eventually("the cell waits", async || {
        let before = world.cells[0].sent();
        tokio::task::yield_now().await;
        before == world.cells[0].sent()
    })
    .await;
    stream.send_reset(Reason::CANCEL);
    eventually("it is taken back", async || world.serving().await.cells["a"].in_flight == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_resets_its_stream() {
    let world = world("", "{}").await;
    world.cells[0].behave(Behaviour::BreakOff);
    let error = Http2::connect(world.address).await.try_send(call(&[]), "x").await.expect_err("breaks off");
    assert_eq!(reason(&error), (true, Some(Reason::INTERNAL_ERROR)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cell_did_not_look_at_goes_to_another() {
    for behaviour in [Behaviour::RefuseStreams, Behaviour::GoAway, Behaviour::Restart] {
        let world = world("", "{}").await;
        let client = Http2::connect(world.address).await;
        world.cells[0].behave(behaviour.clone());
        for _ in 0..3 {
            let (answer, trailers) = send(&client, &[], "message").await;
            assert_eq!((answer.cell(), &answer.body[..]), ("b", &b"message"[..]), "{behaviour:?}");
            assert!(trailers.is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_looked_at_goes_nowhere_else_and_is_unknown() {
    let world = world("", "{}").await;
    let client = Http2::connect(world.address).await;
    world.cells[0].behave(Behaviour::Reset);
    let (status, message) = refused(&client, &[]).await;
    assert_eq!(status, "2");
    assert!(message.starts_with("UpstreamReset: "), "{message}");
    assert_eq!(world.hits(), [1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_told_as_grpc_tells_them() {
    let mut world = world("", "{}").await;
    let client = Http2::connect(world.address).await;
    let check = async |fields: &[(&str, &str)], status: &str, reason: &str| {
        let (got, message) = refused(&client, fields).await;
        assert!(got == status && message.starts_with(&format!("{reason}: ")), "{got} {message}");
    };
    world.cells[0].behave(Behaviour::Hang);
    check(&[("grpc-timeout", "300m")], "4", "Timeout").await;
    world.cells[0].behave(Behaviour::Echo);
    for cell in [0, 1] {
        world.set_weight(cell, 0);
        world.serves(["Cell/a", "Cell/b"][cell], 2).await;
    }
    check(&[], "14", "AllDrained").await;
    world.remove("policy.yaml");
    eventually("there is no rule", async || refused(&client, &[]).await.0 == "12").await;
    check(&[], "12", "NoRule").await;
    for cell in &mut world.cells {
        cell.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_share_connections_up_to_what_their_cell_takes() {
    let world = world("", "{}").await;
    world.cells[0].behave(Behaviour::Hang);
    world.cells[0].set_most_streams(10);
    let client = Http2::connect(world.address).await;
    // The first tells the router how many there may be.
    let first = client.open(call(&[]), true).await.expect("opens");
    eventually("it is in a", async || world.hits()[0] == 1).await;
    let hanging = join_all((0..49).map(|_| client.try_send(call(&[]), "x")));
    let released = async {
        eventually("all are in a", async || world.hits()[0] == 50).await;
        world.cells[0].behave(Behaviour::Echo);
    };
    let (answers, ()) = tokio::join!(hanging, released);
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|(answer, _)| answer.cell() == "a")));
    assert!(first.0.await.is_ok());
    assert_eq!(world.cells[0].connections(), 5);
    for _ in 0..20 {
        send(&client, &[], "x").await;
    }
    assert_eq!(world.cells[0].connections(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_its_cell_closed_costs_no_call() {
    let mut world = world("", "{}").await;
    let client = Http2::connect(world.address).await;
    send(&client, &[], "x").await;
    for _ in 0..5 {
        world.cells[0].kill().await;
        world.cells[0].start_again().await;
        world.until_in("a", true).await;
        let (answer, _) = send(&client, &[], "x").await;
        assert_eq!(answer.status, 200);
        assert!(!answer.body.is_empty());
    }
}

/// A cell-runtime named `a` before a service that speaks HTTP/2. It ends with the test.
async fn orchestrator(service: &FakeCell, shutdown: &Shutdown) -> SocketAddr {
    let web = json!({"name": "web", "port": 80, "readinessPath": "/readyz"});
    let cell = json!({"cell": "a", "services": [web], "entry": {"service": "web", "protocol": "h2c"}});
    let services = [("web".to_owned(), vec![service.address])].into();
    let bound = Bound::bind(bulkhead_cell_runtime::Config {
        cell: serde_json::from_value(cell).expect("is a configuration"),
        pod: "a-0".to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        health_listen: None,
        admin_listen: None,
        discovery: Discovery::Fixed { services, peers: Vec::new() },
        body_limit: config::DEFAULT_BODY_LIMIT,
        drain_timeout: Duration::ZERO,
        probe_timeout: PATIENCE,
        registry: prometheus::Registry::new(),
    });
    let bound = bound.await.expect("binds");
    let address = bound.addresses().traffic;
    tokio::spawn(bound.run(shutdown.clone()));
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_goes_through_the_front_of_a_cell_to_its_service_and_back() {
    let (service, shutdown) = (FakeCell::start("web").await, Shutdown::new());
    let world = world(NEVER, "{}").await;
    let address = orchestrator(&service, &shutdown).await;
    world.write("cell-a.yaml", &cell("a", 100, address));
    let client = Http2::connect(world.address).await;
    let answers = async || send(&client, &[], "x").await.0.cell() == "web";
    eventually("the service answers", answers).await;
    service.seen();
    let (response, mut stream) = client.open(call(&[]), false).await.expect("opens");
    stream.send_data(Bytes::from_static(b"0"), false).expect("is sent");
    let mut answers = response.await.expect("is answered before the end").into_body();
    assert_eq!(answers.data().await.expect("comes").expect("comes"), "0");
    stream.send_data(Bytes::from_static(b"1"), true).expect("is sent");
    let (last, trailers) = read(answers).await.expect("is whole");
    let trailers = trailers.expect("are there");
    assert_eq!(
        (&last[..], &trailers["grpc-status"], trailers.len()),
        (&b"1"[..], &"0".parse().expect("legal"), 2)
    );
    let seen = service.seen().pop().expect("was called");
    assert_eq!((&*seen.target, &seen.body[..]), ("http://test/shop.Carts/Add", &b"01"[..]));
    // Refused by the service, the call goes from its cell to the next, where its rule lets it.
    let groups = "[{cells: [{name: a}]}, {cells: [{name: b}]}]";
    world.write("policy.yaml", &policy(groups));
    world.serves("RoutingPolicy/default/shop", 2).await;
    service.behave(Behaviour::RefuseStreams);
    let (answer, _) = send(&client, &[], "x").await;
    assert_eq!(answer.cell(), "b");
    shutdown.trigger();
}
