//! The end of a cell-runtime: told at once, served to the end, bounded.

use std::time::Duration;

use axum::http::StatusCode;
use bulkhead_cell_runtime::Config;
use bulkhead_process::Monotonic;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, Pod, Stream, ask, config, eventually, get, start_ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_and_what_still_arrives_is_served_after_the_verdict() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let address = runtime.addresses.traffic;
    let mut stream = Stream::open(runtime.addresses.health).await;
    web.controls.set_delay(Duration::from_secs(4));
    let under_way = tokio::spawn(ask(address, get("/under-way")));
    eventually("it is under way", async || web.controls.requests() == 1).await;

    runtime.shutdown.trigger();
    let verdict = stream.until("draining", |verdict| !verdict.ready).await;
    assert_eq!((verdict.reason.as_str(), verdict.in_flight), ("Draining", 1));
    assert_eq!(ask(address, get("/late")).await.status, StatusCode::OK);
    assert_eq!(under_way.await.expect("ends").status, StatusCode::OK);
    tokio::time::timeout(PATIENCE, runtime.task).await.expect("ends").expect("no panic").expect("no error");
    while stream.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_cell_runtime_waits_until_every_router_has_heard() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let clock = Monotonic::start();
    runtime.shutdown.trigger();
    tokio::time::timeout(PATIENCE, runtime.task).await.expect("ends").expect("no panic").expect("no error");
    assert!(clock.millis() >= 1_000, "it ended after {} ms", clock.millis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_hangs_does_not_keep_it_from_ending() {
    let web = Pod::start("web").await;
    let drain_timeout = Duration::from_millis(1_200);
    let runtime = start_ready(Config { drain_timeout, ..config(&[&web]) }).await;
    web.controls.set_delay(Duration::from_secs(600));
    let hanging = tokio::spawn(ask(runtime.addresses.traffic, get("/")));
    eventually("it is under way", async || web.controls.requests() == 1).await;
    runtime.shutdown.trigger();
    tokio::time::timeout(PATIENCE, runtime.task).await.expect("ends").expect("no panic").expect("no error");
    hanging.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_whole_request_does_not_keep_it_from_ending() {
    let web = Pod::start("web").await;
    let drain_timeout = Duration::from_secs(600);
    let runtime = start_ready(Config { drain_timeout, ..config(&[&web]) }).await;
    let _silent = TcpStream::connect(runtime.addresses.traffic).await.expect("is open");
    let mut half = TcpStream::connect(runtime.addresses.traffic).await.expect("is open");
    half.write_all(b"POST / HTTP/1.1\r\nhost: ").await.expect("is sent");
    assert_eq!(ask(runtime.addresses.traffic, get("/")).await.status, StatusCode::OK);
    runtime.shutdown.trigger();
    tokio::time::timeout(PATIENCE, runtime.task).await.expect("ends").expect("no panic").expect("no error");
}
