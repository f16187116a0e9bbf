//! Requests over HTTP/2, from its begin to its end.

use std::future::poll_fn;
use std::time::Duration;

use bulkhead_process::clock;
use bytes::Bytes;
use futures::future::join_all;
use h2::Reason;
use http::Request;
use rustls::version;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Frames, GOAWAY, HEADERS, Http2, PING, frame, get, post, read, reason};
use crate::client;
use crate::fake::Behaviour;
use crate::tls::{ONE, Scene};
use crate::world::{PATIENCE, Setup, World, eventually, policy, rules};

/// A world of one cell.
pub(super) async fn one(limits: &'static str) -> World {
    let policy = policy("[{cells: [{name: a}]}]");
    Setup { cells: vec!["a"], policy, limits, threads: 1, ..Setup::default() }.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_knows_that_http_2_is_spoken_begins_with_it() {
    let world = one("{}").await;
    let client = Http2::connect(world.address).await;
    let request = Request::post("http://shop.example/pay?x=1")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("x-partner", "acme");
    let answer = client.send(request.body(()).expect("legal"), "hello").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..], answer.cell()), (200, &b"hello"[..], "a"));
    assert_eq!(answer.header("content-length"), "5");
    assert!(answer.headers.contains_key("date") && answer.headers.contains_key("bulkhead-transaction"));
    let seen = world.cells[0].seen().pop().expect("was hit");
    let said = ["host", "cookie", "x-partner", "x-forwarded-proto", "x-forwarded-host", "content-length"]
        .map(|name| seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default());
    assert_eq!(seen.target, "/pay?x=1");
    assert_eq!(said, ["shop.example", "a=1; b=2", "acme", "http", "shop.example", "5"]);
    // HTTP/1.1 is spoken beside it.
    assert_eq!(world.client().await.send(client::get("/")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_the_client_chooses_in_the_handshake() {
    let scene = Scene::start(ONE).await;
    let offer = async |protocols: &[&str]| {
        let stream = TcpStream::connect(scene.world.address).await.expect("connects");
        scene.authority.offer(&version::TLS13, protocols, stream).await
    };
    let stream = offer(&["h2", "http/1.1"]).await.expect("shakes hands");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let request = Request::get("https://shop.example/").body(()).expect("legal");
    assert_eq!(Http2::over(stream).await.send(request, "").await.status, 200);
    let seen = scene.world.cells[0].seen().pop().expect("was hit");
    assert_eq!(seen.headers["x-forwarded-proto"], "https");

    let stream = offer(&["http/1.1"]).await.expect("shakes hands");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(offer(&["spdy/3"]).await.is_err(), "there is nothing in common");
    // Over TLS nobody need know in advance, and who did not ask speaks HTTP/1.1.
    let stream = offer(&[]).await.expect("shakes hands");
    let client = Http2::over(stream).await;
    assert!(client.try_send(get("/"), "").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_the_same_bytes_at_the_cell_and_back() {
    let world = one("{}").await;
    let client = Http2::connect(world.address).await;
    for size in [0, 1, 16 * 1024, 65_535, 65_536, 256 * 1024] {
        let body: Bytes = (0..size).map(|place: u32| (place * 31 % 251) as u8).collect();
        let answer = client.send(post("/"), body.clone()).await;
        assert!(answer.status == 200 && answer.body == body, "{size} bytes came back changed");
        assert!(world.cells[0].seen().pop().expect("was hit").body == body, "{size} bytes arrived changed");
    }
    let answer = client.send(post("/"), vec![0; 256 * 1024 + 1]).await;
    assert_eq!(answer.problem(), (413, "BodyTooLarge".to_owned()));
    assert_eq!(client.send(get("/"), "").await.status, 200, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_may_stream_what_is_too_large_to_hold() {
    let text = rules(
        "  - {name: all, restart: {bufferLimit: 1Ki, tooLarge: Stream}, groups: [{cells: [{name: a}]}]}\n",
    );
    let world = Setup { cells: vec!["a"], policy: text, ..Setup::default() }.start().await;
    let body = Bytes::from(vec![7; 1 << 20]);
    assert!(Http2::connect(world.address).await.send(post("/"), body.clone()).await.body == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_count_in_the_memory_that_there_is_whether_or_not_they_say_their_length() {
    let world = one("{bufferTotal: 100Ki}").await;
    let client = Http2::connect(world.address).await;
    for length in [None, Some("150000")] {
        let mut request = post("/");
        if let Some(length) = length {
            request.headers_mut().insert("content-length", length.parse().expect("legal"));
        }
        let answer = client.send(request, vec![7; 150_000]).await;
        assert_eq!(answer.problem(), (503, "RouterOverloaded".to_owned()), "{length:?}");
    }
    assert_eq!(world.hits(), [0]);
    // What was taken for those was given back.
    assert_eq!(client.send(post("/"), vec![7; 90_000]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_do_not_wait_for_each_other() {
    let world = one("{}").await;
    world.cells[0].behave(Behaviour::Hang);
    let client = Http2::connect(world.address).await;
    let hanging =
        join_all((0..100).map(|number| client.send(post(&format!("/{number}")), number.to_string())));
    let released = async {
        eventually("all are in the cell", async || world.hits()[0] == 100).await;
        world.cells[0].behave(Behaviour::Echo);
    };
    let (answers, ()) = tokio::join!(hanging, released);
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, number.to_string().as_bytes()));
    }
    assert_eq!(world.cells[0].connections(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_reach_the_client_without_what_is_ours() {
    let world = one("{}").await;
    world.cells[0].behave(Behaviour::Trailers);
    let request = Request::get("http://test/").header("te", "trailers").body(()).expect("legal");
    let (answer, trailers) =
        Http2::connect(world.address).await.try_send(request, "").await.expect("is answered");
    let trailers = trailers.expect("are there");
    assert_eq!(
        (&answer.body[..], &trailers["x-sum"], trailers.len()),
        (&b"thr"[..], &"3".parse().expect("legal"), 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_answered_with_one() {
    let world = one("{}").await;
    world.cells[0].behave(Behaviour::Lengthy);
    let client = Http2::connect(world.address).await;
    let request = Request::head("http://test/").body(()).expect("legal");
    let answer = client.send(request, "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-length"), answer.body.len()),
        (200, "1000", 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_resets_its_stream_alone() {
    let world = one("{}").await;
    let client = Http2::connect(world.address).await;
    world.cells[0].behave(Behaviour::Hang);
    let (response, _) = client.open(get("/"), true).await.expect("opens");
    eventually("it is in a", async || world.hits()[0] == 1).await;
    let text = rules("  - {name: all, restart: {policy: Never}, groups: [{cells: [{name: a}]}]}\n");
    world.write("policy.yaml", &text);
    world.serves("RoutingPolicy/default/shop", 2).await;
    // Which lets go of the first as well.
    world.cells[0].behave(Behaviour::BreakOff);
    let error = client.try_send(get("/"), "").await.expect_err("breaks off");
    assert_eq!(reason(&error), (true, Some(Reason::INTERNAL_ERROR)));
    assert_eq!(response.await.expect("is answered").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_says_so_and_finishes_what_is_under_way() {
    let world = World::start().await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Hang));
    let client = Http2::connect(world.address).await;
    let quiet = Http2::connect(world.address).await;
    let hanging = join_all((0..10).map(|_| client.send(post("/"), "x")));
    let drained = async {
        eventually("they are in cells", async || world.hits().iter().sum::<u64>() == 10).await;
        world.shutdown.trigger();
        eventually("nobody listens", async || TcpStream::connect(world.address).await.is_err()).await;
        // Told that it ends, nothing more is taken; what the client sent before it knew is not touched.
        let refused = async || match client.open(get("/"), true).await {
            Err(error) => error.is_go_away() || error.is_remote(),
            Ok((response, _)) => response.await.is_err(),
        };
        timeout(PATIENCE, async { while !refused().await {} }).await.expect("nothing more is taken");
        world.cells.iter().for_each(|cell| cell.behave(Behaviour::Echo));
    };
    let (answers, ()) = tokio::join!(hanging, drained);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == "x"));
    timeout(PATIENCE, quiet.driven).await.expect("ends in time").expect("ends").expect("ends well");
    world.router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_taken_back_is_taken_back_from_its_cell() {
    let world = one("{}").await;
    world.cells[0].behave(Behaviour::Hang);
    let client = Http2::connect(world.address).await;
    let in_flight = async || world.serving().await.cells["a"].in_flight;
    let (response, mut stream) = client.open(post("/"), false).await.expect("opens");
    stream.send_data(Bytes::from_static(b"x"), true).expect("is sent");
    eventually("it is in a", async || in_flight().await == 1).await;
    stream.send_reset(Reason::CANCEL);
    drop(response);
    eventually("it is given up", async || in_flight().await == 0).await;

    let (response, _stream) = client.open(get("/"), true).await.expect("opens");
    eventually("it is in a", async || in_flight().await == 1).await;
    client.driven.abort();
    eventually("it is given up with its connection", async || in_flight().await == 0).await;
    assert!(response.await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_nothing_holds_little_and_not_for_long() {
    let world = one("{idleTimeout: 1s}").await;
    world.cells[0].behave(Behaviour::Endless);
    let client = Http2::connect(world.address).await;
    let (response, _) = client.open(get("/"), true).await.expect("opens");
    let mut body = response.await.expect("is answered").into_body();
    // All that it may send without being asked for more, and none is asked for.
    let mut taken = 0;
    let error = loop {
        match timeout(PATIENCE, body.data())
            .await
            .expect("comes to an end in time")
            .expect("does not end well")
        {
            Ok(piece) => taken += piece.len(),
            Err(error) => break error,
        }
    };
    assert_eq!((reason(&error), taken <= 1 << 20), ((true, Some(Reason::CANCEL)), true));
    // Besides that, what kernels hold between the two.
    assert!(world.cells[0].sent() < 32 << 20, "{} bytes were taken of the cell", world.cells[0].sent());
    let metrics = world.metrics().await;
    assert!(
        metrics.contains("bulkhead_router_http2_faults_total{listener=\"http\",reason=\"SlowReader\"} 1")
    );
    eventually("it is given up", async || world.serving().await.cells["a"].in_flight == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_streams_than_there_may_be_are_refused_untouched() {
    let world = one("{streams: 2}").await;
    world.cells[0].behave(Behaviour::Hang);
    let mut frames = Frames::begin(world.address).await;
    for stream in [1, 3, 5] {
        frames.send(&frame(HEADERS, 5, stream, &super::block(&super::GET))).await;
    }
    let refused = frames.until(super::RST_STREAM).await.expect("one is refused");
    assert_eq!((refused.stream, Reason::from(refused.word(0))), (5, Reason::REFUSED_STREAM));
    eventually("the others are in the cell", async || world.hits()[0] == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_connection_is_ended_with_a_word() {
    let world = one("{idleTimeout: 1s}").await;
    let client = Http2::connect(world.address).await;
    assert_eq!(client.send(get("/"), "").await.status, 200);
    timeout(PATIENCE, client.driven).await.expect("ends in time").expect("ends").expect("ends well");
    // Nor is one waited for that does not answer.
    let mut frames = Frames::begin(world.address).await;
    assert_eq!(frames.goodbye().await, Some(Reason::NO_ERROR));
    frames.closes().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_ends_the_connection() {
    let world = one("{headerTimeout: 1s}").await;
    let mut preface = TcpStream::connect(world.address).await.expect("connects");
    tokio::io::AsyncWriteExt::write_all(&mut preface, b"PRI * HTTP/2.0\r\n\r\nSM\r").await.expect("writes");
    let mut head = Frames::begin(world.address).await;
    head.send(&frame(HEADERS, 1, 1, &super::block(&super::GET))).await;
    head.closes().await;
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut preface, &mut rest);
    timeout(PATIENCE, read).await.expect("closes in time").expect("closes");
    assert_eq!(world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_to_be_told_is_told_to_send_its_body() {
    let world = one("{}").await;
    let client = Http2::connect(world.address).await;
    let request = Request::post("http://test/").header("expect", "100-continue").body(()).expect("legal");
    let (mut response, mut stream) = client.open(request, false).await.expect("opens");
    let told = poll_fn(|context| response.poll_informational(context));
    let told = timeout(PATIENCE, told).await.expect("in time").expect("is told").expect("is told");
    assert_eq!(told.status().as_u16(), 100);
    stream.send_data(Bytes::from_static(b"body"), true).expect("is sent");
    let (body, _) = read(response.await.expect("is answered").into_body()).await.expect("is whole");
    assert_eq!(&body[..], b"body");
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_and_a_clients_goodbye_is_taken() {
    let world = one("{}").await;
    let mut frames = Frames::begin(world.address).await;
    let now = clock::now_unix_millis().to_be_bytes();
    frames.send(&frame(PING, 0, 0, &now)).await;
    let pong = frames.until(PING).await.expect("is answered");
    assert_eq!((pong.flags, &pong.payload[..]), (1, &now[..]));
    frames.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
    timeout(Duration::from_secs(30), frames.closes()).await.expect("closes");
}
