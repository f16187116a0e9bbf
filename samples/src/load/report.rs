//! What a load found, as JSON and for people.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Plan;
use super::histogram::Histogram;
use super::tally::{CellTally, Tally};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub started_unix_ms: u64,
    pub duration_ms: u64,
    /// Requests per second that were planned.
    pub rate: u32,
    /// Requests that ended, one way or the other.
    pub sent: u64,
    pub ok: u64,
    pub failed: u64,
    /// By `STATUS REASON`, `STATUS`, or `connect`, `reset`, `timeout`.
    pub failures: BTreeMap<String, u64>,
    /// The first failures, word for word.
    pub samples: Vec<String>,
    /// Of requests that succeeded, from when they were due.
    pub latency_ms: Quantiles,
    /// How late requests were sent: connections all busy, or the machine stalled.
    pub lateness_ms: Quantiles,
    /// Connections made.
    pub connects: u64,
    pub cells: BTreeMap<String, CellReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// One cell's part. Times are in milliseconds since 1970, 0 for none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellReport {
    pub ok: u64,
    pub failed: u64,
    pub latency_ms: Quantiles,
    /// When the first request that it answered was sent.
    pub first_sent_unix_ms: u64,
    pub last_sent_unix_ms: u64,
    /// When it says that the last request arrived, where it says so.
    pub last_received_unix_ms: u64,
    pub last_answered_unix_ms: u64,
}

impl Report {
    pub(super) fn new(plan: &Plan, started_unix_ms: u64, took: Duration, tally: &Tally) -> Self {
        Self {
            started_unix_ms,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            rate: plan.rate,
            sent: tally.sent,
            ok: tally.ok,
            failed: tally.failed,
            failures: tally.failures.clone(),
            samples: tally.samples.clone(),
            latency_ms: Quantiles::of(&tally.latency),
            lateness_ms: Quantiles::of(&tally.lateness),
            connects: tally.connects,
            cells: tally.cells.iter().map(|(name, cell)| (name.clone(), CellReport::of(cell))).collect(),
        }
    }
}

impl Quantiles {
    pub fn of(micros: &Histogram) -> Self {
        let millis = |micros: u64| micros as f64 / 1_000.0;
        Self {
            p50: millis(micros.quantile(0.5)),
            p99: millis(micros.quantile(0.99)),
            p999: millis(micros.quantile(0.999)),
            max: millis(micros.max()),
        }
    }
}

impl CellReport {
    fn of(cell: &CellTally) -> Self {
        Self {
            ok: cell.ok,
            failed: cell.failed,
            latency_ms: Quantiles::of(&cell.latency),
            first_sent_unix_ms: cell.hits.first_sent,
            last_sent_unix_ms: cell.hits.last_sent,
            last_received_unix_ms: cell.hits.last_received,
            last_answered_unix_ms: cell.hits.last_answered,
        }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.2} ms", self.p50, self.p99, self.p999, self.max)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} sent in {:.1} s at {}/s: {} ok, {} failed, {} connections made",
            self.sent,
            self.duration_ms as f64 / 1_000.0,
            self.rate,
            self.ok,
            self.failed,
            self.connects,
        )?;
        writeln!(f, "latency   {}", self.latency_ms)?;
        writeln!(f, "sent late {}", self.lateness_ms)?;
        for (name, cell) in &self.cells {
            let share = 100.0 * (cell.ok + cell.failed) as f64 / self.sent.max(1) as f64;
            writeln!(
                f,
                "cell {name}: {share:.1} %, {} ok, {} failed, {}",
                cell.ok, cell.failed, cell.latency_ms
            )?;
        }
        for (kind, count) in &self.failures {
            writeln!(f, "failed {count} x {kind}")?;
        }
        for sample in &self.samples {
            writeln!(f, "  {sample}")?;
        }
        Ok(())
    }
}
