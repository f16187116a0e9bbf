//! The binary as it is shipped, in a process of its own.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use bulkhead_process::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, get};
use crate::world::{Setup, eventually};

/// Ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_costs_no_request() {
    let (folder, _cells) = Setup::default().lay_out().await;
    let ports = Port::free_pair().expect("two are free");
    let [admin, traffic] = ports.each_ref().map(|port| port.address);
    let router = Command::new(env!("CARGO_BIN_EXE_bulkhead-router"))
        .args(["--router=main", "--listen-ip=127.0.0.1", "--log=debug", "--log-format=json"])
        .arg(format!("--source={}", folder.path().display()))
        .arg(format!("--admin-address={admin}"))
        .arg(format!("--listen-port=http={}", traffic.port()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut router = Process(router.expect("starts"));
    eventually("it has started", async || TcpStream::connect(admin).await.is_ok()).await;
    let ready = async || Client::connect(admin).await.send(get("/readyz")).await.status == 200;
    eventually("it is ready", ready).await;
    let mut client = Client::connect(traffic).await;
    for _ in 0..1_000 {
        // Each of these is a line of the log.
        let mut stream = TcpStream::connect(traffic).await.expect("connects");
        stream.write_all(b"no HTTP\r\n\r\n").await.expect("writes");
        stream.read_to_end(&mut Vec::new()).await.expect("reads");
        assert_eq!(client.send(get("/")).await.status, 200);
    }
    router.0.kill().expect("is killed");
    let mut log = String::new();
    let mut stdout = router.0.stdout.take().expect("is a pipe");
    stdout.read_to_string(&mut log).expect("is text");
    let lines = log.matches("a client's connection ended with an error").count();
    assert!(lines > 0 && lines < 1_000, "the pipe was never full: it took {lines} lines");
}
