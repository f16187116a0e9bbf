//! Bodies: the same bytes at the cell, and limits that hold.

use bytes::Bytes;
use futures::stream;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Body, check_refused, post, raw, read_head};
use crate::fake::Behaviour;
use crate::http2::{Http2, call};
use crate::world::{Setup, World, documents, policy, rules};

fn bytes(length: usize) -> Bytes {
    (0..length).map(|place| (place * 31 % 251) as u8).collect()
}

/// Without a length, in pieces of that size.
fn chunked_of(path: &str, body: &[u8], size: usize) -> Request<Body> {
    let pieces: Vec<Bytes> = body.chunks(size).map(Bytes::copy_from_slice).collect();
    let frames = stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(piece))));
    Request::post(path).header("host", "test").body(StreamBody::new(frames).boxed()).expect("a legal request")
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

/// Requests below that path whose body has `x` at `/card` go to a, all others to b, by policies of their own; `card` and
/// `rest` are what else the rules have.
async fn by_card(path: &str, card: &str, rest: &str) -> World {
    let conditions = format!("{{attribute: path, prefix: {path}}}, {{jsonPointer: /card, exact: x}}");
    let matches = format!("[{{all: [{conditions}]}}]");
    let card =
        rules(&format!("  - {{name: card, matches: {matches}{card}, groups: [{{cells: [{{name: a}}]}}]}}\n"));
    let rest = rules(&format!("  - {{name: rest{rest}, groups: [{{cells: [{{name: b}}]}}]}}\n"));
    let card = card.replace("shop", "cards").replace("  rules:", "  precedence: 1000\n  rules:");
    Setup { policy: documents(&[card, rest]), ..Setup::default() }.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_decides_is_found_wherever_it_is_or_the_request_is_refused() {
    for too_large in ["Reject", "Stream"] {
        let restart = format!(", restart: {{tooLarge: {too_large}}}");
        let world = by_card("/", &restart, &restart).await;
        let mut client = world.client().await;
        let behind = |pad: usize| format!("{{\"pad\":\"{}\",\"card\":\"x\"}}", "x".repeat(pad)).into_bytes();
        let mut check = async |body: Vec<u8>, expected: Result<&str, (u16, &str)>| {
            for request in [post("/", body.clone()), chunked_of("/", &body, 1_000), chunked_of("/", &body, 7)]
            {
                let before = world.hits();
                let answer = client.send(request).await;
                match expected {
                    Ok(cell) => assert_eq!(answer.cell(), cell, "{:?}", answer.body),
                    Err((status, reason)) => {
                        assert_eq!(answer.problem(), (status, reason.to_owned()));
                        assert_eq!(world.hits(), before, "it went to a cell by default");
                        client = world.client().await;
                    }
                }
            }
        };
        check(behind(250 * 1024), Ok("a")).await;
        check(behind(256 * 1024), Err((413, "BodyTooLarge"))).await;
        check(br#"{"card":"x","card":"y"}"#.to_vec(), Ok("a")).await;
        check(br#"{"card":"y","card":"x"}"#.to_vec(), Ok("b")).await;
        check(br#"{"card":"y"}"#.to_vec(), Ok("b")).await;
        let malformed = Err((400, "Malformed"));
        check([b"\xef\xbb\xbf", &behind(1)[..]].concat(), malformed).await;
        check(vec![b'['; 10_000], malformed).await;
        // What is compressed is not looked into.
        check(vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0], malformed).await;
        // Cut off by a length that is too short.
        let text =
            "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{\"card\":\"x\"}";
        let before = world.hits();
        check_refused(&raw(world.address, text).await, 400, "Malformed");
        assert_eq!(world.hits(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_not_waited_for_where_another_policy_reads_bodies() {
    let world = by_card("/cards", "", ", restart: {policy: Never}").await;
    // One whose body decides is waited for.
    let mut waits = TcpStream::connect(world.address).await.expect("connects");
    let head = "POST /cards HTTP/1.1\r\nhost: test\r\ncontent-length: 12\r\n\r\n{\"card\"";
    waits.write_all(head.as_bytes()).await.expect("writes");
    // A stream goes both ways meanwhile, an answer without an end comes, and a connection leaves HTTP.
    let client = Http2::connect(world.address).await;
    let (response, mut sending) = client.open(call(&[]), false).await.expect("opens");
    sending.send_data(Bytes::from_static(b"ping"), false).expect("is sent");
    let mut echoes = response.await.expect("is answered before the end").into_body();
    assert_eq!(echoes.data().await.expect("comes").expect("comes"), "ping");
    for (behaviour, fields, status) in
        [(Behaviour::Quiet, "", 200), (Behaviour::Upgrade, "connection: upgrade\r\nupgrade: echo\r\n", 101)]
    {
        world.cells[1].behave(behaviour);
        let mut stream = TcpStream::connect(world.address).await.expect("connects");
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let head = read_head(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        stream.write_all(b"thr").await.expect("writes");
        let mut piece = [0; 3];
        // Behind the size of its chunk, where it has one.
        while &piece != b"thr" {
            piece = [piece[1], piece[2], stream.read_u8().await.expect("comes")];
        }
    }
    assert_eq!(world.hits(), [0, 3]);
    waits.write_all(b":\"x\"}").await.expect("writes");
    let head = read_head(&mut waits).await;
    assert!(head.contains("x-cell: a\r\n"), "{head}");
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
