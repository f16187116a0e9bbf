//! `bulkhead demo`: three cells, a router and a little load on this machine, without a cluster. Each part is the real
//! one; only Kubernetes is a folder of YAML.

mod cell;
mod check;
mod stage;
mod table;

use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::Shutdown;
use bulkhead_samples::load::{Live, Load, Plan};
use clap::Args;
use http::HeaderName;
use tokio::task::JoinHandle;

pub(crate) use cell::{CellArgs, run as run_cell};
use stage::Stage;

/// Requests per second when none are asked for: enough to see shares, little enough for a laptop.
const RATE: u32 = 200;

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Drain a cell, kill a cell and bring it back, print what happened, and exit with 1 when a request was lost or a
    /// change came late.
    #[arg(long)]
    check: bool,
    /// One JSON object instead of text; for `--check`, or once a second for the live table.
    #[arg(long)]
    json: bool,
    /// GETs per second.
    #[arg(long, default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
}

/// Runs until it is interrupted, or until the check is done. `Ok(false)` is a check that failed.
///
/// # Errors
/// When the parts cannot be started.
pub(crate) async fn run(arguments: DemoArgs) -> Result<bool> {
    let shutdown = Shutdown::on_signals().context("signals cannot be caught")?;
    let mut stage = Stage::set()?;
    wait_until_in(&mut stage, &shutdown).await?;
    let traffic = Traffic::start(&stage, arguments.rate);
    let good = if arguments.check {
        check::run(&mut stage, &traffic, arguments.json).await
    } else {
        table::run(&mut stage, &traffic, arguments.json, &shutdown).await.map(|()| true)
    };
    traffic.stop().await;
    good
}

/// The router listens and every cell is in.
async fn wait_until_in(stage: &mut Stage, shutdown: &Shutdown) -> Result<()> {
    for _ in 0..200 {
        stage.router_runs()?;
        let all_in = stage.serving().is_ok_and(|serving| {
            serving.cells.len() == stage::CELLS.len() && serving.cells.values().all(|cell| cell.r#in)
        });
        if (all_in && stage.router_is_ready()) || shutdown.is_requested() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    anyhow::bail!(
        "the router is not ready, or its cells are not in, after 10 s; logs are in {}",
        stage.folder().display()
    )
}

/// The load, and its numbers while it runs.
struct Traffic {
    live: Live,
    stop: Shutdown,
    task: JoinHandle<()>,
}

impl Traffic {
    fn start(stage: &Stage, rate: u32) -> Self {
        let load = Load::new(Plan {
            targets: vec![stage.listener()],
            key_header: Some(HeaderName::from_static("x-account")),
            rate,
            connections: 16,
            duration: None,
            ..Plan::default()
        });
        let (live, stop) = (load.live(), Shutdown::new());
        let until = stop.clone();
        let task = tokio::spawn(async move { drop(load.run(until).await) });
        Self { live, stop, task }
    }

    async fn stop(self) {
        self.stop.trigger();
        // A load that broke has said so in the numbers.
        let _ = self.task.await;
    }
}
