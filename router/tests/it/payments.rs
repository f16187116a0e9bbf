//! Cells that pay through an issuer: what the tests of the way out, of callers and of the ledger begin with.

use bulkhead_process::{Port, Shutdown};
use bulkhead_router::BeforeSend;
use bulkhead_samples::issuer::{self, Behaviour, Issuer, Stats};
use http::Request;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Answer, Body, post};
use crate::fake::{Ask, Behaviour as Cell};
use crate::world::{Setup, World, destination, eventually, rules};

pub(crate) const EFFECTS: &str =
    "http: {path: /authorise}, duplicateCheck: {type: Header, header: idempotency-key}";

/// Without effects; the issuer wants a key all the same.
pub(crate) const SCORE: &str =
    "http: {}, pointOfNoReturn: false, duplicateCheck: {type: Header, header: idempotency-key}";

/// An issuer that takes messages until the test ends. Without a delay, and with a duplicate check.
pub(crate) struct Running {
    pub(crate) issuer: Issuer,
    pub(crate) port: Port,
    stop: Shutdown,
}

impl Running {
    pub(crate) fn start() -> Self {
        let port = Port::free().expect("one is free");
        let behaviour = Behaviour { delay_ms: 0, duplicate_check: true, ..Behaviour::default() };
        let issuer = Issuer::new(issuer::Config { behaviour, ..issuer::Config::default() });
        let stop = Shutdown::new();
        tokio::spawn(issuer.clone().serve(port.address, stop.clone()));
        Self { issuer, port, stop }
    }

    pub(crate) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        let mut behaviour = self.issuer.behaviour();
        change(&mut behaviour);
        self.issuer.behave(behaviour);
    }

    pub(crate) fn stats(&self) -> Stats {
        self.issuer.book().stats()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}

/// Cells a, which gets everything, and b, a router and an issuer.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) issuer: Running,
    _ledger: TempDir,
}

pub(crate) struct Props {
    pub(crate) restart: &'static str,
    pub(crate) spec: &'static str,
    pub(crate) limits: &'static str,
    pub(crate) before_send: BeforeSend,
}

impl Default for Props {
    fn default() -> Self {
        Self { restart: "", spec: EFFECTS, limits: "{}", before_send: BeforeSend::default() }
    }
}

impl Props {
    pub(crate) async fn start(self) -> Scene {
        let issuer = Running::start();
        let ledger = tempfile::tempdir().expect("a folder can be made");
        let restart = format!("policy: UntilPointOfNoReturn, {}", self.restart);
        let text = format!(
            "  - {{name: all, restart: {{{restart}}}, groups: [{{cells: [{{name: a}}]}}, {{cells: [{{name: b}}]}}]}}\n"
        );
        let world = Setup {
            policy: rules(&text),
            idempotency: Some("{onRepeat: Conflict}"),
            threads: 1,
            ledger_dir: Some(ledger.path().to_owned()),
            before_send: self.before_send,
            limits: self.limits,
            destinations: vec![
                ("visa", destination("visa", issuer.port.address, self.spec)),
                ("score", destination("score", issuer.port.address, SCORE)),
            ],
            ..Setup::default()
        }
        .start()
        .await;
        world.cells.iter().for_each(|cell| cell.behave(Cell::Ask(Ask::of("visa"))));
        Scene { world, issuer, _ledger: ledger }
    }
}

impl Scene {
    pub(crate) async fn start() -> Self {
        Props::default().start().await
    }

    pub(crate) fn asks(&self, cell: usize, ask: Ask) {
        self.world.cells[cell].behave(Cell::Ask(ask));
    }

    pub(crate) async fn pay(&self, key: &str) -> Answer {
        self.world.client().await.send(payment(key)).await
    }

    pub(crate) fn executed(&self) -> usize {
        self.issuer.issuer.book().executions().values().map(|entry| entry.executed as usize).sum()
    }

    pub(crate) fn received(&self) -> u64 {
        self.issuer.stats().received
    }

    /// Standings of all transactions that the ledger holds.
    pub(crate) async fn standings(&self) -> Vec<String> {
        let answer = self.world.admin("/v1/ledger").await;
        let list: Value = serde_json::from_slice(&answer.body).expect("is JSON");
        let transactions = list["transactions"].as_array().cloned().unwrap_or_default();
        transactions.iter().map(|one| one["standing"].as_str().unwrap_or("none").to_owned()).collect()
    }

    pub(crate) async fn until_standing(&self, standing: &str) {
        let stands = async || self.standings().await == [standing];
        eventually(&format!("the transaction is {standing}"), stands).await;
    }
}

pub(crate) fn payment(key: &str) -> Request<Body> {
    let mut request = post("/pay", "42");
    request.headers_mut().insert("idempotency-key", key.parse().expect("a legal value"));
    request
}

pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}
