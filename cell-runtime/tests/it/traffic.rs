//! Transactions through the entry service.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::routing::{get as on_get, post as on_post};
use bulkhead_crds::cell::Capacity;
use bulkhead_crds::template::{Entry, EntryProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{Pod, ask, config, eventually, get, post, send, start_ready, with};

/// Bytes that differ from place to place, so that a lost or doubled part shows.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_big_body_comes_back_bit_identical() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let body = noise(9 * 1024 * 1024 + 17);
    let answer = send(runtime.addresses.traffic, post("/echo"), body.clone()).await.expect("is answered");
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.body == body, "{} bytes came back, {} were sent", answer.body.len(), body.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_sees_the_request_and_the_transaction_as_the_router_sent_them() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let request = get("/pay?x=%20y")
        .header("bulkhead-cell", "a")
        .header("bulkhead-transaction", "018f")
        .header("bulkhead-attempt", "2")
        .header("bulkhead-deadline", "20000")
        .header("x-account", "7")
        .header("connection", "x-private")
        .header("x-private", "1");
    let answer = ask(runtime.addresses.traffic, request).await.json();
    assert_eq!((answer.method.as_str(), answer.path.as_str()), ("GET", "/pay?x=%20y"));
    for (name, value) in [
        ("host", "payments.example"),
        ("bulkhead-cell", "a"),
        ("bulkhead-transaction", "018f"),
        ("bulkhead-attempt", "2"),
        ("bulkhead-deadline", "20000"),
        ("x-account", "7"),
    ] {
        assert_eq!(answer.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!answer.headers.contains_key("x-private"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_for_another_cell_is_refused_and_reaches_no_service() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let answer = ask(runtime.addresses.traffic, get("/").header("bulkhead-cell", "b")).await;
    assert_eq!(answer.refusal(), (421, Some("WrongCell"), None));
    assert_eq!(web.controls.requests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_capacity_a_transaction_is_given_back_at_once() {
    let web = Pod::start("web").await;
    let mut limited = config(&[&web]);
    limited.cell.capacity = Some(Capacity { in_flight: Some(2), requests_per_second: None });
    let runtime = start_ready(limited).await;
    let address = runtime.addresses.traffic;
    web.controls.set_delay(Duration::from_secs(600));
    let held = [tokio::spawn(ask(address, get("/1"))), tokio::spawn(ask(address, get("/2")))];
    eventually("both are under way", async || web.controls.requests() == 2).await;

    let answer = ask(address, get("/3").header("bulkhead-transaction", "018f")).await;
    assert_eq!(answer.refusal(), (503, Some("Capacity"), Some("restart")));
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).expect("a problem");
    assert_eq!((&problem["reason"], &problem["transaction"]), (&"Capacity".into(), &"018f".into()));
    assert_eq!(web.controls.requests(), 2);
    for request in held {
        request.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_cannot_speak_for_the_cell_runtime() {
    let forged = async || {
        let fields = [("bulkhead-outcome", "restart"), ("x-own", "kept"), ("keep-alive", "timeout=5")];
        let fields = fields.map(|(name, value)| (HeaderName::from_static(name), value));
        (fields.into_iter().map(|(n, v)| (n, v.parse().expect("a value"))).collect::<HeaderMap>(), "body")
    };
    let routes = axum::Router::new().route("/readyz", on_get(async || "")).route("/", on_get(forged));
    let web = Pod::routes(routes).await;
    let runtime = start_ready(config(&[&web])).await;
    let answer = ask(runtime.addresses.traffic, get("/")).await;
    assert_eq!((answer.field("bulkhead-outcome"), answer.field("keep-alive")), (None, None));
    assert_eq!((answer.field("x-own"), &answer.body[..]), (Some("kept"), &b"body"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_dies_costs_no_transaction_that_had_not_reached_it() {
    let (one, two) = (Pod::start("web").await, Pod::start("web").await);
    let runtime = start_ready(config(&[&one, &two])).await;
    runtime.until_pods_are_ready(2).await;
    // No connection is kept yet, so that the dead pod is met by refused connections and by probes alone.
    two.kill().await;
    for number in 0..50 {
        let answer = ask(runtime.addresses.traffic, get("/")).await;
        assert_eq!(answer.status, StatusCode::OK, "request {number}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dying_pod_may_have_seen_is_given_back_and_not_tried_again_within() {
    let (one, two) = (Pod::start("web").await, Pod::start("web").await);
    let runtime = start_ready(config(&[&one, &two])).await;
    let address = runtime.addresses.traffic;
    two.controls.set_delay(Duration::from_secs(600));
    let mut under_way = Vec::new();
    while two.controls.requests() == 0 {
        under_way.push(tokio::spawn(ask(address, post("/pay"))));
        eventually("it arrived", async || {
            one.controls.requests() + two.controls.requests() == under_way.len() as u64
        })
        .await;
    }
    let before = one.controls.requests();
    two.kill().await;
    let last = under_way.pop().expect("one is under way").await.expect("ends");
    assert_eq!(last.refusal(), (502, Some("ServiceFailed"), Some("restart")));
    assert_eq!(one.controls.requests(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_ready_pod_a_transaction_is_given_back() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let address = runtime.addresses.traffic;
    web.kill().await;
    let answer = ask(address, get("/")).await;
    assert_eq!(answer.refusal(), (503, Some("ServiceNotReady"), Some("restart")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_breaks_off_is_told_apart_from_one_that_was_never_reached() {
    // Answers probes, and closes the connection on anything else.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(length) = stream.read(&mut buffer).await {
                    if !buffer[..length].starts_with(b"GET /readyz ") {
                        return;
                    }
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    let cell = config(&[]).cell;
    let runtime = start_ready(with(cell, [("web".to_owned(), vec![address])].into())).await;
    let answer = ask(runtime.addresses.traffic, post("/pay")).await;
    assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_after_the_callers_deadline_is_not_waited_for() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    web.controls.set_delay(Duration::from_secs(60));
    let answer = ask(runtime.addresses.traffic, get("/").header("bulkhead-deadline", "50")).await;
    assert_eq!(answer.refusal(), (504, Some("Timeout"), Some("restart")));
    let answer = ask(runtime.addresses.traffic, get("/").header("bulkhead-deadline", "soon")).await;
    assert_eq!(answer.refusal(), (400, Some("Malformed"), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_that_hangs_up_frees_the_place() {
    let web = Pod::start("web").await;
    let mut limited = config(&[&web]);
    limited.cell.capacity = Some(Capacity { in_flight: Some(1), requests_per_second: None });
    let runtime = start_ready(limited).await;
    let address = runtime.addresses.traffic;
    web.controls.set_delay(Duration::from_secs(600));
    let held = tokio::spawn(ask(address, get("/")));
    eventually("it is under way", async || web.controls.requests() == 1).await;
    assert_eq!(ask(address, get("/")).await.status, StatusCode::SERVICE_UNAVAILABLE);
    held.abort();
    web.controls.set_delay(Duration::ZERO);
    eventually("the place is free", async || ask(address, get("/")).await.status == StatusCode::OK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_of_a_service_pass_without_our_fields() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while matches!(stream.read(&mut buffer).await, Ok(length) if length > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\
                        trailer: x-sum, bulkhead-outcome\r\n\r\n\
                        4\r\nbody\r\n0\r\nx-sum: 9\r\nbulkhead-outcome: restart\r\n\r\n";
                    let _ = stream.write_all(answer).await;
                }
            });
        }
    });
    for protocol in [EntryProtocol::Http1, EntryProtocol::Bulkhead] {
        let mut cell = config(&[]).cell;
        cell.entry = Some(Entry { service: "web".to_owned(), protocol, ..Entry::default() });
        let runtime = start_ready(with(cell, [("web".to_owned(), vec![address])].into())).await;
        let mut stream = tokio::net::TcpStream::connect(runtime.addresses.traffic).await.expect("connects");
        let request = b"GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(body.contains("body") && body.contains("x-sum: 9"), "{answer}");
        assert!(!body.contains("bulkhead-"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_in_chunks_keeps_its_body() {
    let routes = axum::Router::new()
        .route("/readyz", on_get(async || ""))
        .route("/search", on_get(async |body: String| body));
    let web = Pod::routes(routes).await;
    let runtime = start_ready(config(&[&web])).await;
    let mut stream = tokio::net::TcpStream::connect(runtime.addresses.traffic).await.expect("connects");
    let request =
        b"GET /search HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
        5\r\nquery\r\n0\r\n\r\n";
    stream.write_all(request).await.expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    assert!(answer.ends_with("\r\n\r\nquery"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_post_without_body_keeps_its_status_and_fields() {
    let routes = axum::Router::new()
        .route("/readyz", on_get(async || ""))
        .route("/gone", on_post(async || (StatusCode::GONE, [("x-why", "moved")])));
    let web = Pod::routes(routes).await;
    let runtime = start_ready(config(&[&web])).await;
    let answer = ask(runtime.addresses.traffic, post("/gone")).await;
    assert_eq!(
        (answer.status, answer.field("x-why"), answer.body.len()),
        (StatusCode::GONE, Some("moved"), 0)
    );
}
