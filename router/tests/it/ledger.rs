//! The binary's ledger: what a killed router leaves behind, and a disk that takes nothing more.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use bulkhead_process::Port;
use bulkhead_samples::issuer::Answer as Issues;
use serde_json::Value;
use tempfile::TempDir;

use crate::binary::Process;
use crate::client::{Answer, Client, get};
use crate::fake::{Ask, Behaviour, FakeCell};
use crate::payments::{Running, payment};
use crate::world::{Setup, destination, eventually, rules};

/// A folder with one cell, which pays, its issuer, and where a router is to listen.
struct Scene {
    folder: TempDir,
    _cells: Vec<FakeCell>,
    issuer: Running,
    ledger: TempDir,
    ports: [Port; 2],
}

impl Scene {
    async fn lay_out() -> Self {
        let issuer = Running::start();
        let effects = "http: {}, duplicateCheck: {type: Header, header: idempotency-key}";
        let rule =
            "  - {name: all, restart: {policy: UntilPointOfNoReturn}, groups: [{cells: [{name: a}]}]}\n";
        let setup = Setup {
            cells: vec!["a"],
            policy: rules(rule),
            idempotency: Some("{onRepeat: Conflict}"),
            destinations: vec![("visa", destination("visa", issuer.port.address, effects))],
            ..Setup::default()
        };
        let (folder, cells) = setup.lay_out().await;
        cells[0].behave(Behaviour::Ask(Ask::of("visa")));
        let ledger = tempfile::tempdir().expect("a folder can be made");
        let ports = Port::free_pair().expect("two are free");
        Self { folder, _cells: cells, issuer, ledger, ports }
    }

    fn traffic(&self) -> SocketAddr {
        self.ports[1].address
    }

    async fn router(&self) -> Process {
        let [admin, traffic] = self.ports.each_ref().map(|port| port.address);
        // A file that may not grow is to be an error here, and not a signal.
        let router = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_bulkhead-router")])
            .args(["--router=main", "--listen-ip=127.0.0.1", "--log=warn"])
            .arg(format!("--source={}", self.folder.path().display()))
            .arg(format!("--ledger-dir={}", self.ledger.path().display()))
            .arg(format!("--admin-address={admin}"))
            .arg(format!("--listen-port=http={}", traffic.port()))
            .stdout(Stdio::null())
            .spawn();
        let router = Process(router.expect("starts"));
        let ready = async || {
            let reached = tokio::net::TcpStream::connect(admin).await.is_ok();
            reached && Client::connect(admin).await.send(get("/readyz")).await.status == 200
        };
        eventually("the router is ready", ready).await;
        router
    }

    async fn pay(&self, key: &str) -> Answer {
        Client::connect(self.traffic()).await.send(payment(key)).await
    }

    async fn ledger(&self) -> Value {
        let answer = Client::connect(self.ports[0].address).await.send(get("/v1/ledger")).await;
        serde_json::from_slice(&answer.body).expect("is JSON")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_router_had_sent_is_known_to_the_next_and_never_sent_again() {
    let scene = Scene::lay_out().await;
    let mut router = scene.router().await;
    assert_eq!(scene.pay("1").await.status, 200);
    scene.issuer.behave(|issuing| issuing.answer = Issues::Silent);
    let mut client = Client::connect(scene.traffic()).await;
    tokio::select! {
        _ = client.try_send(payment("2")) => panic!("nobody answers"),
        () = eventually("it is executed", async || scene.issuer.stats().executed == 2) => {}
    }
    router.0.kill().expect("is killed");
    router.0.wait().expect("has ended");
    let _router = scene.router().await;
    assert_eq!(scene.pay("1").await.problem(), (409, "Decided".to_owned()));
    assert_eq!(scene.pay("2").await.problem(), (409, "DecidedUnknown".to_owned()));
    assert_eq!(scene.issuer.stats().received, 2);
    assert_eq!(scene.ledger().await["transactions"].as_array().map(Vec::len), Some(2));
}

/// Bounds the size of every file that the process writes from now on.
fn bound_files(process: &Process, bytes: &str) {
    let bounded = Command::new("prlimit")
        .arg(format!("--pid={}", process.0.id()))
        .arg(format!("--fsize={bytes}:"))
        .status();
    assert!(bounded.expect("util-linux is there").success());
}

fn bytes_in(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("is a folder");
    files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_nothing_more_sheds_what_is_new_and_loses_nothing() {
    let scene = Scene::lay_out().await;
    let router = scene.router().await;
    assert_eq!(scene.pay("1").await.status, 200);
    let before = bytes_in(scene.ledger.path());
    assert!(before > 0, "the first is on the disk");
    bound_files(&router, "0");
    // The first that meets the disk is told to its cell, and those after it to their clients.
    let shed = async || {
        let answer = scene.pay("2").await;
        answer.status == 503 && answer.problem().1 == "LedgerUnavailable"
    };
    eventually("new transactions are shed", shed).await;
    assert_eq!(scene.issuer.stats().received, 1, "nothing goes out that is not on record");
    assert_eq!(scene.pay("1").await.problem(), (409, "Decided".to_owned()));
    bound_files(&router, "unlimited");
    eventually("the disk is back", async || scene.pay("3").await.status == 200).await;
}
