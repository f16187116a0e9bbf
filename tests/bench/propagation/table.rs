//! What was measured, as a table for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::rows::Row;
use crate::columns::columns;
use crate::report::{Machine, Report, Target};

/// What is promised of the time from an applied policy to the last router that decides by it, in milliseconds, by row.
const SERVED_MS: [(&str, f64); 2] = [("alone", 50.0), ("churn", 100.0)];

const HEAD: [&str; 15] = [
    "row",
    "edits",
    "stored ms p50",
    "served ms p50",
    "p99",
    "max",
    "changes/s",
    "router cores",
    "requests",
    "failed",
    "closed",
    "p50 ms",
    "p99 ms",
    "statuses",
    "beyond",
];

impl Row {
    fn changes_per_second(&self) -> f64 {
        self.writes.changes as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// The smallest value that such a part of all, which are sorted, does not exceed. 0 of nothing.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// For people.
pub(super) fn text(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        let served = |part| format!("{:.1}", quantile(&row.served_ms, part));
        [
            row.name.to_owned(),
            row.served_ms.len().to_string(),
            format!("{:.1}", quantile(&row.stored_ms, 0.5)),
            served(0.5),
            served(0.99),
            served(1.0),
            format!("{:.1}", row.changes_per_second()),
            format!("{:.2}", row.router_cores),
            row.traffic.sent.to_string(),
            row.traffic.failed.to_string(),
            row.traffic.closed.to_string(),
            format!("{:.2}", row.traffic.latency_ms.p50),
            format!("{:.2}", row.traffic.latency_ms.p99),
            row.writes.own.to_string(),
            row.writes.beyond.to_string(),
        ]
    });
    let lines: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines).collect();
    let failures = rows.iter().flat_map(|row| {
        row.traffic.failures.iter().map(|(kind, count)| format!("{}: failed {count} x {kind}\n", row.name))
    });
    columns(&lines, 1) + &failures.collect::<String>()
}

/// The object of all benches.
pub(super) fn report(rows: &[Row], machine: Machine) -> Report {
    Report {
        bench: "propagation",
        machine,
        rows: rows.iter().map(json).collect(),
        ratios: Map::new(),
        targets: rows.iter().flat_map(targets).collect(),
    }
}

fn targets(row: &Row) -> Vec<Target> {
    let name = |what: &str| format!("{}: {what}", row.name);
    let mut targets = Vec::new();
    if let Some((_, wanted)) = SERVED_MS.iter().find(|(name, _)| *name == row.name) {
        let p99 = quantile(&row.served_ms, 0.99);
        targets.push(Target::ratio_at_most(name("applied to served, p99, ms"), *wanted, p99));
    }
    if row.traffic.sent > 0 {
        targets.push(Target::at_most(name("failed requests"), 0, row.traffic.failed));
        targets.push(Target::at_most(name("closed connections"), 0, row.traffic.closed));
    }
    if row.writes.changes > 0 {
        let beyond = name("most status writes of a policy beyond one for each change");
        targets.push(Target::at_most(beyond, 0, row.writes.beyond));
    }
    targets
}

fn json(row: &Row) -> Value {
    let (served, stored) = (&row.served_ms, &row.stored_ms);
    json!({
        "system": "bulkhead",
        "variant": row.name,
        "edits": served.len(),
        "storedMs": {"p50": quantile(stored, 0.5), "p99": quantile(stored, 0.99)},
        "servedMs": {"p50": quantile(served, 0.5), "p99": quantile(served, 0.99), "max": quantile(served, 1.0)},
        "seconds": row.seconds,
        "changes": row.writes.changes,
        "changesPerSecond": row.changes_per_second(),
        "routerCores": row.router_cores,
        "sent": row.traffic.sent,
        "failed": row.traffic.failed,
        "failures": row.traffic.failures,
        "closedConnections": row.traffic.closed,
        "latencyMs": row.traffic.latency_ms,
        "statusWrites": row.writes.own,
        "statusWritesBeyond": row.writes.beyond,
        "otherWrites": row.writes.other,
    })
}

#[cfg(test)]
mod tests {
    use super::super::rows::Traffic;
    use super::super::stage::Writes;
    use super::*;

    fn row(name: &'static str, served_ms: &[f64]) -> Row {
        Row { name, served_ms: served_ms.to_vec(), seconds: 2.0, ..Row::default() }
    }

    #[test]
    fn a_quantile_is_a_value_that_was_seen() {
        let values: Vec<_> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|part| quantile(&values, part)), [50.0, 99.0, 100.0]);
        assert_eq!([quantile(&[7.0], 0.5), quantile(&[], 0.5)], [7.0, 0.0]);
    }

    #[test]
    fn what_was_measured_is_held_to_what_is_wanted() {
        let met = |row: &Row| targets(row).iter().map(|target| target.ok).collect::<Vec<_>>();
        assert_eq!(met(&row("alone", &[50.0])), [true]);
        assert_eq!(met(&row("alone", &[50.1])), [false]);
        assert_eq!(met(&row("churn", &[50.1])), [true]);
        let traffic = |failed, closed| Traffic { sent: 10, failed, closed, ..Traffic::default() };
        let with = |name, traffic, beyond| Row {
            traffic,
            writes: Writes { changes: 4, beyond, ..Writes::default() },
            ..row(name, &[])
        };
        assert_eq!(met(&with("additions", traffic(0, 0), 0)), [true; 3]);
        assert_eq!(met(&with("additions", traffic(1, 1), 1)), [false; 3]);
    }

    #[test]
    fn people_see_every_row_and_what_failed() {
        let mut row = row("additions", &[1.0, 3.0]);
        row.traffic.failures.insert("503 AllDrained".to_owned(), 2);
        let text = text(&[row]);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.ends_with("additions: failed 2 x 503 AllDrained\n"), "{text}");
    }
}
