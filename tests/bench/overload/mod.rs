//! What a router does with more than it can do, and with those who are slow: twice its capacity, heads and bodies that come
//! byte by byte, answers that nobody reads, a cell that hangs, and ten thousand connections on which nothing happens. What is
//! made of the figures is `table`'s.

mod clients;
mod rig;
mod rows;
mod slow;
mod sockets;
mod stage;
mod table;
mod targets;
mod window;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use bulkhead_tests::stall::StallWatch;
use tokio::sync::oneshot;

use crate::lab::kernel::allow_files;
use crate::process::stay_on;
use crate::proxy::LOAD_CORE;
use crate::report::Machine;
use crate::until_signal;

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 250.0;
/// Files that this process or a proxy has open beside connections of clients, those to cells among them.
const OTHER_FILES: u64 = 6_000;

/// What a router does with more than it can do, and with clients and cells that are slow, beside HAProxy.
///
/// Whoever is measured has core 0 to itself, clients and cells share core 1. In every round of `goodput`, as much as it can
/// do is measured in a closed loop of 512 connections, and then half of that, as much, and twice as much is sent in an open
/// one. An answer counts when it is there within 250 ms; a request that comes when all connections are taken is kept back.
/// `slow clients` are 200 at once that send a byte each second of a head or a body, take a KiB each second of a long answer,
/// or nothing. In `hung cell` one of two cells takes connections and reads nothing from some moment on. In `idle connections`
/// each of so many has had one answer. Exit status: 0 when it ran, whatever it found; 2 when a target was missed on a machine
/// that stood still, or on which others were at work.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long each window is.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Connections of the open loop.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=5_000))]
    connections: u32,
    /// Connections that are left idle.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=12_000))]
    idle: u32,
    /// Only rows with this in their names: goodput, slow clients, hung cell, idle connections.
    #[arg(long, value_name = "FILTER", default_value = "")]
    row: String,
    /// The peer: `haproxy`, which is installed with pip on first use, or `none`.
    #[arg(long, default_value = stage::HAPROXY)]
    with: String,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where HAProxy is installed and proxies keep their files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

impl Args {
    fn has_haproxy(&self) -> Result<bool> {
        match self.with.as_str() {
            stage::HAPROXY => Ok(true),
            "none" => Ok(false),
            other => bail!("there is no peer {other:?} here; there is {}, or none", stage::HAPROXY),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before there are other threads: they run where this one does.
    stay_on(LOAD_CORE).context("this bench needs two cores")?;
    args.has_haproxy()?;
    allow_files(u64::from(args.idle.max(args.connections)) + OTHER_FILES)?;
    std::fs::create_dir_all(&args.cache)
        .with_context(|| format!("{} cannot be made", args.cache.display()))?;
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(&args.cache)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, async {
        let (told, found) = oneshot::channel();
        let (args, folder) = (args.clone(), folder.path().to_owned());
        // What it started dies with this process, should that be interrupted.
        std::thread::spawn(move || told.send(bench(&args, &folder)));
        found.await.context("the thread of the load is gone")?
    })
}

fn bench(args: &Args, folder: &Path) -> Result<ExitCode> {
    let watch = StallWatch::start();
    let found = rows::measure(args, folder)?;
    let report = table::report(&found, Machine::stalled(watch.take_ms()));
    report.conclude(args.json, &table::text(&found), NOISE_MS)
}
