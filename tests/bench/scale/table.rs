//! What was measured of all sizes, as tables for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::fleet::{self, Heard};
use super::tables::Measured;
use crate::columns::columns;
use crate::proxy::window::Window;
use crate::report::{Machine, Report, Spread, Target};

/// CPU of each request with the most rules and cells beside that with ten of each, at most.
const COST: f64 = 1.2;
/// MiB in memory with so many rules, at most.
const MEMORY: (usize, f64) = (5_000, 40.0);
/// Part of all streams that may come within 100 ms once all cells are there again.
const HERD: f64 = 0.25;
const MIB: f64 = 1_048_576.0;

const HEAD: [&str; 13] = [
    "rules",
    "cells",
    "CPU us",
    "beside 10 x 10",
    "with rest",
    "requests/s",
    "idle MiB",
    "MiB",
    "at rest, cores",
    "build ms",
    "p99 us",
    "swapping",
    "edit ms",
];
const FLEET_HEAD: [&str; 8] =
    ["routers", "cells", "streams", "bytes/s", "cores", "MiB", "within 100 ms", "all back ms"];

#[derive(Default)]
pub(super) struct Found {
    /// The largest is the last.
    pub(super) sizes: Vec<Measured>,
    pub(super) fleets: Vec<Heard>,
}

impl Measured {
    fn cost(&self, figure: impl Fn(&Window) -> f64) -> Spread {
        Spread::of(self.cost.iter().map(|[_, this]| figure(this)))
    }

    /// CPU for each request beside the small router's, round by round, without what either takes at rest: that grows with
    /// cells and time, and not with requests, and is told by itself.
    fn beside(&self) -> Spread {
        let paired = self.cost.iter();
        Spread::of(paired.map(|[small, this]| each(this, self.rest) / each(small, self.small_rest)))
    }

    /// The same with it.
    fn beside_whole(&self) -> Spread {
        let paired = self.cost.iter();
        Spread::of(paired.map(|[small, this]| each(this, 0.0) / each(small, 0.0)))
    }

    /// The 99th percentile at rest, or while tables are swapped.
    fn p99(&self, swapping: bool) -> Spread {
        Spread::of(self.swaps.iter().map(|pair| pair[usize::from(swapping)].quantile(0.99)))
    }

    fn swapping_beside(&self) -> Spread {
        let paired = self.swaps.iter();
        Spread::of(paired.map(|[rest, swapping]| swapping.quantile(0.99) / rest.quantile(0.99)))
    }

    fn edits(&self) -> Spread {
        Spread::of(self.edits_ms.iter().copied())
    }
}

/// Microseconds of CPU for each request, without those that are used at rest, in cores.
fn each(window: &Window, rest: f64) -> f64 {
    window.cpu_per_request() - rest * window.micros as f64 / window.requests.max(1) as f64
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let lines = found.sizes.iter().map(|of| {
        [
            of.size.rules.to_string(),
            of.size.cells.to_string(),
            of.cost(Window::cpu_per_request).text(1),
            of.beside().text(2),
            format!("{:.2}", of.beside_whole().median),
            format!("{:.0}", of.cost(Window::per_second).median),
            format!("{:.1}", of.idle as f64 / MIB),
            format!("{:.1}", of.resident as f64 / MIB),
            format!("{:.3}", of.rest),
            format!("{:.1}", of.build_seconds * 1e3),
            of.p99(false).text(0),
            of.p99(true).text(0),
            of.edits().text(0),
        ]
    });
    let lines: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines).collect();
    let fleets = found.fleets.iter().map(|of| {
        [
            of.routers.to_string(),
            of.cells.to_string(),
            of.connections.to_string(),
            format!("{:.0}", of.bytes_per_second),
            format!("{:.3}", of.cores),
            format!("{:.1}", of.resident as f64 / MIB),
            format!("{:.2}", of.herd),
            format!("{:.0}", of.back_ms),
        ]
    });
    let fleets: Vec<_> = std::iter::once(FLEET_HEAD.map(str::to_owned)).chain(fleets).collect();
    format!("{}\n{}", columns(&lines, 0), columns(&fleets, 0))
}

/// The object of all benches.
pub(super) fn report(found: &Found, machine: Machine) -> Report {
    let windows = || found.sizes.iter().flat_map(|of| of.cost.iter().chain(&of.swaps)).flatten();
    let foreign = windows().map(Window::foreign_cores).fold(0.0, f64::max);
    let ratios = found.sizes.iter().flat_map(|of| {
        let name = of.size.text();
        let cost = (format!("{name}: CPU"), json!(of.beside().median));
        [cost, (format!("{name}: p99 while swapping beside at rest"), json!(of.swapping_beside().median))]
    });
    Report {
        bench: "scale",
        machine: machine.beside_others(foreign),
        rows: found.sizes.iter().map(json).chain(found.fleets.iter().map(fleet_json)).collect(),
        ratios: Map::from_iter([("10 rules, 10 cells".to_owned(), Value::Object(ratios.collect()))]),
        targets: targets(found),
    }
}

fn targets(found: &Found) -> Vec<Target> {
    let cost = found.sizes.last().map(|of| {
        let name = format!("{}: CPU for each request beside 10 and 10", of.size.text());
        Target::ratio_at_most(name, COST, of.beside().median)
    });
    let (rules, wanted) = MEMORY;
    let memory = found.sizes.iter().find(|of| of.size.rules == rules);
    let memory = memory.map(|of| {
        let name = format!("{}: memory, MiB", of.size.text());
        Target::ratio_at_most(name, wanted, of.idle as f64 / MIB)
    });
    let herd = found.fleets.last().map(|of| {
        let name = format!("{}: part that comes back within 100 ms", fleet::text(of.routers, of.cells));
        Target::ratio_at_most(name, HERD, of.herd)
    });
    cost.into_iter().chain(memory).chain(herd).collect()
}

fn json(of: &Measured) -> Value {
    json!({
        "system": "bulkhead",
        "variant": of.size.text(),
        "rules": of.size.rules,
        "cells": of.size.cells,
        "rounds": of.cost.len(),
        "cpuUs": of.cost(Window::cpu_per_request),
        "userUs": of.cost(Window::user_per_request),
        "systemUs": of.cost(Window::system_per_request),
        "beside10x10": of.beside(),
        "beside10x10WithRest": of.beside_whole(),
        "perSecond": of.cost(Window::per_second),
        "idleBytes": of.idle,
        "residentBytes": of.resident,
        "restCores": of.rest,
        "buildSeconds": of.build_seconds,
        "p99Us": of.p99(false),
        "p99SwappingUs": of.p99(true),
        "swappingBeside": of.swapping_beside(),
        "tablesWhileSwapping": of.tables,
        "editMs": of.edits(),
    })
}

fn fleet_json(of: &Heard) -> Value {
    json!({
        "system": "bulkhead",
        "variant": fleet::text(of.routers, of.cells),
        "routers": of.routers,
        "cells": of.cells,
        "streamsPerRouter": of.connections,
        "bytesPerSecond": of.bytes_per_second,
        "cores": of.cores,
        "residentBytes": of.resident,
        "within100Ms": of.herd,
        "allBackMs": of.back_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::super::objects::Size;
    use super::*;
    use crate::lab::kernel::Cpu;

    /// 100 requests in 10 ms that took so much CPU each, in microseconds.
    fn window(each: u64) -> Window {
        let proxy = Cpu { user: 100 * each, system: 0 };
        Window { micros: 10_000, requests: 100, proxy, ..Window::default() }
    }

    fn measured(rules: usize, cost: &[[u64; 2]], rest: f64, idle_mib: u64) -> Measured {
        Measured {
            size: Size { rules, cells: 100 },
            idle: idle_mib << 20,
            rest,
            small_rest: 0.0,
            resident: 0,
            cost: cost.iter().map(|pair| pair.map(window)).collect(),
            swaps: Vec::new(),
            tables: 0,
            build_seconds: 0.1,
            edits_ms: vec![80.0, 100.0, 90.0],
        }
    }

    #[test]
    fn sizes_are_compared_within_their_round_and_without_what_they_take_at_rest() {
        // Whatever made the second round slow made it slow for both. A tenth of a core is 10 us of each request.
        let of = measured(5_000, &[[20, 30], [40, 60], [20, 32]], 0.1, 30);
        assert_eq!((of.beside().median, of.beside_whole().median), (1.1, 1.5));
        assert_eq!(of.edits().median, 90.0);
    }

    #[test]
    fn what_was_measured_is_held_to_what_is_wanted() {
        let fleet = |herd| Heard {
            routers: 10,
            cells: 100,
            connections: 100,
            bytes_per_second: 1.0,
            cores: 0.1,
            resident: 1,
            herd,
            back_ms: 900.0,
        };
        let check = |large: u64, idle_mib, herd, expected: [bool; 3]| {
            let sizes =
                vec![measured(5_000, &[[20, 20]], 0.0, idle_mib), measured(40_000, &[[20, large]], 0.0, 300)];
            let found = Found { sizes, fleets: vec![fleet(herd)] };
            let report = report(&found, Machine::stalled(0.0));
            let met: Vec<_> = report.targets.iter().map(|target| target.ok).collect();
            assert_eq!(met, expected, "{:?}", report.targets);
            assert_eq!(text(&found).lines().count(), 6);
        };
        check(24, 40, 0.25, [true; 3]);
        check(25, 41, 0.26, [false; 3]);
    }
}
