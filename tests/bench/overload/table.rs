//! What was measured, as lines for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::rows::{
    FACTORS, Found, GOODPUT, Goodput, HUNG_CELL, Hung, IDLE, Idle, PEAK, SLOW, SLOW_CLIENTS, Slow, TWICE,
};
use super::stage::{HAPROXY, NARROW_IN_FLIGHT, OURS};
use super::targets::targets;
use super::window::Window;
use crate::columns::columns;
use crate::report::{Machine, Report, Spread};

pub(super) const MIB: f64 = 1_048_576.0;
pub(super) const BOTH: [usize; 2] = [0, 1];
pub(super) const OTHER: [usize; 1] = [0];
pub(super) const HUNG: [usize; 1] = [1];

impl Goodput {
    /// Each variant with its windows.
    fn variants(&self) -> Vec<(String, &[Window])> {
        let mut variants = vec![(format!("closed loop, {PEAK} connections"), &self.peak[..])];
        for (factor, windows) in FACTORS.iter().zip(&self.open) {
            variants.push((format!("open loop, {factor} of that"), windows));
        }
        if !self.narrow.is_empty() {
            variants.push((format!("the same, inFlight {NARROW_IN_FLIGHT}"), &self.narrow));
        }
        variants
    }
}

impl Slow {
    pub(super) fn kib_each(&self) -> f64 {
        let [before, peak] = self.resident;
        hundredth(peak.saturating_sub(before) as f64 / 1_024.0 / SLOW as f64)
    }

    fn line(&self) -> [String; 6] {
        [
            SLOW_CLIENTS.to_owned(),
            self.slowness.name().to_owned(),
            self.system.to_owned(),
            format!("{:.1}", self.kib_each()),
            self.gone.map_or_else(|| "-".to_owned(), |gone| format!("{:.2}", gone.as_secs_f64())),
            self.left.to_string(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "variant": format!("{SLOW_CLIENTS}: {}", self.slowness.name()),
            "clients": SLOW,
            "residentBytes": self.resident,
            "kibEach": self.kib_each(),
            "goneSeconds": self.gone.map(|gone| gone.as_secs_f64()),
            "socketsLeft": self.left,
        })
    }
}

impl Hung {
    fn variants(&self) -> [(&'static str, &[Window]); 2] {
        [("before", &self.before), ("one of two hangs", &self.with)]
    }
}

impl Idle {
    pub(super) fn bytes_each(&self) -> f64 {
        let [without, with] = self.resident;
        (with.saturating_sub(without) as f64 / f64::from(self.connections)).round()
    }

    fn line(&self) -> [String; 6] {
        let Self { system, connections, resident: [_, resident], cpu: [_, cpu] } = self;
        [
            IDLE.to_owned(),
            connections.to_string(),
            (*system).to_owned(),
            format!("{:.0}", self.bytes_each()),
            format!("{:.1}", *resident as f64 / MIB),
            format!("{cpu:.0}"),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "system": self.system,
            "variant": IDLE,
            "connections": self.connections,
            "residentBytes": self.resident,
            "bytesEach": self.bytes_each(),
            "cpuUsPerSecond": self.cpu,
        })
    }
}

pub(super) fn hundredth(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

pub(super) fn spread(windows: &[Window], figure: impl Fn(&Window) -> f64) -> Spread {
    Spread::of(windows.iter().map(figure))
}

/// `answered` and `refused` are the cells whose latencies count.
fn figures(system: &str, variant: &str, windows: &[Window], answered: &[usize], refused: &[usize]) -> Value {
    let spread = |figure: &dyn Fn(&Window) -> f64| spread(windows, figure);
    json!({
        "system": system,
        "variant": variant,
        "goodPerSecond": spread(&Window::goodput),
        "latePerSecond": spread(&Window::late),
        "refusedPerSecond": spread(&Window::refused),
        "heldBackPerSecond": spread(&Window::held_back),
        "failed": spread(&|window| window.failed() as f64),
        "p50Ms": spread(&|window| window.answered_ms(answered, 0.5)),
        "p99Ms": spread(&|window| window.answered_ms(answered, 0.99)),
        "refusalP99Ms": spread(&|window| window.refused_ms(refused, 0.99)),
        "core": spread(&Window::core),
        "peakBytes": spread(&|window| window.peak as f64),
        "foreignCores": spread(&Window::foreign_cores),
    })
}

const HEAD: [&str; 13] = [
    "row",
    "load",
    "system",
    "good/s",
    "p50 ms",
    "p99 ms",
    "late/s",
    "refused/s",
    "p99 to it ms",
    "kept back/s",
    "failed",
    "core",
    "peak MiB",
];
const SLOW_HEAD: [&str; 6] = ["row", "clients", "system", "KiB each", "gone s", "sockets left"];
const IDLE_HEAD: [&str; 6] = ["row", "connections", "system", "bytes each", "MiB", "CPU us/s"];

fn line(
    row: &str,
    variant: &str,
    system: &str,
    windows: &[Window],
    answered: &[usize],
    refused: &[usize],
) -> [String; 13] {
    let median = |figure: &dyn Fn(&Window) -> f64, digits: usize| {
        let Spread { median, .. } = spread(windows, figure);
        format!("{median:.digits$}")
    };
    [
        row.to_owned(),
        variant.to_owned(),
        system.to_owned(),
        spread(windows, Window::goodput).text(0),
        median(&|window| window.answered_ms(answered, 0.5), 2),
        spread(windows, |window| window.answered_ms(answered, 0.99)).text(2),
        median(&Window::late, 0),
        median(&Window::refused, 0),
        median(&|window| window.refused_ms(refused, 0.99), 2),
        median(&Window::held_back, 0),
        windows.iter().map(Window::failed).sum::<u64>().to_string(),
        median(&Window::core, 2),
        median(&|window| window.peak as f64 / MIB, 1),
    ]
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    for goodput in &found.goodput {
        for (variant, windows) in goodput.variants() {
            lines.push(line(GOODPUT, &variant, goodput.system, windows, &BOTH, &BOTH));
        }
    }
    for hung in &found.hung {
        for (variant, windows) in hung.variants() {
            lines.push(line(HUNG_CELL, variant, hung.system, windows, &OTHER, &HUNG));
        }
    }
    let slow = with_head(SLOW_HEAD, found.slow.iter().map(Slow::line));
    let idle = with_head(IDLE_HEAD, found.idle.iter().map(Idle::line));
    let loads = if lines.len() > 1 { lines } else { Vec::new() };
    columns(&loads, 3) + &columns(&slow, 3) + &columns(&idle, 3)
}

/// Nothing where there are no lines.
fn with_head<const N: usize>(head: [&str; N], lines: impl Iterator<Item = [String; N]>) -> Vec<[String; N]> {
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() { lines } else { [vec![head.map(str::to_owned)], lines].concat() }
}

/// The object of all benches.
pub(super) fn report(found: &Found, machine: Machine) -> Report {
    let (mut rows, mut windows): (Vec<Value>, Vec<&Window>) = (Vec::new(), Vec::new());
    for goodput in &found.goodput {
        for (variant, of) in goodput.variants() {
            rows.push(figures(goodput.system, &format!("{GOODPUT}: {variant}"), of, &BOTH, &BOTH));
            windows.extend(of);
        }
    }
    for hung in &found.hung {
        for (variant, of) in hung.variants() {
            rows.push(figures(hung.system, &format!("{HUNG_CELL}: {variant}"), of, &OTHER, &HUNG));
            windows.extend(of);
        }
    }
    rows.extend(found.slow.iter().map(Slow::json));
    rows.extend(found.idle.iter().map(Idle::json));
    let foreign = windows.into_iter().map(Window::foreign_cores).fold(0.0, f64::max);
    let machine = machine.beside_others(foreign);
    Report { bench: "overload", machine, rows, ratios: ratios(found), targets: targets(found) }
}

/// Ours beside HAProxy's.
fn ratios(found: &Found) -> Map<String, Value> {
    let mut ratios = Map::new();
    let mut add = |name: &str, ours: Option<f64>, theirs: Option<f64>| {
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            ratios.insert(name.to_owned(), json!(hundredth(ours / theirs.max(f64::MIN_POSITIVE))));
        }
    };
    let goodput = |system: &str, step: usize| {
        let of = found.goodput.iter().find(|of| of.system == system)?;
        Some(spread(&of.open[step], Window::goodput).median)
    };
    add("goodPerSecondAtTwice", goodput(OURS, TWICE), goodput(HAPROXY, TWICE));
    let idle = |system: &str| Some(found.idle.iter().find(|of| of.system == system)?.bytes_each());
    add("idleBytesEach", idle(OURS), idle(HAPROXY));
    if ratios.is_empty() { ratios } else { Map::from_iter([(HAPROXY.to_owned(), Value::Object(ratios))]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_costs_what_memory_grew_by() {
        let idle = |system, with| Idle {
            system,
            connections: 1_000,
            resident: [1_000_000, with],
            cpu: [0.0, 250.0],
        };
        let found = Found { idle: vec![idle(OURS, 2_500_000), idle(HAPROXY, 4_000_000)], ..Found::default() };
        assert!(text(&found).contains("1500"), "{}", text(&found));
        assert!(report(&found, Machine::stalled(0.0)).met());
        assert_eq!(Value::from(ratios(&found)), json!({"haproxy": {"idleBytesEach": 0.5}}));
    }
}
