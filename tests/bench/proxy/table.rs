//! What was measured of all proxies, as a table for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::shape::{MANY, ONE, OPEN, SOME, Shape};
use super::systems::{ENVOY, HAPROXY, OURS};
use super::window::Window;
use crate::columns::columns;
use crate::report::{Machine, Report, Spread, Target};

/// CPU of each of our requests beside a peer's, at most.
const CPU: [(&str, &str, f64); 4] =
    [(ONE, HAPROXY, 0.65), (SOME, HAPROXY, 0.80), (MANY, HAPROXY, 0.65), (SOME, ENVOY, 0.3)];
/// Our p99 in the open loop beside HAProxy's, at most.
const P99: f64 = 1.05;
/// Our memory before any load, in MiB.
const IDLE_MIB: u64 = 10;
/// In the place of figures.
const NOT_OFFERED: &str = "not offered";
const MIB: f64 = 1_048_576.0;

const HEAD: [&str; 14] = [
    "requests",
    "proxy",
    "CPU us",
    "user",
    "system",
    "beside haproxy",
    "requests/s",
    "core",
    "load",
    "MiB",
    "peak",
    "p50 us",
    "p99 us",
    "p99.9 us",
];

/// All that was measured.
pub(super) struct Found {
    /// Names, and bytes in memory before any load.
    idle: Vec<(&'static str, u64)>,
    rows: Vec<Row>,
    /// Requests per second of the open loop.
    rate: u32,
}

struct Row {
    shape: &'static Shape,
    /// By system, then by round.
    windows: Vec<Vec<Window>>,
}

impl Found {
    pub(super) fn new(idle: Vec<(&'static str, u64)>, shapes: &[&'static Shape], rate: u32) -> Self {
        let rows = shapes.iter().map(|shape| Row { shape, windows: vec![Vec::new(); idle.len()] }).collect();
        Self { idle, rows, rate }
    }

    /// Of the row and the system at these places.
    pub(super) fn add(&mut self, row: usize, system: usize, window: Window) {
        self.rows[row].windows[system].push(window);
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.idle.iter().position(|(system, _)| *system == name)
    }

    /// One system's figure beside another's, round by round. None where one of them was not measured.
    fn beside(
        &self,
        row: &Row,
        ours: usize,
        theirs: &str,
        figure: impl Fn(&Window) -> f64,
    ) -> Option<Spread> {
        let (ours, theirs) = (&row.windows[ours], &row.windows[self.place(theirs)?]);
        let paired = ours.iter().zip(theirs).map(|(ours, theirs)| figure(ours) / figure(theirs));
        // Of nothing there is no part.
        let paired: Vec<_> = paired.filter(|ratio| ratio.is_finite()).collect();
        (!paired.is_empty()).then(|| Spread::of(paired))
    }

    fn targets(&self) -> Vec<Target> {
        let Some(ours) = self.place(OURS) else { return Vec::new() };
        let mut targets = Vec::new();
        for (name, peer, wanted) in CPU {
            let row = self.rows.iter().find(|row| row.shape.name == name);
            let beside = row.and_then(|row| self.beside(row, ours, peer, Window::cpu_per_request));
            let name = format!("{name}: CPU beside {peer}");
            targets.extend(beside.map(|beside| Target::ratio_at_most(name, wanted, beside.median)));
        }
        let open = self.rows.iter().find(|row| row.shape.name == OPEN);
        let beside = open.and_then(|row| self.beside(row, ours, HAPROXY, p99));
        let name = format!("{OPEN}: p99 beside {HAPROXY}");
        targets.extend(beside.map(|beside| Target::ratio_at_most(name, P99, beside.median)));
        let idle = self.idle[ours].1 as f64 / MIB;
        targets.push(Target::ratio_at_most("memory before any load, MiB", IDLE_MIB as f64, idle));
        targets
    }
}

fn p99(window: &Window) -> f64 {
    window.quantile(0.99)
}

fn spread(windows: &[Window], figure: impl Fn(&Window) -> f64) -> Spread {
    Spread::of(windows.iter().map(figure))
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    for row in &found.rows {
        for (system, windows) in row.windows.iter().enumerate() {
            lines.push(line(found, row, system, windows));
        }
    }
    let mut text = columns(&lines, 2);
    let idle = found.idle.iter().map(|(name, bytes)| format!("{name} {:.1}", *bytes as f64 / MIB));
    text += &format!("MiB before any load: {}\n", idle.collect::<Vec<_>>().join(", "));
    if found.rate > 0 {
        text += &format!("the open loop sends {} requests/s\n", found.rate);
    }
    text
}

fn line(found: &Found, row: &Row, system: usize, windows: &[Window]) -> [String; 14] {
    let [requests, proxy] = [row.shape.name, found.idle[system].0].map(str::to_owned);
    if windows.is_empty() {
        let mut line: [String; 14] = Default::default();
        (line[0], line[1], line[2]) = (requests, proxy, NOT_OFFERED.to_owned());
        return line;
    }
    let median = |figure: &dyn Fn(&Window) -> f64, digits: usize| {
        let Spread { median, .. } = spread(windows, figure);
        format!("{median:.digits$}")
    };
    let beside = found.beside(row, system, HAPROXY, Window::cpu_per_request);
    [
        requests,
        proxy,
        spread(windows, Window::cpu_per_request).text(1),
        median(&Window::user_per_request, 1),
        median(&Window::system_per_request, 1),
        beside.map_or_else(String::new, |beside| beside.text(2)),
        spread(windows, Window::per_second).text(0),
        median(&Window::core, 2),
        median(&Window::load_core, 2),
        median(&|window| window.resident as f64 / MIB, 1),
        median(&|window| window.peak as f64 / MIB, 1),
        median(&|window| window.quantile(0.5), 0),
        spread(windows, p99).text(0),
        median(&|window| window.quantile(0.999), 0),
    ]
}

/// The object of all benches.
pub(super) fn report(found: &Found, machine: Machine) -> Report {
    let windows = || found.rows.iter().flat_map(|row| row.windows.iter().flatten());
    let foreign = windows().map(Window::foreign_cores).fold(0.0, f64::max);
    let idle = found
        .idle
        .iter()
        .map(|(name, bytes)| json!({"system": name, "variant": "before any load", "residentBytes": bytes}));
    let rows = found.rows.iter().flat_map(|row| {
        let systems = row.windows.iter().enumerate();
        systems.map(move |(system, windows)| json(found, row, system, windows))
    });
    Report {
        bench: "proxy",
        machine: machine.beside_others(foreign),
        rows: idle.chain(rows).collect(),
        ratios: ratios(found),
        targets: found.targets(),
    }
}

/// Ours beside every peer's.
fn ratios(found: &Found) -> Map<String, Value> {
    let Some(ours) = found.place(OURS) else { return Map::new() };
    let mut all = Map::new();
    for (peer, _) in found.idle.iter().filter(|(name, _)| *name != OURS) {
        let mut figures = Map::new();
        for row in &found.rows {
            let name = row.shape.name;
            let cpu = found.beside(row, ours, peer, Window::cpu_per_request);
            figures.extend(cpu.map(|beside| (format!("{name}: CPU"), json!(beside.median))));
            let slowest = found.beside(row, ours, peer, p99);
            figures.extend(slowest.map(|beside| (format!("{name}: p99"), json!(beside.median))));
        }
        all.insert((*peer).to_owned(), Value::Object(figures));
    }
    all
}

fn json(found: &Found, row: &Row, system: usize, windows: &[Window]) -> Value {
    if windows.is_empty() {
        return json!({"system": found.idle[system].0, "variant": row.shape.name, "skipped": NOT_OFFERED});
    }
    let spread = |figure: &dyn Fn(&Window) -> f64| spread(windows, figure);
    json!({
        "system": found.idle[system].0,
        "variant": row.shape.name,
        "rounds": windows.len(),
        "cpuUs": spread(&Window::cpu_per_request),
        "userUs": spread(&Window::user_per_request),
        "systemUs": spread(&Window::system_per_request),
        "besideHaproxy": found.beside(row, system, HAPROXY, Window::cpu_per_request),
        "perSecond": spread(&Window::per_second),
        "core": spread(&Window::core),
        "loadCore": spread(&Window::load_core),
        "residentBytes": spread(&|window| window.resident as f64),
        "peakBytes": spread(&|window| window.peak as f64),
        "p50Us": spread(&|window| window.quantile(0.5)),
        "p99Us": spread(&p99),
        "p999Us": spread(&|window| window.quantile(0.999)),
        "unanswered": spread(&|window| window.unanswered as f64),
        "shareOfFirstCell": spread(&|window| window.share_of_first),
        "foreignCores": spread(&Window::foreign_cores),
    })
}

#[cfg(test)]
mod tests {
    use bulkhead_samples::load::histogram::Histogram;

    use super::super::shape::shapes;
    use super::*;
    use crate::lab::kernel::Cpu;

    /// Ours and two peers, whose requests took so much CPU each, round by round, and so long.
    fn found(name: &str, cpu: [&[u64]; 3], micros: [u64; 3]) -> Found {
        let idle = vec![(OURS, 9 << 20), (HAPROXY, 12 << 20), (ENVOY, 50 << 20)];
        let shape = shapes(name).expect("is a row");
        let mut found = Found::new(idle, &shape[..1], 0);
        for (system, rounds) in cpu.iter().enumerate() {
            for each in *rounds {
                let mut latencies = Histogram::default();
                latencies.record(micros[system]);
                let proxy = Cpu { user: 100 * each, system: 0 };
                let window = Window { micros: 10_000, requests: 100, proxy, latencies, ..Window::default() };
                found.add(0, system, window);
            }
        }
        found
    }

    fn targets(found: &Found) -> Vec<(String, bool)> {
        let report = report(found, Machine::stalled(0.0));
        report.targets.into_iter().map(|target| (target.name, target.ok)).collect()
    }

    #[test]
    fn proxies_are_compared_within_their_round() {
        // Whatever made the second round slow made it slow for everybody.
        let found = found(SOME, [&[30, 60, 33], &[40, 80, 40], &[100, 200, 100]], [1; 3]);
        let beside = found.beside(&found.rows[0], 0, HAPROXY, Window::cpu_per_request);
        assert_eq!(beside, Some(Spread { median: 0.75, min: 0.75, max: 0.825 }));
        let named = |name: &str, ok| (name.to_owned(), ok);
        let expected = [
            named("POST 512 B x 32: CPU beside haproxy", true),
            named("POST 512 B x 32: CPU beside envoy", true),
            named("memory before any load, MiB", true),
        ];
        assert_eq!(targets(&found), expected);
    }

    #[test]
    fn the_open_loop_promises_its_slowest() {
        let found = found(OPEN, [&[30], &[30], &[90]], [120, 100, 300]);
        assert_eq!(targets(&found)[0], (format!("{OPEN}: p99 beside haproxy"), false));
        let ratios = &report(&found, Machine::stalled(0.0)).ratios;
        assert_eq!(ratios[ENVOY]["POST 512 B, open loop: p99"], json!(0.4));
    }

    #[test]
    fn without_a_peer_nothing_is_compared_with_it() {
        let mut found = found(ONE, [&[30], &[], &[]], [1; 3]);
        assert_eq!(targets(&found).len(), 1);
        assert!(text(&found).contains("haproxy        not offered\n"), "{}", text(&found));
        assert_eq!(report(&found, Machine::stalled(0.0)).rows[4]["skipped"], "not offered");
        found.idle.truncate(1);
        found.rows[0].windows.truncate(1);
        assert!(report(&found, Machine::stalled(0.0)).ratios.is_empty());
        let text = text(&found);
        assert!(text.contains("30.0 (30.0-30.0)  30.0     0.0"), "{text}");
        assert!(text.contains("MiB before any load: bulkhead 9.0\n"), "{text}");
    }
}
