//! What the benches of the request path have in common: a router process, cells that cost next to nothing, a closed loop of
//! requests, and what the kernel says of all of it. What is asked for, and what is made of the figures, is each bench's.

pub(crate) mod cell;
pub(crate) mod client;
pub(crate) mod health;
pub(crate) mod kernel;
pub(crate) mod serving;
pub(crate) mod spell;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::member::Member;
use crate::router;
use cell::Cells;
use client::Client;
use wire::Request;

/// How long everything may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers in a row after which a router is taken for ready: each of its cells has had its turn.
const WARM: u64 = 50;

/// Cells and a router before them. All of it is gone when this is dropped.
pub(crate) struct Lab<const N: usize> {
    pub(crate) cells: Cells,
    router: Member,
    /// Where each listener of the router takes requests.
    pub(crate) listeners: [SocketAddr; N],
    /// Last, because what is in it is used until the processes are gone.
    _folder: TempDir,
}

impl<const N: usize> Lab<N> {
    /// Starts as many cells as there are names, and a router that serves them and `objects`, each of which is a name of a
    /// file and the YAML in it. Its files lie in `cache`.
    pub(crate) async fn start(
        cache: &Path,
        names: &[&str],
        objects: &[(&str, String)],
        listeners: [&str; N],
        threads: Option<u32>,
    ) -> Result<Self> {
        std::fs::create_dir_all(cache).with_context(|| format!("{} cannot be made", cache.display()))?;
        let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(cache);
        let folder = folder.with_context(|| format!("no folder in {}", cache.display()))?;
        let cells = Cells::start(names).await?;
        for (name, endpoint) in names.iter().zip(cells.addresses()) {
            router::write(folder.path(), name, &cell_yaml(name, endpoint))?;
        }
        for (name, yaml) in objects {
            router::write(folder.path(), name, yaml)?;
        }
        let threads = threads.map(|threads| format!("--threads={threads}"));
        let more = Vec::from_iter(threads.as_deref());
        let router::Router { member, listeners, .. } =
            router::start("router", folder.path(), listeners, &more, None)?;
        let mut lab = Self { cells, router: member, listeners, _folder: folder };
        for address in lab.listeners {
            ready(&mut lab.router, address, &Request::get("/")).await?;
        }
        Ok(lab)
    }

    /// The router's process.
    pub(crate) fn pid(&self) -> Result<Pid> {
        self.router.pid()
    }
}

/// Waits until whoever takes requests there answers one such request after the other.
///
/// # Errors
/// When it ended, or does not answer in time.
pub(crate) async fn ready(member: &mut Member, address: SocketAddr, request: &Request) -> Result<()> {
    let (clock, mut client, mut answered) = (Monotonic::start(), Client::new(address), 0);
    while answered < WARM {
        member.lives()?;
        match client.exchange(request, 0).await {
            Ok(answer) if answer.status() == Some(200) => answered += 1,
            unanswered => {
                let last = unanswered.map(|answer| answer.to_string());
                ensure!(
                    clock.elapsed() < PATIENCE,
                    "{} is not ready after {PATIENCE:?}; the last answer: {last:?}",
                    member.name
                );
                answered = 0;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    Ok(())
}

/// A policy of one rule, which sends everything of a listener to these cells in equal parts.
pub(crate) fn policy(listener: &str, cells: &[&str], restart: &str) -> String {
    let cells: Vec<String> = cells.iter().map(|name| format!("{{name: {name}, weight: 100}}")).collect();
    let cells = cells.join(", ");
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: {listener}, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: {listener}}}]
  rules:
  - name: everything
    groups:
    - cells: [{cells}]
    restart: {restart}
"
    )
}

/// A cell that is there already.
pub(crate) fn cell_yaml(name: &str, endpoint: SocketAddr) -> String {
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {{name: {name}}}
spec: {{weight: 100, endpoints: [\"{endpoint}\"]}}
"
    )
}
