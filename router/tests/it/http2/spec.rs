//! The binary as it is shipped, held to HTTP/2 and HPACK (RFC 9113, RFC 7541) by h2spec
//! (https://github.com/summerwind/h2spec), which `BULKHEAD_H2SPEC` names.

use std::process::{Command, Stdio};

use bulkhead_process::Port;
use tokio::net::TcpStream;

use crate::binary::Process;
use crate::client::{Client, get};
use crate::fake::Behaviour;
use crate::tls::{Authority, ONE, write};
use crate::world::{Setup, eventually};

/// Has h2spec ask all that it has to ask of a router with that listener, and says what it did not like.
async fn dislikes(listener: &'static str, over: &[&'static str]) -> Vec<String> {
    let (folder, cells) = Setup { listener, ..Setup::default() }.lay_out().await;
    // Some of it asks for an answer that takes more than one frame.
    cells.iter().for_each(|cell| cell.behave(Behaviour::Say("an answer of more than five bytes")));
    let files = tempfile::tempdir().expect("makes a folder");
    write(&Authority::new().certify("one", &["localhost"]), files.path(), "one");
    let ports = Port::free_pair().expect("two are free");
    let [admin, traffic] = ports.each_ref().map(|port| port.address);
    let router = Command::new(env!("CARGO_BIN_EXE_bulkhead-router"))
        .args(["--router=main", "--listen-ip=127.0.0.1"])
        .arg(format!("--source={}", folder.path().display()))
        .arg(format!("--tls-dir={}", files.path().display()))
        .arg(format!("--admin-address={admin}"))
        .arg(format!("--listen-port=http={}", traffic.port()))
        .stdout(Stdio::null())
        .spawn();
    let _router = Process(router.expect("starts"));
    eventually("it has started", async || TcpStream::connect(admin).await.is_ok()).await;
    let ready = async || Client::connect(admin).await.send(get("/readyz")).await.status == 200;
    eventually("it is ready", ready).await;

    let h2spec = std::env::var_os("BULKHEAD_H2SPEC").expect("BULKHEAD_H2SPEC is the path of h2spec");
    let mut asks = Command::new(h2spec);
    asks.args(["generic", "http2", "hpack", "--strict", "--host=127.0.0.1", "--timeout=10"]);
    asks.arg(format!("--port={}", traffic.port())).args(over);
    let output = tokio::task::spawn_blocking(move || asks.output()).await.expect("ends").expect("starts");
    let report = String::from_utf8_lossy(&output.stdout);
    let told = report.rsplit_once("\n146 tests, ");
    assert!(told.is_some(), "is no report: {report}");
    let (_, told) = told.unwrap_or_default();
    assert!(told.contains(" 0 skipped"), "{told}");
    let failures = report.split_once("Failures:").map_or("", |(_, failures)| failures);
    failures.lines().filter_map(|line| line.trim().strip_prefix("× ")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_a_router_keeps_to_all_of_it() {
    assert_eq!(dislikes(ONE, &["--tls", "--insecure"]).await, Vec::<String>::new());
}

/// Who does not begin with HTTP/2 is taken for a client of HTTP/1.1, and answered there before the connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn in_the_clear_a_router_keeps_to_all_but_the_answer_to_another_protocol() {
    assert_eq!(dislikes("", &[]).await, ["2: Sends invalid connection preface"]);
}
