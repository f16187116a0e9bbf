//! `bulkhead demo --check`: does what the demo invites a person to do, and says whether anything was lost or late.

use std::time::Duration;

use anyhow::{Result, bail};
use bulkhead_process::Monotonic;
use bulkhead_process::clock::now_unix_millis;
use serde::Serialize;

use super::Traffic;
use super::stage::Stage;

/// From the saved file to the last new request.
const DRAIN_MS: u64 = 250;
/// From SIGKILL to the moment when the router has the cell out.
const DEAD_MS: u64 = 1_000;

/// One promise and what became of it.
#[derive(Serialize)]
struct Finding {
    name: &'static str,
    wanted: String,
    got: String,
    ok: bool,
}

/// Runs all of it and prints the findings; false when one of them is not what was promised.
pub(super) async fn run(stage: &mut Stage, traffic: &Traffic, json: bool) -> Result<bool> {
    let mut findings = Vec::new();
    steady(stage, traffic, &mut findings).await?;
    drain(stage, traffic, &mut findings).await?;
    kill(stage, &mut findings).await?;
    let tally = traffic.live.tally();
    findings.push(Finding {
        name: "requests lost over all of it",
        wanted: "0".to_owned(),
        got: format!("{} of {}", tally.failed, tally.sent),
        ok: tally.failed == 0,
    });
    let good = findings.iter().all(|finding| finding.ok);
    if json {
        println!(
            "{}",
            serde_json::json!({"bench": "demo", "ok": good, "targets": findings, "samples": tally.samples})
        );
    } else {
        for finding in &findings {
            let mark = if finding.ok { "ok  " } else { "FAIL" };
            println!("{mark} {}: {} (wanted {})", finding.name, finding.got, finding.wanted);
        }
        for sample in &tally.samples {
            println!("     {sample}");
        }
    }
    Ok(good)
}

/// Both cells of the first group answer, and the one that stands by does not.
async fn steady(stage: &mut Stage, traffic: &Traffic, findings: &mut Vec<Finding>) -> Result<()> {
    until(stage, "both cells answer", |_| {
        let tally = traffic.live.tally();
        ["payments-a", "payments-b"]
            .iter()
            .all(|name| tally.cells.get(*name).is_some_and(|cell| cell.ok > 20))
    })
    .await?;
    let standby = traffic.live.tally().cells.get("payments-c").map_or(0, |cell| cell.ok);
    findings.push(Finding {
        name: "requests to the cell that stands by",
        wanted: "0".to_owned(),
        got: standby.to_string(),
        ok: standby == 0,
    });
    Ok(())
}

/// Weight 0, then 100 again.
async fn drain(stage: &mut Stage, traffic: &Traffic, findings: &mut Vec<Finding>) -> Result<()> {
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
    findings.push(Finding {
        name: "weight 0 saved to the last new request",
        wanted: format!("<= {DRAIN_MS} ms"),
        got: format!("{late} ms"),
        ok: late <= DRAIN_MS,
    });
    stage.set_weight("payments-a", 100)?;
    let before = traffic.live.tally();
    until(stage, "payments-a answers again", |_| {
        traffic.live.tally().since(&before).cells.get("payments-a").is_some_and(|cell| cell.ok > 0)
    })
    .await
}

/// SIGKILL, then the way back by steps.
async fn kill(stage: &mut Stage, findings: &mut Vec<Finding>) -> Result<()> {
    let clock = Monotonic::start();
    stage.kill("payments-b")?;
    until(stage, "payments-b is out", |stage| {
        stage.serving().is_ok_and(|serving| serving.cells.get("payments-b").is_some_and(|cell| !cell.r#in))
    })
    .await?;
    let out = clock.micros() / 1_000;
    findings.push(Finding {
        name: "killed to out",
        wanted: format!("<= {DEAD_MS} ms"),
        got: format!("{out} ms"),
        ok: out <= DEAD_MS,
    });
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
    findings.push(Finding {
        name: "the way back, percent of its weight",
        wanted: "0, 5, 25, 50, 100".to_owned(),
        got: seen.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        ok: seen == [0, 5, 25, 50, 100],
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
