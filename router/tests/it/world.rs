//! Cells, a folder of YAML and a router, with what tests ask of them.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_process::{Monotonic, Shutdown, clock};
use bulkhead_protocol::Serving;
use bulkhead_router::{BeforeSend, Config, Running, Source, start};
use k8s_openapi::jiff::Timestamp;
use tempfile::TempDir;

use crate::client::{Answer, Client, get};
use crate::fake::FakeCell;

/// How long something that must come may take. Long enough for a machine that is busy with other things; what a test is
/// about has a bound of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Its drain lasts longer than any test waits.
pub(crate) const ROUTER: &str = "apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {name: main}
spec:
  drainTimeout: 5m
  listeners:
  - {name: http, port: 8080, explain: true, limits: LIMITS}
";

/// A running world.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) cells: Vec<FakeCell>,
    pub(crate) router: Running,
    pub(crate) shutdown: Shutdown,
    pub(crate) address: SocketAddr,
}

/// How a world begins.
pub(crate) struct Setup {
    pub(crate) cells: Vec<&'static str>,
    /// YAML of the policies.
    pub(crate) policy: String,
    pub(crate) limits: &'static str,
    /// How the listener takes clients' keys, in YAML.
    pub(crate) idempotency: Option<&'static str>,
    /// What else the listener has, in YAML.
    pub(crate) listener: &'static str,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) table_file: Option<PathBuf>,
    pub(crate) ledger_dir: Option<PathBuf>,
    pub(crate) before_send: BeforeSend,
    /// Destinations and their names, which every cell may reach; in YAML.
    pub(crate) destinations: Vec<(&'static str, String)>,
    pub(crate) threads: usize,
    pub(crate) drain_delay: Duration,
}

/// A policy of one rule whose groups are given in YAML.
pub(crate) fn policy(groups: &str) -> String {
    rules(&format!("  - {{name: all, groups: {groups}}}\n"))
}

/// A policy with these rules, in YAML.
pub(crate) fn rules(rules: &str) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: shop, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: http}}]
  rules:
{rules}"
    )
}

/// Both cells of the same weight in one group.
pub(crate) fn even() -> String {
    policy("[{cells: [{name: a, weight: 50}, {name: b, weight: 50}]}]")
}

pub(crate) fn cell(name: &str, weight: u32, address: SocketAddr) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {{name: {name}}}
spec: {{weight: {weight}, endpoints: ['{address}']}}
"
    )
}

/// A Destination with effects that checks duplicates, unless `spec` says otherwise.
pub(crate) fn destination(name: &str, address: SocketAddr, spec: &str) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: Destination
metadata: {{name: {name}}}
spec: {{endpoints: ['{address}'], {spec}}}
"
    )
}

/// A TrafficShift that holds for as long as given from now on; `what` is what it shifts, in YAML.
pub(crate) fn shift(what: &str, lasts: Duration) -> String {
    let end = i64::try_from(clock::now_unix_millis()).expect("fits") + lasts.as_millis() as i64;
    let end = Timestamp::from_millisecond(end).expect("is a time");
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: TrafficShift
metadata: {{name: shift}}
spec: {{{what}, reason: a test, expiresAt: '{end}'}}
"
    )
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cells: vec!["a", "b"],
            policy: even(),
            limits: "{}",
            idempotency: None,
            listener: "",
            tls_dir: None,
            table_file: None,
            ledger_dir: None,
            before_send: BeforeSend::default(),
            destinations: Vec::new(),
            threads: 2,
            drain_delay: Duration::ZERO,
        }
    }
}

impl Setup {
    /// Starts the cells and writes the folder, without a router.
    pub(crate) async fn lay_out(&self) -> (TempDir, Vec<FakeCell>) {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let mut cells = Vec::new();
        for name in &self.cells {
            cells.push(FakeCell::start(name).await);
        }
        let keys = self.idempotency.map(|keys| format!(", idempotency: {keys}")).unwrap_or_default();
        let more = if self.listener.is_empty() { String::new() } else { format!(", {}", self.listener) };
        let router = ROUTER.replace("LIMITS", &format!("{}{keys}{more}", self.limits));
        fs::write(folder.path().join("router.yaml"), router).expect("is written");
        fs::write(folder.path().join("policy.yaml"), &self.policy).expect("is written");
        for (name, text) in &self.destinations {
            fs::write(folder.path().join(format!("destination-{name}.yaml")), text).expect("is written");
        }
        for fake in &cells {
            let names: Vec<&str> = self.destinations.iter().map(|(name, _)| *name).collect();
            let reaches = format!("{{destinations: [{}], weight", names.join(", "));
            let text = cell(fake.name(), 100, fake.address).replace("{weight", &reaches);
            fs::write(folder.path().join(format!("cell-{}.yaml", fake.name())), text).expect("is written");
        }
        (folder, cells)
    }

    pub(crate) async fn start(self) -> World {
        let (folder, cells) = self.lay_out().await;
        let mut config = Config::local("main", "http", Source::Folder(folder.path().to_owned()));
        config.threads = NonZeroUsize::new(self.threads);
        config.tls_dir = self.tls_dir;
        config.table_file = self.table_file;
        config.ledger_dir = self.ledger_dir;
        config.before_send = self.before_send;
        config.drain_delay = self.drain_delay;
        let shutdown = Shutdown::new();
        let router = start(config, shutdown.clone()).await.expect("the router starts");
        let address = address_of(&router, "http").await;
        let world = World { folder, cells, router, shutdown, address };
        eventually("the router is ready", async || world.is_ready().await).await;
        world
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        Setup::default().start().await
    }

    /// Cells by the order in which they were set up.
    pub(crate) fn hits(&self) -> Vec<u64> {
        self.cells.iter().map(FakeCell::hits).collect()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        // Whole at once, as editors and ConfigMaps do it.
        let beside = self.folder.path().join(format!(".{file}"));
        fs::write(&beside, text).expect("is written");
        fs::rename(&beside, self.folder.path().join(file)).expect("takes its name");
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.folder.path().join(file)).expect("is there");
    }

    pub(crate) fn set_weight(&self, place: usize, weight: u32) {
        let fake = &self.cells[place];
        self.write(&format!("cell-{}.yaml", fake.name()), &cell(fake.name(), weight, fake.address));
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    pub(crate) async fn admin(&self, path: &str) -> Answer {
        Client::connect(self.router.admin_address()).await.send(get(path)).await
    }

    pub(crate) async fn is_ready(&self) -> bool {
        self.admin("/readyz").await.status == 200
    }

    pub(crate) async fn serving(&self) -> Serving {
        serde_json::from_slice(&self.admin("/v1/serving").await.body).expect("is the state of a router")
    }

    pub(crate) async fn metrics(&self) -> String {
        String::from_utf8_lossy(&self.admin("/metrics").await.body).into_owned()
    }

    /// Waits until the router gives the cell that share of the one rule, in parts per million.
    pub(crate) async fn until_share(&self, cell: &str, ppm: u32) {
        let has = async || {
            let shares = self.serving().await.shares;
            shares.get("default/shop/all").and_then(|shares| shares.get(cell)) == Some(&ppm)
        };
        eventually(&format!("{cell} has {ppm} parts per million"), has).await;
    }

    /// Waits until the router serves that many generations of the object.
    pub(crate) async fn serves(&self, object: &str, generation: i64) {
        let served = async || {
            let serving = self.serving().await;
            serving.objects.get(object).is_some_and(|version| version.generation >= generation)
        };
        eventually(&format!("generation {generation} of {object} is served"), served).await;
    }

    /// Waits until the router has the cell in or out.
    pub(crate) async fn until_in(&self, cell: &str, wanted: bool) {
        let stands = async || self.serving().await.cells.get(cell).is_some_and(|cell| cell.r#in == wanted);
        eventually(&format!("{cell} is {}", if wanted { "in" } else { "out" }), stands).await;
    }

    /// Waits until the router has this word for how the cell is.
    pub(crate) async fn until_reason(&self, cell: &str, reason: &str) {
        let told = async || self.serving().await.cells.get(cell).is_some_and(|cell| cell.reason == reason);
        eventually(&format!("{cell} is {reason}"), told).await;
    }

    /// Sends that many GETs over one connection, all of which must be 200, and counts who answered.
    pub(crate) async fn spread(&self, count: usize) -> std::collections::BTreeMap<String, usize> {
        let mut client = self.client().await;
        let mut by_cell = std::collections::BTreeMap::new();
        for number in 0..count {
            let answer = client.send(get(&format!("/{number}"))).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            *by_cell.entry(answer.cell().to_owned()).or_default() += 1;
        }
        by_cell
    }
}

/// Where that listener of the router is, once it is open.
pub(crate) async fn address_of(router: &Running, listener: &str) -> SocketAddr {
    let opens = tokio::time::timeout(PATIENCE, router.address(listener)).await;
    opens.expect("the listener opens in time").expect("the router runs")
}

/// Waits for something that must come true, and says what did not.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let clock = Monotonic::start();
    while !holds().await {
        assert!(clock.elapsed() < PATIENCE, "it did not come true within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A file that takes and gives nothing until somebody is at its other end, as on a disk that hangs.
pub(crate) fn hanging_file(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo is there");
    assert!(made.success(), "{}", path.display());
}

/// A list of YAML documents.
pub(crate) fn documents(texts: &[String]) -> String {
    texts.iter().fold(String::new(), |mut all, text| {
        let _ = write!(all, "---\n{text}");
        all
    })
}
