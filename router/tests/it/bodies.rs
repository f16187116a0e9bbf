//! Bodies: the same bytes at the cell, and limits that hold.

use bytes::Bytes;
use futures::stream;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use crate::client::{Body, post};
use crate::fake::Behaviour;
use crate::world::{Setup, World, policy, rules};

fn bytes(length: usize) -> Bytes {
    (0..length).map(|place| (place * 31 % 251) as u8).collect()
}

/// Without a length, in pieces.
fn chunked(path: &str, pieces: usize, size: usize) -> Request<Body> {
    let piece = bytes(size);
    let frames = stream::iter((0..pieces).map(move |_| Ok(Frame::data(piece.clone()))));
    Request::post(path).header("host", "test").body(StreamBody::new(frames).boxed()).expect("a legal request")
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_the_same_bytes_at_the_cell_and_back() {
    let world = World::start().await;
    let mut client = world.client().await;
    for size in [0, 1, 8 * 1024, 64 * 1024, 256 * 1024] {
        let answer = client.send(post("/", bytes(size))).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body == bytes(size), "{size} bytes came back changed");
        let seen = world.cells.iter().flat_map(|cell| cell.seen()).next().expect("was hit");
        assert!(seen.body == bytes(size), "{size} bytes arrived changed");
    }
    let answer = client.send(chunked("/", 100, 1_000)).await;
    assert!(answer.body == bytes(1_000).repeat(100), "a chunked body came back changed");
    let answer = client.send(chunked("/", 1_000, 1)).await;
    assert!(answer.body == bytes(1).repeat(1_000), "a body in chunks of a byte came back changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused_whether_or_not_it_says_its_length() {
    let world = World::start().await;
    let answer = world.client().await.send(post("/", bytes(256 * 1024 + 1))).await;
    assert_eq!(answer.problem(), (413, "BodyTooLarge".to_owned()));
    // Far more than the limit, so that it cannot have been read whole.
    let answer = world.client().await.send(chunked("/", 700, 1_000)).await;
    assert_eq!(answer.problem(), (413, "BodyTooLarge".to_owned()));
    assert_eq!(world.hits(), [0, 0]);
    assert_eq!(world.spread(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_may_stream_what_is_too_large_to_hold() {
    let text = rules(
        "  - {name: all, restart: {bufferLimit: 1Ki, tooLarge: Stream}, groups: [{cells: [{name: a}]}]}\n",
    );
    let world = Setup { cells: vec!["a"], policy: text, ..Setup::default() }.start().await;
    let mut client = world.client().await;
    assert!(client.send(post("/", bytes(1024 * 1024))).await.body == bytes(1024 * 1024));
    assert!(client.send(chunked("/", 1_000, 1_000)).await.body == bytes(1_000).repeat(1_000));
    assert!(client.send(post("/", bytes(10))).await.body == bytes(10));
    let mut unusual = chunked("/", 1_000, 1_000);
    *unusual.method_mut() = http::Method::GET;
    unusual.headers_mut().insert("transfer-encoding", "chunked".parse().expect("legal"));
    assert!(client.send(unusual).await.body == bytes(1_000).repeat(1_000), "a GET lost its body");
}

/// Everything goes to a first; b stands by.
async fn standby(restart: &str) -> World {
    let groups = "[{cells: [{name: a}]}, {cells: [{name: b}]}]";
    let rule = format!("  - {{name: all, restart: {{{restart}}}, groups: {groups}}}\n");
    Setup { policy: rules(&rule), ..Setup::default() }.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_as_long_as_the_limit_starts_over_whole() {
    let world = standby("policy: UntilPointOfNoReturn, bufferLimit: 64Ki").await;
    world.cells[0].behave(Behaviour::Reset);
    for size in [64 * 1024 - 1, 64 * 1024] {
        let answer = world.client().await.send(post("/", bytes(size))).await;
        assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("b", "2"));
        assert!(answer.body == bytes(size), "{size} bytes came back changed");
        assert!(world.cells[0].seen()[0].body == bytes(size), "{size} bytes arrived changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_body_of_which_nothing_was_sent_goes_to_another_cell() {
    let mut world = standby("bufferLimit: 1Ki, tooLarge: Stream").await;
    // Its health stream goes on saying ready.
    world.cells[0].refuse_traffic().await;
    let answer = world.client().await.send(post("/", bytes(10 * 1024 * 1024))).await;
    assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("b", "2"));
    assert!(answer.body == bytes(10 * 1024 * 1024), "the body came back changed");
    assert_eq!(world.hits(), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_for_bodies_is_bounded_in_total() {
    let world = Setup {
        cells: vec!["a"],
        policy: policy("[{cells: [{name: a}]}]"),
        limits: "{bufferTotal: 64Ki}",
        ..Setup::default()
    }
    .start()
    .await;
    let answer = world.client().await.send(post("/", bytes(65 * 1024))).await;
    assert_eq!(answer.problem(), (503, "RouterOverloaded".to_owned()));
    let answer = world.client().await.send(post("/", bytes(64 * 1024))).await;
    assert_eq!(answer.status, 200);
    assert!(world.metrics().await.contains("bulkhead_router_buffer_bytes 0\n"));
}
