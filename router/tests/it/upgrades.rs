//! Connections that leave HTTP, and those that may not.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{check_refused, raw, read_head};
use crate::fake::Behaviour;
use crate::world::{PATIENCE, ROUTER, Setup, World, eventually, policy};

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
        assert!(raw(world.address, &request).await.starts_with("HTTP/1.1 200"));
        let seen = world.cells[0].seen().pop().expect("was hit");
        for name in ["connection", "upgrade", "http2-settings"] {
            assert!(!seen.headers.contains_key(name), "{name} after {fields}");
        }
        world.cells[0].behave(Behaviour::Upgrade);
        check_refused(&raw(world.address, &request).await, 502, "UpstreamProtocol");
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
    world.write("router.yaml", &ROUTER.replace("LIMITS", "{}").replace("5m", "300ms"));
    world.serves("Router/main", 2).await;
    world.shutdown.trigger();
    world.router.ended().await.expect("ends well");
    let read = tokio::time::timeout(PATIENCE, stream.read_u8()).await.expect("comes to an end");
    assert!(read.is_err(), "the connection is over");
}
