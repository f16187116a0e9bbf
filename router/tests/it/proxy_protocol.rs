//! Proxies that say for whom they connect, and what cells are told of the way that a request came.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{check_refused, raw};
use crate::tls::Scene;
use crate::world::{PATIENCE, Setup, World, eventually, policy};

/// One cell behind a listener with that.
async fn world(listener: &'static str) -> World {
    let policy = policy("[{cells: [{name: a}]}]");
    Setup { cells: vec!["a"], policy, listener, ..Setup::default() }.start().await
}

const FROM_HERE: &str = "proxyProtocol: {from: [127.0.0.0/8]}";
const GET: &str = "GET / HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n";
const LINE: &str = "PROXY TCP4 198.51.100.9 192.0.2.1 56324 443\r\n";

/// Version 2, for 198.51.100.9 or, as `LOCAL`, for the proxy itself.
fn binary(command: u8) -> Vec<u8> {
    let addresses = [198, 51, 100, 9, 192, 0, 2, 1, 220, 4, 1, 187];
    [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[command, 0x11, 0, 15], &addresses, &[4, 0, 0]].concat()
}

/// Sends the bytes one by one, and reads to the end.
async fn trickle(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.set_nodelay(true).expect("is connected");
    for byte in bytes {
        stream.write_u8(*byte).await.expect("writes");
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("comes to an end").expect("reads");
    String::from_utf8_lossy(&answer).into_owned()
}

/// These fields of the last request that the cell got.
fn seen<const N: usize>(world: &World, names: [&str; N]) -> [String; N] {
    let seen = world.cells[0].seen().pop().expect("was hit");
    names.map(|name| seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned())
}

/// Who the cell is told that the client is, after that header.
async fn told(world: &World, header: &[u8]) -> String {
    let answer = trickle(world.address, &[header, format!("{GET}\r\n").as_bytes()].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let [address] = seen(world, ["x-forwarded-for"]);
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_may_says_for_whom_it_connects_in_either_version() {
    let world = world(FROM_HERE).await;
    assert_eq!(told(&world, LINE.as_bytes()).await, "198.51.100.9");
    assert_eq!(told(&world, &binary(0x21)).await, "198.51.100.9");
    assert_eq!(told(&world, b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n").await, "2001:db8::9");
    assert_eq!(told(&world, b"PROXY UNKNOWN\r\n").await, "127.0.0.1");
    assert_eq!(told(&world, &binary(0x20)).await, "127.0.0.1");
}

async fn counts(world: &World, reason: &str, count: u32) {
    let line = format!("unfit_connections_total{{listener=\"http\",reason=\"{reason}\"}} {count}");
    eventually(&line, async || world.metrics().await.contains(&line)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_without_a_header_is_refused_and_so_is_a_wrong_one() {
    let world = world(FROM_HERE).await;
    let answer = raw(world.address, &format!("{GET}\r\n")).await;
    check_refused(&answer, 400, "Malformed");
    assert!(answer.contains("there is no PROXY header"), "{answer}");
    assert_eq!(raw(world.address, "\x16\x03\x01").await, "");
    counts(&world, "NoProxyHeader", 2).await;
    assert_eq!(raw(world.address, "PROXY TCP4 198.51.100.9 192.0.2.1 56324\r\n").await, "");
    assert_eq!(raw(world.address, "PROXY TCP9 \r\n").await, "");
    counts(&world, "BadProxyHeader", 2).await;
    assert_eq!(world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_from_elsewhere_is_not_read() {
    let world = world("proxyProtocol: {from: [203.0.113.0/24]}").await;
    assert_eq!(told(&world, b"").await, "127.0.0.1");
    check_refused(&raw(world.address, &format!("{LINE}{GET}\r\n")).await, 400, "Malformed");
    assert_eq!(world.hits(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_does_not_come_is_cut() {
    let limits = "{headerTimeout: 300ms}";
    let world = Setup { listener: FROM_HERE, limits, ..Setup::default() }.start().await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream.write_all(b"PROXY TCP4 ").await.expect("writes");
    let cut = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await.expect("comes to an end");
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    counts(&world, "Late", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_the_header_comes_tls() {
    let scene =
        Scene::start("tls: {certificates: [{secret: one}]}, proxyProtocol: {from: [127.0.0.0/8]}").await;
    let mut stream = TcpStream::connect(scene.world.address).await.expect("connects");
    // With the first bytes of the handshake right behind it.
    stream.write_all(&binary(0x21)).await.expect("writes");
    let mut stream = scene.shake_hands(stream).await;
    stream.write_all(format!("{GET}\r\n").as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&answer));
    assert_eq!(seen(&scene.world, ["x-forwarded-for", "x-forwarded-proto"]), ["198.51.100.9", "https"]);
}

/// What the cell is told in these three fields by a request that says so itself, behind that header.
async fn passed_on(listener: &'static str, header: &str) -> [String; 3] {
    let world = world(listener).await;
    let said = "x-forwarded-for: 192.0.2.7\r\nx-forwarded-port: 444\r\nforwarded: for=192.0.2.7\r\n";
    let answer = raw(world.address, &format!("{header}{GET}{said}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    seen(&world, ["x-forwarded-for", "x-forwarded-port", "forwarded"])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_forwarded_is_believed_of_those_alone_who_are_trusted() {
    let check = async |listener, header, expected: [&str; 3]| {
        assert_eq!(passed_on(listener, header).await, expected, "{listener} {header:?}");
    };
    check("forwarded: {}", "", ["127.0.0.1", "-", "-"]).await;
    check("forwarded: {trust: [127.0.0.0/8]}", "", ["192.0.2.7, 127.0.0.1", "444", "-"]).await;
    check("forwarded: {fields: None}", "", ["-", "-", "-"]).await;
    let rfc7239 = "for=192.0.2.7, for=127.0.0.1;host=shop.example;proto=http";
    check("forwarded: {trust: [127.0.0.0/8], fields: Forwarded}", "", ["-", "-", rfc7239]).await;

    // The address of the header is the client's, and that of the connection nobody's any more.
    let trust = "proxyProtocol: {from: [127.0.0.0/8]}, forwarded: {trust: [198.51.100.0/24]}";
    check(trust, LINE, ["192.0.2.7, 198.51.100.9", "444", "-"]).await;
    let trust = "proxyProtocol: {from: [127.0.0.0/8]}, forwarded: {trust: [127.0.0.0/8]}";
    check(trust, LINE, ["198.51.100.9", "-", "-"]).await;
}
