//! What is promised of a router past its capacity, and what came of it. Pure.

use super::rows::{Found, GOODPUT, Goodput, HUNG_CELL, Hung, IDLE, QUIET, SLACK, SLOW_CLIENTS, Slow, TWICE};
use super::slow::Slowness;
use super::stage::{BODY_TIMEOUT, HEADER_TIMEOUT, OURS};
use super::table::{BOTH, HUNG, MIB, OTHER, hundredth, spread};
use super::window::Window;
use crate::report::{Spread, Target};

/// Of what somebody can do at most, how much it may lose with twice of that before it.
const LOST: f64 = 0.1;
/// In which 99 % of answers are there then, in milliseconds.
const SURGE_P99_MS: f64 = 250.0;
/// What a client that is slow may take of the router's memory, in KiB.
const SLOW_KIB: f64 = 64.0;
/// The other cell's p99 beside the one before, at most.
const BESIDE_HUNG: f64 = 1.1;
/// In which 99 % of the hung cell's refusals are there, in milliseconds.
const REFUSAL_P99_MS: f64 = 10.0;
/// By how much the router may grow meanwhile.
const HUNG_MIB: f64 = 8.0;
/// What a connection may cost on which nothing happens, in bytes.
const IDLE_BYTES: f64 = 2_048.0;

/// Of ours alone.
pub(super) fn targets(found: &Found) -> Vec<Target> {
    let mut targets = Vec::new();
    targets.extend(found.goodput.iter().filter(|of| of.system == OURS).flat_map(Goodput::targets));
    targets.extend(found.hung.iter().filter(|of| of.system == OURS).flat_map(Hung::targets));
    targets.extend(found.slow.iter().filter(|of| of.system == OURS).flat_map(Slow::targets));
    let idle = found.idle.iter().filter(|of| of.system == OURS);
    targets.extend(
        idle.map(|idle| Target::ratio_at_most(format!("{IDLE}: bytes each"), IDLE_BYTES, idle.bytes_each())),
    );
    targets
}

impl Goodput {
    /// Goodput beside the peak of the same round.
    fn kept(&self, windows: &[Window]) -> f64 {
        let pairs = windows.iter().zip(&self.peak);
        Spread::of(pairs.map(|(window, peak)| window.goodput() / peak.goodput().max(f64::MIN_POSITIVE)))
            .median
    }

    fn targets(&self) -> Vec<Target> {
        let twice = &self.open[TWICE];
        let p99 = spread(twice, |window| window.answered_ms(&BOTH, 0.99)).median;
        let failed = self.peak.iter().chain(self.open.iter().flatten()).map(Window::failed).sum();
        vec![
            Target::ratio_at_most(
                format!("{GOODPUT}: part of the peak that is lost at twice of it"),
                LOST,
                hundredth(1.0 - self.kept(twice)),
            ),
            Target::ratio_at_most(
                format!("{GOODPUT}: p99 of answers then, ms"),
                SURGE_P99_MS,
                hundredth(p99),
            ),
            Target::at_most(format!("{GOODPUT}: requests with neither an answer nor a refusal"), 0, failed),
        ]
    }
}

impl Slow {
    /// In how many seconds all should be gone. None where whoever is slow is not slow enough to be cut.
    fn most(&self) -> Option<f64> {
        let most = match self.slowness {
            Slowness::Head => HEADER_TIMEOUT,
            Slowness::Body => BODY_TIMEOUT,
            Slowness::Unread => QUIET,
            Slowness::Answer => return None,
        };
        Some((most + SLACK).as_secs_f64())
    }

    fn targets(&self) -> Vec<Target> {
        let name = format!("{SLOW_CLIENTS}, {}", self.slowness.name());
        let mut targets =
            vec![Target::ratio_at_most(format!("{name}: memory, KiB each"), SLOW_KIB, self.kib_each())];
        if let Some(most) = self.most() {
            let gone = self.gone.map_or(f64::MAX, |gone| hundredth(gone.as_secs_f64()));
            targets.push(Target::ratio_at_most(format!("{name}: all gone, s"), most, gone));
        }
        targets
    }
}

impl Hung {
    fn beside_before(&self) -> f64 {
        let p99 = |window: &Window| window.answered_ms(&OTHER, 0.99);
        let pairs = self.before.iter().zip(&self.with);
        let ratios = pairs.map(|(before, with)| p99(with) / p99(before).max(f64::MIN_POSITIVE));
        hundredth(Spread::of(ratios).median)
    }

    fn targets(&self) -> Vec<Target> {
        let peak = |windows: &[Window]| spread(windows, |window| window.peak as f64 / MIB);
        let grew = peak(&self.with).max - peak(&self.before).max;
        let refused = spread(&self.with, |window| window.refused_ms(&HUNG, 0.99)).median;
        let other: u64 = self.with.iter().map(|window| window.whole[OTHER[0]].failed).sum();
        vec![
            Target::ratio_at_most(
                format!("{HUNG_CELL}: the other's p99 beside before"),
                BESIDE_HUNG,
                self.beside_before(),
            ),
            Target::ratio_at_most(
                format!("{HUNG_CELL}: p99 of its refusals, ms"),
                REFUSAL_P99_MS,
                hundredth(refused),
            ),
            Target::ratio_at_most(
                format!("{HUNG_CELL}: memory, MiB more"),
                HUNG_MIB,
                hundredth(grew.max(0.0)),
            ),
            Target::at_most(format!("{HUNG_CELL}: requests of the other without an answer"), 0, other),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::clients::Tally;
    use super::super::stage::HAPROXY;
    use super::super::table::text;
    use super::*;

    /// So many good answers of each cell in a second, each in so many microseconds.
    fn window(good: u64, micros: u64) -> Window {
        let mut tally = Tally { good, ..Tally::default() };
        tally.latencies.record(micros);
        let both = [tally.clone(), tally];
        Window { micros: 1_000_000, within: both.clone(), whole: both, ..Window::default() }
    }

    fn missed(found: &Found) -> Vec<String> {
        targets(found).into_iter().filter(|target| !target.ok).map(|target| target.name).collect()
    }

    #[test]
    fn what_is_lost_is_told_beside_the_peak_of_the_same_round() {
        let check = |good, micros, expected: &[&str]| {
            let peak = vec![window(1_000, 100), window(2_000, 100)];
            let twice = vec![window(good, micros), window(2 * good, micros)];
            let open = [Vec::new(), Vec::new(), twice];
            let found = Found {
                goodput: vec![Goodput { system: OURS, peak, open, narrow: Vec::new() }],
                ..Found::default()
            };
            let named = expected.iter().map(|name| format!("{GOODPUT}: {name}"));
            assert_eq!(missed(&found), named.collect::<Vec<_>>());
            assert!(text(&found).contains("open loop, 2 of that"), "{}", text(&found));
        };
        check(900, 200_000, &[]);
        check(890, 200_000, &["part of the peak that is lost at twice of it"]);
        check(900, 300_000, &["p99 of answers then, ms"]);
    }

    #[test]
    fn who_stays_too_long_or_takes_too_much_is_told() {
        let slow = |system, gone, peak| Slow {
            system,
            slowness: Slowness::Head,
            resident: [1 << 20, peak],
            gone,
            left: 0,
        };
        let fine = slow(OURS, Some(Duration::from_millis(2_900)), 2 << 20);
        let late = slow(OURS, Some(Duration::from_millis(3_100)), 2 << 20);
        let large = slow(OURS, None, 20 << 20);
        let theirs = slow(HAPROXY, None, 20 << 20);
        let found = Found { slow: vec![fine, late, large, theirs], ..Found::default() };
        let expected = ["all gone, s", "memory, KiB each", "all gone, s"];
        assert_eq!(missed(&found), expected.map(|name| format!("{SLOW_CLIENTS}, a head, 1 B/s: {name}")));
    }

    #[test]
    fn a_cell_that_hangs_is_told_by_what_the_other_notices() {
        let hung = |micros| {
            let (before, mut with) = (vec![window(1_000, 100)], vec![window(1_000, micros)]);
            with[0].whole[1].failed = 50;
            Found { hung: vec![Hung { system: OURS, before, with }], ..Found::default() }
        };
        assert!(missed(&hung(100)).is_empty());
        assert_eq!(missed(&hung(200)), [format!("{HUNG_CELL}: the other's p99 beside before")]);
    }
}
