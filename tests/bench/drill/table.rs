//! The drill's findings, as a table for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::calls::{Figures, worst};
use crate::columns::columns;
use crate::report::{Machine, Report, Target};

/// One line: a system under one variant, over all runs.
pub(crate) struct Row {
    pub(crate) system: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) retries: &'static str,
    pub(crate) runs: Vec<Figures>,
    /// What was promised to stay 0, and the most that it was.
    pub(crate) broken: Vec<(&'static str, u64)>,
    /// Why it was not played.
    pub(crate) skipped: Option<String>,
}

const HEAD: [&str; 11] = [
    "system",
    "variant",
    "retries",
    "sent",
    "answered",
    "failed",
    "executed twice",
    "p50 ms",
    "p99 ms",
    "p99 during ms",
    "max during ms",
];

impl Row {
    pub(crate) fn new(system: &'static str, variant: &'static str, retries: &'static str) -> Self {
        Self { system, variant, retries, runs: Vec::new(), broken: Vec::new(), skipped: None }
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, figures: Figures, broken: &[(&'static str, u64)]) {
        self.runs.push(figures);
        for (promise, count) in broken {
            match self.broken.iter_mut().find(|(known, _)| known == promise) {
                Some((_, most)) => *most = (*most).max(*count),
                None => self.broken.push((promise, *count)),
            }
        }
    }

    fn cells(&self) -> [String; 11] {
        let worst = worst(&self.runs);
        let names = [self.system, self.variant, self.retries].map(str::to_owned);
        let counts = [worst.sent, worst.answered, worst.failed, worst.executed_twice];
        let times = [worst.p50_ms, worst.p99_ms, worst.p99_during_ms, worst.max_during_ms];
        let [system, variant, retries] = names;
        let [sent, answered, failed, twice] = counts.map(|count| count.to_string());
        let [p50, p99, during, max] = times.map(|time| format!("{time:.1}"));
        [system, variant, retries, sent, answered, failed, twice, p50, p99, during, max]
    }

    fn json(&self) -> Value {
        let mut row = json!({"system": self.system, "variant": self.variant, "retries": self.retries});
        if let Some(why) = &self.skipped {
            row["skipped"] = json!(why);
            return row;
        }
        let worst = worst(&self.runs);
        let figures = json!({
            "runs": self.runs.len(),
            "sent": worst.sent,
            "answered": worst.answered,
            "failed": worst.failed,
            "unanswered": worst.unanswered,
            "executedTwice": worst.executed_twice,
            "invented": worst.invented,
            "p50Ms": worst.p50_ms,
            "p99Ms": worst.p99_ms,
            "p99DuringMs": worst.p99_during_ms,
            "maxDuringMs": worst.max_during_ms,
            "failures": worst.failures,
        });
        if let (Value::Object(row), Value::Object(figures)) = (&mut row, figures) {
            row.extend(figures);
        }
        row
    }
}

/// For people: columns, then what failed and how, then what was not played.
pub(crate) fn text(rows: &[Row]) -> String {
    let played: Vec<_> = rows.iter().filter(|row| !row.runs.is_empty()).collect();
    let lines: Vec<_> =
        std::iter::once(HEAD.map(str::to_owned)).chain(played.iter().map(|row| row.cells())).collect();
    let mut text = columns(&lines, 3);
    for row in &played {
        for (why, count) in &worst(&row.runs).failures {
            text += &format!("{} {} {}: {count} x {why}\n", row.system, row.variant, row.retries);
        }
    }
    for row in rows {
        if let Some(why) = &row.skipped {
            text += &format!("{} {} was not played: {why}\n", row.system, row.variant);
        }
    }
    text
}

/// The object of all benches. What peers do is no target of ours.
pub(crate) fn report(rows: &[Row], longest_stall_ms: f64) -> Report {
    let targets = rows.iter().flat_map(|row| {
        row.broken
            .iter()
            .map(|(promise, most)| Target::at_most(format!("{}: {promise}", row.variant), 0, *most))
    });
    Report {
        bench: "drill",
        machine: Machine::stalled(longest_stall_ms),
        rows: rows.iter().map(Row::json).collect(),
        ratios: Map::new(),
        targets: targets.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rows() -> Vec<Row> {
        let mut ours = Row::new("bulkhead", "kill", "-");
        let run = Figures { sent: 4_800, answered: 4_800, p50_ms: 57.25, ..Figures::default() };
        ours.add(run.clone(), &[("failed", 0), ("executed twice", 0)]);
        ours.add(run, &[("failed", 2), ("executed twice", 0)]);
        let mut peer = Row::new("nginx", "kill", "retrying");
        let failures = BTreeMap::from([("502".to_owned(), 12)]);
        peer.add(Figures { sent: 4_800, answered: 4_788, failed: 12, failures, ..Figures::default() }, &[]);
        let mut skipped = Row::new("bulkhead", "drop-packets", "-");
        skipped.skipped = Some("needs root".to_owned());
        vec![ours, peer, skipped]
    }

    #[test]
    fn the_table_has_a_line_for_each_row_and_says_what_failed() {
        let expected = "\
system    variant  retries   sent  answered  failed  executed twice  p50 ms  p99 ms  p99 during ms  max during ms
bulkhead  kill     -         4800      4800       0               0    57.2     0.0            0.0            0.0
nginx     kill     retrying  4800      4788      12               0     0.0     0.0            0.0            0.0
nginx kill retrying: 12 x 502
bulkhead drop-packets was not played: needs root
";
        assert_eq!(text(&rows()), expected);
    }

    #[test]
    fn a_target_is_missed_by_the_worst_run_and_peers_have_none() {
        let report = report(&rows(), 3.0);
        let targets: Vec<_> = report.targets.iter().map(|target| (target.name.as_str(), target.ok)).collect();
        assert_eq!(targets, [("kill: failed", false), ("kill: executed twice", true)]);
        assert_eq!(report.rows[1]["failures"], json!({"502": 12}));
        assert_eq!(report.rows[2]["skipped"], "needs root");
    }
}
