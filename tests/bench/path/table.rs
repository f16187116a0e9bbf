//! What was measured of the request path, as a table for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::{VARIANTS, Variant};
use crate::columns::columns;
use crate::lab::spell::Spell;
use crate::lab::wire::Request;
use crate::report::{Machine, Report, Spread, Target};

/// What restart may cost beside the same without it.
const WANTED: f64 = 1.1;

/// One kind of requests in one variant, over all rounds.
pub(crate) struct Row {
    name: &'static str,
    pub(super) request: Request,
    pub(super) connections: usize,
    pub(super) variant: &'static Variant,
    /// One for each round.
    pub(super) spells: Vec<Spell>,
}

const HEAD: [&str; 8] =
    ["requests", "connections", "variant", "CPU us", "beside without", "requests/s", "p50 us", "p99 us"];

impl Row {
    pub(super) fn new(
        name: &'static str,
        request: Request,
        connections: usize,
        variant: &'static Variant,
    ) -> Self {
        Self { name, request, connections, variant, spells: Vec::new() }
    }

    /// What is sent, and by how many.
    pub(super) fn what(&self) -> String {
        format!("{} x {}", self.name, self.connections)
    }

    fn spread(&self, figure: impl Fn(&Spell) -> f64) -> Spread {
        Spread::of(self.spells.iter().map(figure))
    }

    /// CPU for each request beside that of the first variant for the same requests, round by round.
    fn beside(&self, rows: &[Self]) -> Spread {
        let same = rows.iter().find(|row| row.what() == self.what() && row.variant.name == VARIANTS[0].name);
        let others = same.map_or(&[][..], |row| &row.spells);
        let paired = self.spells.iter().zip(others);
        Spread::of(paired.map(|(ours, theirs)| ours.cpu_per_request() / theirs.cpu_per_request()))
    }
}

fn quantile(of: f64) -> impl Fn(&Spell) -> f64 {
    move |spell| spell.latencies.quantile(of) as f64
}

/// For people.
pub(super) fn text(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        let figures = [
            row.spread(Spell::cpu_per_request).text(1),
            row.beside(rows).text(3),
            format!("{:.0}", row.spread(Spell::per_second).median),
            format!("{:.0}", row.spread(quantile(0.5)).median),
            format!("{:.0}", row.spread(quantile(0.99)).median),
        ];
        let [cpu, beside, per_second, p50, p99] = figures;
        let names = [row.name.to_owned(), row.connections.to_string(), row.variant.name.to_owned()];
        let [name, connections, variant] = names;
        [name, connections, variant, cpu, beside, per_second, p50, p99]
    });
    let lines: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines).collect();
    columns(&lines, 3)
}

/// The object of all benches.
pub(super) fn report(rows: &[Row], longest_stall_ms: f64) -> Report {
    let others = || rows.iter().filter(|row| row.variant.name != VARIANTS[0].name);
    let mut ratios = Map::new();
    for row in others() {
        ratios.insert(format!("{}, {}", row.what(), row.variant.name), json!(row.beside(rows).median));
    }
    // What a key costs is said, and not promised.
    let targets = others().filter(|row| !row.variant.keyed).map(|row| {
        let name = format!("{}: CPU {} beside without", row.what(), row.variant.name);
        Target::ratio_at_most(name, WANTED, row.beside(rows).median)
    });
    let foreign = rows.iter().flat_map(|row| &row.spells).map(Spell::foreign_cores).fold(0.0, f64::max);
    Report {
        bench: "path",
        machine: Machine::stalled(longest_stall_ms).beside_others(foreign),
        rows: rows.iter().map(|row| json(row, rows)).collect(),
        ratios: Map::from_iter([(VARIANTS[0].name.to_owned(), Value::Object(ratios))]),
        targets: targets.collect(),
    }
}

fn json(row: &Row, rows: &[Row]) -> Value {
    json!({
        "system": "bulkhead",
        "variant": row.variant.name,
        "requests": row.name,
        "connections": row.connections,
        "rounds": row.spells.len(),
        "cpuUs": row.spread(Spell::cpu_per_request),
        "besideWithout": row.beside(rows),
        "perSecond": row.spread(Spell::per_second),
        "p50Us": row.spread(quantile(0.5)),
        "p99Us": row.spread(quantile(0.99)),
        "foreignCores": row.spread(Spell::foreign_cores),
    })
}

#[cfg(test)]
mod tests {
    use bulkhead_samples::load::histogram::Histogram;

    use super::*;

    /// A row whose requests took so much CPU each, round by round.
    fn row(variant: usize, cpu_micros: &[u64]) -> Row {
        let mut row = Row::new("GET", Request::get("/"), 32, &VARIANTS[variant]);
        row.spells.extend(cpu_micros.iter().map(|micros| {
            let mut latencies = Histogram::default();
            (0..10).for_each(|_| latencies.record(100));
            Spell { micros: 1_000, latencies, router_micros: 10 * micros, foreign_micros: 50 }
        }));
        row
    }

    #[test]
    fn rows_are_compared_within_their_round() {
        // Whatever made the second round slow made it slow for both.
        let rows = [row(0, &[10, 40, 20]), row(1, &[11, 42, 21])];
        let beside = rows[1].beside(&rows);
        assert_eq!((beside.min, beside.median, beside.max), (1.05, 1.05, 1.1));
    }

    #[test]
    fn restart_has_a_target_and_keys_have_none() {
        let rows = [row(0, &[10]), row(1, &[12]), row(2, &[20])];
        let report = report(&rows, 0.0);
        let targets: Vec<_> = report.targets.iter().map(|target| (target.name.as_str(), target.ok)).collect();
        assert_eq!(targets, [("GET x 32: CPU with restart beside without", false)]);
        assert_eq!(report.ratios["without restart"]["GET x 32, with restart and keys"], json!(2.0));
        assert_eq!(report.rows[1]["cpuUs"], json!({"median": 12.0, "min": 12.0, "max": 12.0}));
    }

    #[test]
    fn the_table_has_a_line_for_each_row() {
        let rows = [row(0, &[10, 12, 11]), row(1, &[11, 12, 11])];
        let expected = "\
requests  connections  variant                    CPU us       beside without  requests/s  p50 us  p99 us
GET       32           without restart  11.0 (10.0-12.0)  1.000 (1.000-1.000)       10000     100     100
GET       32           with restart     11.0 (11.0-12.0)  1.000 (1.000-1.100)       10000     100     100
";
        assert_eq!(text(&rows), expected);
    }
}
