//! The live table of the demo.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use bulkhead_process::Shutdown;
use bulkhead_protocol::Serving;
use bulkhead_samples::load::Tally;

use super::Traffic;
use super::stage::{CELLS, Stage};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the table once a second until the person stops it. A cell that was killed is started again after a while, so
/// that its way back can be watched.
pub(super) async fn run(stage: &mut Stage, traffic: &Traffic, json: bool, shutdown: &Shutdown) -> Result<()> {
    let mut before = traffic.live.tally();
    let mut dead_for = 0;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.requested() => return Ok(()),
        }
        stage.router_runs()?;
        dead_for = if stage.dead().is_empty() { 0 } else { dead_for + 1 };
        if dead_for > 5 {
            for name in stage.dead() {
                stage.revive(name)?;
            }
        }
        let now = traffic.live.tally();
        let serving = stage.serving().unwrap_or_default();
        if json {
            println!("{}", as_json(&serving, &now.since(&before)));
        } else {
            show(&screen(stage, &serving, &now, &now.since(&before)));
        }
        before = now;
    }
}

fn as_json(serving: &Serving, window: &Tally) -> serde_json::Value {
    let cells: serde_json::Map<_, _> = CELLS
        .iter()
        .map(|name| {
            let cell = serving.cells.get(*name).cloned().unwrap_or_default();
            let numbers = window.cells.get(*name).cloned().unwrap_or_default();
            let row = serde_json::json!({
                "share": share(serving, name), "in": cell.r#in, "reason": cell.reason, "effectiveWeight": cell.effective_weight,
                "requestsPerSecond": numbers.ok + numbers.failed, "p99Ms": millis(numbers.latency.quantile(0.99)),
            });
            ((*name).to_owned(), row)
        })
        .collect();
    serde_json::json!({"cells": cells, "sent": window.sent, "failed": window.failed})
}

fn show(text: &str) {
    let mut out = std::io::stdout().lock();
    // On a terminal the table stays in its place; in a file each look follows the last.
    let clear = if out.is_terminal() { "\x1b[H\x1b[J" } else { "" };
    let _ = write!(out, "{clear}{text}");
    let _ = out.flush();
}

fn screen(stage: &Stage, serving: &Serving, all: &Tally, window: &Tally) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Bulkhead demo: requests go to http://{}, keyed by x-account\n", stage.listener());
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>6} {:<22} {:>7} {:>8} {:>9}",
        "CELL", "PID", "SHARE", "STATE", "REQ/S", "P99 MS", "ERRORS"
    );
    let (router, cells) = stage.pids();
    for (name, pid) in cells {
        let cell = serving.cells.get(name).cloned().unwrap_or_default();
        let numbers = window.cells.get(name).cloned().unwrap_or_default();
        let errors = all.cells.get(name).map_or(0, |cell| cell.failed);
        let state = match (cell.r#in, cell.reason.as_str()) {
            (true, "Ready") => "in".to_owned(),
            (true, reason) => format!("in: {reason}"),
            (false, reason) => format!("out: {reason}"),
        };
        let _ = writeln!(
            text,
            "{name:<12} {pid:>7} {:>5.1}% {state:<22} {:>7} {:>8.1} {errors:>9}",
            share(serving, name),
            numbers.ok + numbers.failed,
            millis(numbers.latency.quantile(0.99)),
        );
    }
    let _ = writeln!(text, "\nin all {} sent, {} failed", all.sent, all.failed);
    for sample in all.samples.iter().take(3) {
        let _ = writeln!(text, "  {sample}");
    }
    let _ = writeln!(text, "\nTry this in another terminal (files are in {}):", stage.folder().display());
    let _ = writeln!(
        text,
        "  sed -i 's/weight: 100/weight: 0/' {}   # drain it; then back to 100",
        stage.cell_file(CELLS[0]).display()
    );
    if let Some((name, pid)) = stage.pids().1.get(1) {
        let _ = writeln!(
            text,
            "  kill -9 {pid}   # {name} dies; the demo starts it again after 6 s, and it comes back by steps"
        );
        let _ =
            writeln!(text, "  kill -STOP {pid}; sleep 3; kill -CONT {pid}   # it falls silent, and returns");
    }
    let _ = writeln!(
        text,
        "  curl -i -H 'x-account: 42' http://{}/   # the answer says which cell and rule",
        stage.listener()
    );
    let _ = writeln!(text, "The router is process {router}. Ctrl-C ends everything.");
    text
}

/// Percent of the rule's traffic that goes to the cell now.
fn share(serving: &Serving, cell: &str) -> f64 {
    let parts = serving.shares.values().next().and_then(|shares| shares.get(cell)).copied().unwrap_or(0);
    f64::from(parts) / 10_000.0
}

pub(super) fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}
