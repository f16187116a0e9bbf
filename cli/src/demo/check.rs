//! `bulkhead demo --check`: does what the demo invites a person to do, and says whether anything was lost or late.

use std::time::Duration;

use anyhow::{Result, bail};
use bulkhead_process::Monotonic;
use bulkhead_process::clock::now_unix_millis;
use bulkhead_samples::load::Tally;
use bulkhead_samples::load::histogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use super::Traffic;
use super::stage::{CELLS, Stage};
use super::table::millis;

/// From the saved file to the last new request.
const DRAIN_MS: u64 = 250;
/// From SIGKILL to the moment when the router has the cell out.
const DEAD_MS: u64 = 1_000;

/// One promise and what became of it.
#[derive(Serialize)]
struct Target {
    name: &'static str,
    /// A number is the most that is allowed.
    wanted: Value,
    got: Value,
    ok: bool,
}

impl Target {
    fn at_most(name: &'static str, wanted: u64, got: u64) -> Self {
        Self { name, wanted: wanted.into(), got: got.into(), ok: got <= wanted }
    }

    fn line(&self) -> String {
        let mark = if self.ok { "ok  " } else { "FAIL" };
        let most = if self.wanted.is_number() { "at most " } else { "" };
        format!("{mark} {}: {} (wanted {most}{})", self.name, self.got, self.wanted)
    }
}

/// Runs all of it and prints what was found; false when something is not what was promised.
pub(super) async fn run(stage: &mut Stage, traffic: &Traffic, json: bool) -> Result<bool> {
    let mut targets = Vec::new();
    steady(stage, traffic, &mut targets).await?;
    drain(stage, traffic, &mut targets).await?;
    kill(stage, &mut targets).await?;
    let tally = traffic.live.tally();
    targets.push(Target::at_most("requests lost over all of it", 0, tally.failed));
    if json {
        println!("{}", as_json(&tally, &targets));
        tally.samples.iter().for_each(|sample| eprintln!("{sample}"));
    } else {
        targets.iter().for_each(|target| println!("{}", target.line()));
        println!("     {} requests were sent", tally.sent);
        tally.samples.iter().for_each(|sample| println!("     {sample}"));
    }
    Ok(targets.iter().all(|target| target.ok))
}

/// The object that every bench prints. The demo measures itself alone, so that it has no ratios.
fn as_json(tally: &Tally, targets: &[Target]) -> Value {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let cells = CELLS.iter().map(|name| {
        let cell = tally.cells.get(*name).cloned().unwrap_or_default();
        row(name, cell.ok + cell.failed, cell.failed, &cell.latency)
    });
    let rows: Vec<_> = cells.chain([row("all cells", tally.sent, tally.failed, &tally.latency)]).collect();
    json!({
        "bench": "demo", "machine": {"cores": cores, "longestSendDelayMs": millis(tally.lateness.max())},
        "rows": rows, "ratios": {}, "targets": targets,
    })
}

fn row(variant: &str, requests: u64, failed: u64, latency: &Histogram) -> Value {
    json!({
        "system": "bulkhead", "variant": variant, "requests": requests, "failed": failed,
        "p50Ms": millis(latency.quantile(0.5)), "p99Ms": millis(latency.quantile(0.99)), "maxMs": millis(latency.max()),
    })
}

/// Both cells of the first group answer, and the one that stands by does not.
async fn steady(stage: &mut Stage, traffic: &Traffic, targets: &mut Vec<Target>) -> Result<()> {
    until(stage, "both cells answer", |_| {
        let tally = traffic.live.tally();
        ["payments-a", "payments-b"]
            .iter()
            .all(|name| tally.cells.get(*name).is_some_and(|cell| cell.ok > 20))
    })
    .await?;
    let standby = traffic.live.tally().cells.get("payments-c").map_or(0, |cell| cell.ok);
    targets.push(Target::at_most("requests to the cell that stands by", 0, standby));
    Ok(())
}

/// Weight 0, then 100 again.
async fn drain(stage: &mut Stage, traffic: &Traffic, targets: &mut Vec<Target>) -> Result<()> {
    stage.set_weight("payments-a", 0)?;
    let saved = now_unix_millis();
    until(stage, "payments-a is drained", |stage| {
        stage.serving().is_ok_and(|serving| {
            serving.cells.get("payments-a").is_some_and(|cell| cell.effective_weight == 0)
        })
    })
    .await?;
    // Long enough that a request which came late would be seen.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let last = traffic.live.tally().cells.get("payments-a").map_or(0, |cell| cell.hits.last_sent);
    let late = last.saturating_sub(saved);
    targets.push(Target::at_most("weight 0 saved to the last new request, ms", DRAIN_MS, late));
    stage.set_weight("payments-a", 100)?;
    let before = traffic.live.tally();
    until(stage, "payments-a answers again", |_| {
        traffic.live.tally().since(&before).cells.get("payments-a").is_some_and(|cell| cell.ok > 0)
    })
    .await
}

/// SIGKILL, then the way back by steps.
async fn kill(stage: &mut Stage, targets: &mut Vec<Target>) -> Result<()> {
    let clock = Monotonic::start();
    stage.kill("payments-b")?;
    until(stage, "payments-b is out", |stage| {
        stage.serving().is_ok_and(|serving| serving.cells.get("payments-b").is_some_and(|cell| !cell.r#in))
    })
    .await?;
    let out = clock.micros() / 1_000;
    targets.push(Target::at_most("killed to out, ms", DEAD_MS, out));
    stage.revive("payments-b")?;
    let mut seen = Vec::new();
    until(stage, "payments-b is back at its whole weight", |stage| {
        let weight = stage
            .serving()
            .ok()
            .and_then(|serving| serving.cells.get("payments-b").map(|cell| cell.effective_weight));
        if let Some(weight) = weight
            && seen.last() != Some(&weight)
        {
            seen.push(weight);
        }
        weight == Some(100)
    })
    .await?;
    let steps = [0, 5, 25, 50, 100];
    targets.push(Target {
        name: "the way back, percent of its weight",
        wanted: json!(steps),
        ok: seen == steps,
        got: seen.into(),
    });
    Ok(())
}

/// Waits for a state of the world.
async fn until(stage: &mut Stage, what: &str, mut holds: impl FnMut(&Stage) -> bool) -> Result<()> {
    for _ in 0..2_000 {
        stage.router_runs()?;
        if holds(stage) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("after 20 s it is still not so that {what}; logs are in {}", stage.folder().display())
}
