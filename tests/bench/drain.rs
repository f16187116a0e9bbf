//! From `kubectl patch` of a weight to the last new request that reaches the cell, under an open-loop load.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::stall::StallWatch;
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::{World, eventually};
use serde_json::{Map, json};

use crate::report::{Machine, Report, Target};

/// What is promised, in milliseconds.
const WANTED_MS: u64 = 250;
/// With a stall as long as this the figure says more about the machine than about us.
const NOISE_MS: f64 = 100.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Requests per second.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

struct Run {
    last_ms: u64,
    failed: usize,
    sent: usize,
    stall_ms: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (world, _turn) = World::enter();
    let watch = StallWatch::start();
    let mut runs = Vec::new();
    for number in 1..=args.runs {
        let run = one(world, args.rate, &watch)?;
        if !args.json {
            println!(
                "run {number:>2}: last new request {:>4} ms after the patch, {} of {} failed, longest stall {:.1} ms",
                run.last_ms, run.failed, run.sent, run.stall_ms
            );
        }
        runs.push(run);
    }
    let worst = runs.iter().map(|run| run.last_ms).max().unwrap_or_default();
    let failed: usize = runs.iter().map(|run| run.failed).sum();
    let stall = runs.iter().map(|run| run.stall_ms).fold(0.0, f64::max);
    let row = |run: &Run| {
        json!({
            "system": "bulkhead", "variant": "weight 0",
            "lastMs": run.last_ms, "failed": run.failed, "sent": run.sent, "stallMs": run.stall_ms,
        })
    };
    let report = Report {
        bench: "drain",
        machine: Machine::stalled(stall),
        rows: runs.iter().map(row).collect(),
        ratios: Map::new(),
        targets: vec![
            Target::at_most("patch to last new request, maximum, ms", WANTED_MS, worst),
            Target::at_most("failed requests", 0, failed as u64),
        ],
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "maximum {worst} ms (wanted <= {WANTED_MS}), {failed} failed (wanted 0), longest stall of the machine {stall:.1} ms"
        );
    }
    Ok(report.exit_code(NOISE_MS))
}

fn one(world: &World, rate: u32, watch: &StallWatch) -> Result<Run> {
    let load = Load::start(world, rate);
    load.wait_for(Duration::from_secs(10), "payments-a")?;
    watch.take_ms();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#)?;
    // Counted from kubectl's return, the moment at which a person knows that it is stored.
    let stored = now_ms();
    eventually(Duration::from_secs(10), || world.expect_condition("payments-a", "Drained", "True"))?;
    eventually(Duration::from_secs(5), || {
        anyhow::ensure!(
            load.quiet("payments-a", Duration::from_millis(1_000)),
            "payments-a still gets requests"
        );
        Ok(())
    })?;
    let (stall_ms, before_back) = (watch.take_ms(), now_ms());
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#)?;
    load.wait_for_since(Duration::from_secs(10), "payments-a", before_back)?;
    let seen = load.stop();
    let last = seen
        .hits
        .iter()
        .filter(|hit| hit.cell == "payments-a" && hit.sent_ms < before_back)
        .map(|hit| hit.sent_ms)
        .max();
    Ok(Run {
        last_ms: last.unwrap_or_default().saturating_sub(stored),
        failed: seen.failed.len(),
        sent: seen.hits.len() + seen.failed.len(),
        stall_ms,
    })
}
