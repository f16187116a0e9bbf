//! One router with much to serve, beside one with little: memory, CPU for each request, what swapping tables does to
//! requests, and how long an edit takes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use nix::unistd::Pid;
use tokio::time::sleep;

use super::cells::{Cells, metric};
use super::objects::{self, FIELD, FIRST, LISTENER, Size};
use crate::lab::client::Client;
use crate::lab::kernel::{cpu_micros, resident};
use crate::lab::ready;
use crate::lab::wire::Request;
use crate::member::Member;
use crate::proxy::PROXY_CORE;
use crate::proxy::clients::Load;
use crate::proxy::shape::{Template, Way};
use crate::proxy::window::Window;
use crate::router;

/// How long a router is left alone before its memory is read, and for how long its CPU at rest is counted.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two edits while requests are timed.
const EDIT_EVERY: Duration = Duration::from_millis(300);
/// Edits that are waited for one by one.
const EDITS: u64 = 10;
/// Connections of the closed loop.
const CONNECTIONS: usize = 32;
/// How long an edit may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One router and what it serves.
pub(super) struct Subject {
    size: Size,
    folder: PathBuf,
    address: SocketAddr,
    admin: SocketAddr,
    pid: Pid,
    /// Of edits, so that none is like another.
    edits: u64,
    _member: Member,
    /// Bytes in memory before any load.
    idle: u64,
    /// Cores that it keeps busy without requests: it hears its cells, and looks at its folder.
    rest: f64,
}

/// What came of one size.
pub(super) struct Measured {
    pub(super) size: Size,
    pub(super) idle: u64,
    pub(super) rest: f64,
    /// Of the small router.
    pub(super) small_rest: f64,
    /// Bytes in memory after the load and the edits.
    pub(super) resident: u64,
    /// One for each round: of the small router, and of this one.
    pub(super) cost: Vec<[Window; 2]>,
    /// One for each round: at rest, and while tables are swapped.
    pub(super) swaps: Vec<[Window; 2]>,
    /// Tables that were put in force in a round's window, at least.
    pub(super) tables: u64,
    /// Seconds to make one table, on average.
    pub(super) build_seconds: f64,
    /// Milliseconds from the edit of a file to the first request that it decides, sorted.
    pub(super) edits_ms: Vec<f64>,
}

/// How long and how hard.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub(super) rounds: u32,
    pub(super) window: Duration,
    /// Requests per second while tables are swapped.
    pub(super) per_second: u32,
}

impl Subject {
    /// Starts it and waits until it hears all of its cells.
    pub(super) async fn start(size: Size, cells: &Cells, heard: usize, folder: &Path) -> Result<Self> {
        let name = format!("router-{}-{}", size.rules, size.cells);
        let folder = folder.join(&name);
        objects::write(&folder, size, &cells.endpoints())?;
        let router::Router { mut member, listeners: [address], admin } =
            router::start(&name, &folder, [LISTENER], &["--threads=1"], Some(PROXY_CORE))?;
        ready(&mut member, address, &Request::get("/").with(FIRST)).await?;
        cells.streams.opened(heard + size.cells).await?;
        sleep(SETTLE).await;
        let pid = member.pid()?;
        let (idle, before, clock) = (resident(pid)?, cpu_micros(pid)?, Monotonic::start());
        sleep(SETTLE).await;
        let rest = (cpu_micros(pid)? - before) as f64 / clock.micros() as f64;
        Ok(Self { size, folder, address, admin, pid, edits: 0, _member: member, idle, rest })
    }

    fn load(&self, way: Way, per_second: u32) -> Load {
        let template = Template::of_rules(FIELD, self.size.rules as u64);
        Load { to: self.address, template, way, per_second, tls: None }
    }

    async fn window(&self, cells: &Cells, way: Way, effort: Effort) -> Result<Window> {
        let load = self.load(way, effort.per_second);
        let window = cells.rig.measure(load, self.pid, effort.window).await;
        window.with_context(|| format!("with {}", self.size.text()))
    }

    /// The same while one policy is edited again and again; and how many tables came of it.
    async fn while_edited(&mut self, cells: &Cells, effort: Effort) -> Result<(Window, u64)> {
        let before = self.metric(TABLES).await?;
        let load = self.load(Way::Open, effort.per_second);
        let measured = cells.rig.measure(load, self.pid, effort.window);
        let window = tokio::select! {
            window = measured => window?,
            failed = self.edit_forever() => return failed,
        };
        Ok((window, (self.metric(TABLES).await? - before) as u64))
    }

    async fn edit_forever<T>(&mut self) -> Result<T> {
        loop {
            self.edit()?;
            sleep(EDIT_EVERY).await;
        }
    }

    fn edit(&mut self) -> Result<()> {
        self.edits += 1;
        objects::edit(&self.folder, self.size, self.edits)
    }

    /// Milliseconds from an edit to the first request that is decided by it.
    async fn edited(&mut self) -> Result<f64> {
        let (clock, mut client) = (Monotonic::start(), Client::new(self.address));
        self.edit()?;
        loop {
            let answer = client.exchange(&Request::get("/").keyed(true), self.edits).await?;
            if answer.status() == Some(200) {
                return Ok(clock.micros() as f64 / 1e3);
            }
            ensure!(clock.elapsed() < PATIENCE, "an edit is not served after {PATIENCE:?}: {answer}");
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn metric(&self, name: &str) -> Result<f64> {
        let answer = Client::new(self.admin).exchange(&Request::get("/metrics"), 0).await?;
        metric(std::str::from_utf8(&answer.body)?, name)
    }

    /// Measures it beside `small`, in turn.
    pub(super) async fn measure(mut self, small: &Self, cells: &Cells, effort: Effort) -> Result<Measured> {
        let (mut cost, mut swaps, mut tables) = (Vec::new(), Vec::new(), u64::MAX);
        for round in 0..effort.rounds {
            eprintln!("{}: round {} of {}", self.size.text(), round + 1, effort.rounds);
            let closed = Way::Kept(CONNECTIONS);
            // Nobody comes after the other one every time.
            let pair = if round % 2 == 0 {
                let first = small.window(cells, closed, effort).await?;
                [first, self.window(cells, closed, effort).await?]
            } else {
                let first = self.window(cells, closed, effort).await?;
                [small.window(cells, closed, effort).await?, first]
            };
            cost.push(pair);
            let at_rest = self.window(cells, Way::Open, effort).await?;
            let (swapped, made) = self.while_edited(cells, effort).await?;
            tables = tables.min(made);
            swaps.push([at_rest, swapped]);
        }
        let mut edits_ms = Vec::new();
        for _ in 0..EDITS {
            edits_ms.push(self.edited().await?);
        }
        edits_ms.sort_unstable_by(f64::total_cmp);
        let (seconds, builds) = (self.metric(BUILD_SECONDS).await?, self.metric(BUILDS).await?);
        Ok(Measured {
            size: self.size,
            idle: self.idle,
            rest: self.rest,
            small_rest: small.rest,
            resident: resident(self.pid)?,
            cost,
            swaps,
            tables,
            build_seconds: seconds / builds.max(1.0),
            edits_ms,
        })
    }
}

const TABLES: &str = "bulkhead_router_tables_total";
const BUILD_SECONDS: &str = "bulkhead_router_table_build_seconds_sum";
const BUILDS: &str = "bulkhead_router_table_build_seconds_count";
