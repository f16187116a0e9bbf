//! What the demo runs on: a folder of YAML, a router that watches it, and three cells, each a process of its own. What
//! is done with them is `check`'s and the person's.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_process::Port;
use bulkhead_protocol::Serving;
use tempfile::TempDir;

/// The cells' names: two share the traffic, the third stands by.
pub(super) const CELLS: [&str; 3] = ["payments-a", "payments-b", "payments-c"];

/// How long the router's admin server may take to answer.
const ADMIN_PATIENCE: Duration = Duration::from_secs(1);

/// The running processes and their folder; all of it is gone when this is dropped.
pub(super) struct Stage {
    folder: TempDir,
    program: PathBuf,
    router: Process,
    cells: BTreeMap<&'static str, CellProcess>,
    listener: Port,
    admin: Port,
}

/// Its ports are kept while it is dead too.
struct CellProcess {
    ports: [Port; 2],
    process: Process,
}

/// A child that does not outlive its parent's interest.
struct Process(Child);

impl Stage {
    /// Writes the YAML and starts everything; it does not wait until they are ready.
    pub(super) fn set() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bulkhead-demo-")
            .tempdir()
            .context("no folder for the demo's files")?;
        let program = std::env::current_exe().context("the path of this program cannot be told")?;
        let [listener, admin] = [free_port()?, free_port()?];
        fs::write(folder.path().join("router.yaml"), router_yaml(listener.address.port()))
            .context("the Router cannot be written")?;
        fs::write(folder.path().join("policy.yaml"), POLICY)
            .context("the RoutingPolicy cannot be written")?;
        let mut cells = BTreeMap::new();
        for name in CELLS {
            let ports = Port::free_pair().context("no free ports on loopback")?;
            let port = ports[0].address.port();
            fs::write(cell_path(folder.path(), name), cell_yaml(name, port, 100))
                .with_context(|| format!("Cell {name} cannot be written"))?;
            cells.insert(
                name,
                CellProcess { ports, process: start_cell(&program, name, port, folder.path())? },
            );
        }
        let router = start(
            Command::new(&program)
                .args(["router", "--router", "main", "--listen-ip", "127.0.0.1"])
                .arg("--source")
                .arg(folder.path())
                .args(["--admin-address", &admin.address.to_string()]),
            &folder.path().join("router.log"),
        )?;
        Ok(Self { folder, program, router, cells, listener, admin })
    }

    /// Where the router takes requests.
    pub(super) fn listener(&self) -> SocketAddr {
        self.listener.address
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of a Cell, for a person to edit.
    pub(super) fn cell_file(&self, name: &str) -> PathBuf {
        cell_path(self.folder(), name)
    }

    /// Process ids: the router's, then the cells' in the order of their names.
    pub(super) fn pids(&self) -> (u32, Vec<(&'static str, u32)>) {
        (self.router.0.id(), self.cells.iter().map(|(name, cell)| (*name, cell.process.0.id())).collect())
    }

    /// Does what a person does with an editor.
    pub(super) fn set_weight(&self, name: &'static str, weight: u32) -> Result<()> {
        let cell = self.cells.get(name).with_context(|| format!("there is no cell {name}"))?;
        // Written beside and renamed, so that the router never reads half a file.
        let (path, draft) = (self.cell_file(name), self.folder().join("draft"));
        fs::write(&draft, cell_yaml(name, cell.port(), weight))?;
        fs::rename(&draft, &path).with_context(|| format!("{} cannot be replaced", path.display()))
    }

    /// SIGKILL: no goodbye.
    pub(super) fn kill(&mut self, name: &'static str) -> Result<()> {
        let cell = self.cells.get_mut(name).with_context(|| format!("there is no cell {name}"))?;
        cell.process.0.kill().with_context(|| format!("cell {name} cannot be killed"))?;
        cell.process.0.wait().map(drop).with_context(|| format!("cell {name} does not end"))
    }

    /// Starts a killed cell again, on the same port.
    pub(super) fn revive(&mut self, name: &'static str) -> Result<()> {
        let cell = self.cells.get_mut(name).with_context(|| format!("there is no cell {name}"))?;
        cell.process = start_cell(&self.program, name, cell.port(), self.folder.path())?;
        Ok(())
    }

    /// Cells whose process has ended, to be started again.
    pub(super) fn dead(&mut self) -> Vec<&'static str> {
        let mut dead = Vec::new();
        for (name, cell) in &mut self.cells {
            if !matches!(cell.process.0.try_wait(), Ok(None)) {
                dead.push(*name);
            }
        }
        dead
    }

    /// What the router serves.
    pub(super) fn serving(&self) -> Result<Serving> {
        let body = get(self.admin.address, bulkhead_protocol::serving::PATH).with_context(|| {
            format!("the router does not answer; its log is {}", self.folder().join("router.log").display())
        })?;
        serde_json::from_str(&body).context("the router's answer is no JSON")
    }

    /// Whether the router's listener is open. It opens only after the cells have spoken.
    pub(super) fn router_is_ready(&self) -> bool {
        get(self.admin.address, "/readyz").is_ok()
    }

    /// Fails with the router's last words when it is gone.
    pub(super) fn router_runs(&mut self) -> Result<()> {
        if let Ok(Some(status)) = self.router.0.try_wait() {
            let log = fs::read_to_string(self.folder().join("router.log")).unwrap_or_default();
            bail!("the router ended ({status}): {}", log.lines().last().unwrap_or("it said nothing"));
        }
        Ok(())
    }
}

impl CellProcess {
    /// Of its traffic.
    fn port(&self) -> u16 {
        self.ports[0].address.port()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_cell(program: &Path, name: &str, port: u16, folder: &Path) -> Result<Process> {
    start(
        Command::new(program).args(["demo-cell", "--cell", name, "--listen", &format!("127.0.0.1:{port}")]),
        &folder.join(format!("{name}.log")),
    )
}

fn start(command: &mut Command, log: &Path) -> Result<Process> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("{} cannot be written", log.display()))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("the log cannot be shared")?)
        .stderr(log)
        .spawn()
        .context("the demo cannot start itself once more")?;
    Ok(Process(child))
}

fn free_port() -> Result<Port> {
    Port::free().context("no free port on loopback")
}

fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ADMIN_PATIENCE)?;
    stream.set_read_timeout(Some(ADMIN_PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "answered {}", head.lines().next().unwrap_or_default());
    Ok(body.to_owned())
}

fn cell_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.yaml"))
}

fn router_yaml(port: u16) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  drainTimeout: 1s
  listeners:
  - {{name: http, port: {port}, explain: true}}
"
    )
}

fn cell_yaml(name: &str, port: u16, weight: u32) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {{name: {name}}}
spec:
  weight: {weight}   # percent of the share that the policy gives it; 0 drains it. Save, and watch the table.
  endpoints: [\"127.0.0.1:{port}\"]
"
    )
}

const POLICY: &str = "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: payments, namespace: default}
spec:
  parentRefs: [{router: main, listener: http}]
  rules:
  - name: everything
    key: {header: x-account}   # the same account goes to the same cell
    groups:
    - cells: [{name: payments-a, weight: 70}, {name: payments-b, weight: 30}]
    - cells: [{name: payments-c}]   # takes over when no cell of the first group is in
    restart: {maxAttempts: 3, perAttempt: 1s, deadline: 3s}
    failback: {holdDown: 1s, steps: [5, 25, 50, 100], interval: 1s}
";
