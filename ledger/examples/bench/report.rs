//! What was measured, as a table and as the JSON of every bench. Pure.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::load::Measured;

/// Intents per second that are promised, at any of the counts.
const WANTED: f64 = 20_000.0;

pub(crate) struct Report {
    /// Microseconds of the disk's own write and sync.
    pub(crate) disk: Vec<u64>,
    /// Bytes in memory of a transaction that is held.
    pub(crate) memory: f64,
    rows: Vec<(u32, Vec<Measured>)>,
}

/// One count of tasks over all rounds.
struct Row {
    tasks: u32,
    per_second: f64,
    intent: [u64; 2],
    sync: [u64; 2],
    intents_per_sync: f64,
    bytes_on_disk: f64,
}

impl Report {
    pub(crate) fn new(tasks: &[u32]) -> Self {
        let rows = tasks.iter().map(|tasks| (*tasks, Vec::new())).collect();
        Self { disk: Vec::new(), memory: 0.0, rows }
    }

    pub(crate) fn add(&mut self, tasks: u32, measured: Measured) {
        if let Some((_, rounds)) = self.rows.iter_mut().find(|row| row.0 == tasks) {
            rounds.push(measured);
        }
    }

    fn rows(&self) -> Vec<Row> {
        self.rows.iter().map(|(tasks, rounds)| row(*tasks, rounds)).collect()
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        let [p50, p99] = quantiles(self.disk.iter().copied());
        let _ = writeln!(table, "the disk alone, 4 KiB and fdatasync: p50 {p50} us, p99 {p99} us");
        for row in self.rows() {
            let Row { tasks, per_second, intent, sync, intents_per_sync, bytes_on_disk } = row;
            let _ = writeln!(
                table,
                "{tasks} tasks: {per_second:.0} intents/s, {intents_per_sync:.0} a sync; intent p50 {} us, p99 {} us; \
                 sync p50 {} us, p99 {} us; {bytes_on_disk:.0} bytes on disk each",
                intent[0], intent[1], sync[0], sync[1]
            );
        }
        let _ = writeln!(table, "{:.0} bytes in memory for each transaction that is held", self.memory);
        table
    }

    pub(crate) fn json(&self) -> Value {
        let rows = self.rows();
        let alone = quantiles(self.disk.iter().copied());
        let best = rows.iter().map(|row| row.per_second).fold(0.0, f64::max).round();
        let ratios: serde_json::Map<_, _> = rows
            .iter()
            .map(|row| (format!("syncP99With{}Tasks", row.tasks), json!(ratio(row.sync[1], alone[1]))))
            .collect();
        let mut targets =
            vec![json!({"name": "intents per second", "wanted": WANTED, "got": best, "ok": best >= WANTED})];
        targets.extend(rows.iter().map(|row| {
            let name = format!("p99 of a sync with {} tasks beside the disk's own, us", row.tasks);
            // Printed side by side: what a disk does is not promised.
            json!({"name": name, "wanted": null, "got": [row.sync[1], alone[1]], "ok": true})
        }));
        let disk =
            json!({"system": "disk", "variant": "4 KiB and fdatasync", "p50Us": alone[0], "p99Us": alone[1]});
        let held = json!({"system": "ledger", "variant": "held in memory", "bytes": self.memory.round()});
        let rows = [disk, held].into_iter().chain(rows.iter().map(Row::json));
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        json!({
            "bench": "ledger", "machine": {"cores": cores}, "rows": rows.collect::<Vec<_>>(),
            "ratios": {"disk": ratios}, "targets": targets,
        })
    }
}

fn row(tasks: u32, rounds: &[Measured]) -> Row {
    let mut per_second: Vec<_> = rounds.iter().map(|round| round.per_second).collect();
    per_second.sort_unstable_by(f64::total_cmp);
    let intents: usize = rounds.iter().map(|round| round.intents.len()).sum();
    let syncs: usize = rounds.iter().map(|round| round.syncs.len()).sum();
    let bytes: u64 = rounds.iter().map(|round| round.bytes_on_disk).sum();
    Row {
        tasks,
        per_second: per_second.get(per_second.len() / 2).copied().unwrap_or(0.0),
        intent: quantiles(rounds.iter().flat_map(|round| round.intents.iter().copied())),
        sync: quantiles(rounds.iter().flat_map(|round| round.syncs.iter().copied())),
        intents_per_sync: intents as f64 / syncs.max(1) as f64,
        bytes_on_disk: bytes as f64 / intents.max(1) as f64,
    }
}

impl Row {
    fn json(&self) -> Value {
        let Self { tasks, per_second, intent, sync, intents_per_sync, bytes_on_disk } = self;
        json!({
            "system": "ledger", "variant": format!("{tasks} tasks"), "intentsPerSecond": per_second.round(),
            "intentP50Us": intent[0], "intentP99Us": intent[1], "syncP50Us": sync[0], "syncP99Us": sync[1],
            "intentsPerSync": intents_per_sync.round(), "bytesOnDisk": bytes_on_disk.round(),
        })
    }
}

/// p50 and p99, 0 of nothing.
fn quantiles(values: impl Iterator<Item = u64>) -> [u64; 2] {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    [50, 99].map(|percent| {
        values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or(0)
    })
}

fn ratio(of: u64, to: u64) -> f64 {
    (of as f64 / to.max(1) as f64 * 100.0).round() / 100.0
}
