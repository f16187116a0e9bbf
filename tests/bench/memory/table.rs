//! What was measured of the router's memory, as a table for people and as the object of all benches. Pure.

use serde_json::{Map, Value, json};

use super::TOTAL_MIB;
use super::round::Round;
use crate::columns::columns;
use crate::report::{Machine, Report, Target};

const MIB: f64 = 1_048_576.0;
/// What a byte of a body may take: beside 64 KiB of them lies one buffer of 8 KiB, with what came first of the request; and
/// an allocator leaves gaps between those of different lives.
const FOR_EACH_BYTE: f64 = 1.35;
/// By how much the last round's peak may be above the first's, in MiB: an allocator's pages, and no transaction's.
const GROWTH_MIB: f64 = 8.0;

/// What all rounds found.
pub(super) struct Found {
    /// Sent in each round.
    pub(super) transactions: u64,
    /// Of these, as many as `limits.bufferTotal` has room for.
    pub(super) fitting: u64,
    /// The router's memory with all connections open and bodies of a byte held, in bytes.
    pub(super) bare: u64,
    pub(super) rounds: Vec<Round>,
}

const HEAD: [&str; 8] =
    ["round", "bare MiB", "peak MiB", "held, MiB", "answered", "shed", "neither", "p99 to a refusal ms"];

impl Found {
    fn peak(&self) -> u64 {
        self.rounds.iter().map(|round| round.peak).max().unwrap_or_default()
    }

    /// Of the last round's peak beside the first's, in MiB.
    fn growth(&self) -> f64 {
        let peak = |round: Option<&Round>| round.map_or(0.0, |round| round.peak as f64);
        tenth((peak(self.rounds.last()) - peak(self.rounds.first())) / MIB)
    }

    /// By how many a round missed what has to be shed, at the worst.
    fn missed(&self) -> u64 {
        let wanted = self.transactions - self.fitting;
        self.rounds.iter().map(|round| round.shed.abs_diff(wanted)).max().unwrap_or_default()
    }
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB);
    let lines = found.rounds.iter().zip(1..).map(|(round, number): (_, u32)| {
        let [least, most] = round.quiet.map(mib);
        let refused = round.refusals.quantile(0.99) as f64 / 1_000.0;
        let counts = [round.answered, round.shed, round.strays].map(|count| count.to_string());
        let [answered, shed, strays] = counts;
        let held = format!("{least}-{most}");
        let (bare, peak, refused) = (mib(found.bare), mib(round.peak), format!("{refused:.0}"));
        [number.to_string(), bare, peak, held, answered, shed, strays, refused]
    });
    let lines: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines).collect();
    let strays = found.rounds.iter().filter_map(|round| round.stray.as_ref());
    columns(&lines, 1) + &strays.map(|stray| format!("neither: {stray}\n")).collect::<String>()
}

/// The object of all benches.
pub(super) fn report(found: &Found, longest_stall_ms: f64) -> Report {
    let above_bare = tenth(found.peak().saturating_sub(found.bare) as f64 / MIB);
    let strays = found.rounds.iter().map(|round| round.strays).max().unwrap_or_default();
    let wanted = found.transactions - found.fitting;
    Report {
        bench: "memory",
        machine: Machine::stalled(longest_stall_ms),
        rows: found.rounds.iter().map(|round| json(round, found.bare)).collect(),
        ratios: Map::<String, Value>::new(),
        targets: vec![
            Target::ratio_at_most(
                format!("peak above the same with bodies of a byte, MiB ({FOR_EACH_BYTE} x {TOTAL_MIB})"),
                tenth(FOR_EACH_BYTE * TOTAL_MIB as f64),
                above_bare,
            ),
            Target::at_most(format!("off the {wanted} that have to be shed at once"), 0, found.missed()),
            Target::at_most("neither answered nor shed", 0, strays),
            Target::ratio_at_most("last round's peak above the first's, MiB", GROWTH_MIB, found.growth()),
        ],
    }
}

fn json(round: &Round, bare: u64) -> Value {
    json!({
        "system": "bulkhead",
        "variant": "more than fits",
        "bareBytes": bare,
        "peakBytes": round.peak,
        "quietLeastBytes": round.quiet[0],
        "quietMostBytes": round.quiet[1],
        "answered": round.answered,
        "shed": round.shed,
        "neither": round.strays,
        "refusalP99Ms": round.refusals.quantile(0.99) as f64 / 1_000.0,
    })
}

fn tenth(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    fn round(peak_mib: u64, shed: u64) -> Round {
        let peak = peak_mib * MEBIBYTE;
        Round { peak, quiet: [peak - MEBIBYTE, peak], shed, answered: 4_096, ..Round::default() }
    }

    fn found(rounds: Vec<Round>) -> Found {
        Found { transactions: 10_000, fitting: 4_096, bare: 100 * MEBIBYTE, rounds }
    }

    fn check(rounds: Vec<Round>, expected: [bool; 4]) {
        let report = report(&found(rounds), 0.0);
        assert_eq!(report.targets.iter().map(|target| target.ok).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn memory_shed_strays_and_growth_are_each_a_promise() {
        check(vec![round(445, 5_904), round(441, 5_904)], [true; 4]);
        check(vec![round(446, 5_904)], [false, true, true, true]);
        // One too many that is held is as wrong as one too many that is shed.
        check(vec![round(300, 5_903), round(300, 5_905)], [true, false, true, true]);
        check(vec![Round { strays: 1, ..round(300, 5_904) }], [true, true, false, true]);
        check(vec![round(300, 5_904), round(309, 5_904)], [true, true, true, false]);
    }

    #[test]
    fn the_table_has_a_line_for_each_round_and_says_what_strayed() {
        let stray = Round { strays: 1, stray: Some("HTTP/1.1 504".to_owned()), ..round(320, 5_904) };
        let expected = "\
round  bare MiB  peak MiB    held, MiB  answered  shed  neither  p99 to a refusal ms
1         100.0     320.0  319.0-320.0      4096  5904        1                    0
neither: HTTP/1.1 504
";
        assert_eq!(text(&found(vec![stray])), expected);
    }
}
