//! How many instructions decisions and the codec take, counted and not timed: figures that a noisy machine cannot hide, beside those
//! that are committed. What is counted is `cases`'s; valgrind counts.

mod cases;
mod codec;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use crate::columns::columns;
use crate::report::{Machine, Report, Target};
use cases::{CASES, Case};

/// By how much of it a count may leave what is committed, up or down.
const TOLERANCE_PERCENT: u64 = 2;
/// How often each case is played.
const COUNT: u64 = 10_000;
/// Counts by case, as they are committed.
const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/instructions/expected.json");

/// How many instructions a decision takes, and reading and writing HTTP/1.1.
///
/// Each case is played under valgrind not at all and many times, and the difference is counted. Exit status: 0 when
/// every count is within 2 % of the committed one; 1 when one is not, or could not be counted. The counts are of the release
/// profile, and another compiler may make others: `--bless` commits to what there is.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write what was counted over what is committed.
    #[arg(long)]
    bless: bool,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Play only, as valgrind is told to.
    #[arg(long, hide = true, value_name = "CASE")]
    play: Option<String>,
    /// How often.
    #[arg(long, hide = true, default_value_t = 0)]
    count: u64,
}

/// Instructions by case.
type Counts = BTreeMap<String, u64>;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(name) = &args.play {
        let case = CASES.iter().find(|case| case.name == name).context("there is no such case")?;
        case.play(args.count)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = tempfile::tempdir().context("no folder for what valgrind writes")?;
    let mut counts = Counts::new();
    for case in &CASES {
        counts.insert(case.name.to_owned(), counted(case, folder.path())?);
    }
    if args.bless {
        fs::write(EXPECTED, serde_json::to_string_pretty(&counts)? + "\n")
            .with_context(|| format!("{EXPECTED} cannot be written"))?;
    }
    let expected = fs::read_to_string(EXPECTED).with_context(|| format!("{EXPECTED} cannot be read"))?;
    let expected =
        serde_json::from_str(&expected).with_context(|| format!("{EXPECTED} is in another form"))?;
    let report = report(&counts, &expected);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", text(&counts, &expected));
    }
    Ok(if report.met() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Instructions for each time.
fn counted(case: &Case, folder: &Path) -> Result<u64> {
    let [without, with] = [0, COUNT].map(|count| instructions(case, count, folder));
    Ok((with?.saturating_sub(without?)) / COUNT)
}

fn instructions(case: &Case, count: u64, folder: &Path) -> Result<u64> {
    let this = std::env::current_exe().context("the path of this program cannot be told")?;
    let file: PathBuf = folder.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(this)
        .args(["instructions", "--play", case.name, "--count", &count.to_string()])
        .stdin(Stdio::null());
    let output = valgrind.output().context("there is no valgrind, which counts the instructions")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} could not be counted: {}", case.name, said.trim());
    let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    total(&text).with_context(|| format!("valgrind did not count {}", case.name))
}

/// Of what callgrind writes (its manual, "Callgrind Format Specification"): all that was counted.
fn total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")))?;
    line.trim().parse().ok()
}

/// Whether a count is what is committed, but for the tolerance. What is new is not.
fn is_close(count: u64, committed: Option<&u64>) -> bool {
    committed.is_some_and(|committed| 100 * count.abs_diff(*committed) <= TOLERANCE_PERCENT * committed)
}

fn text(counts: &Counts, expected: &Counts) -> String {
    let mut lines = vec![["decision", "instructions", "committed", ""].map(str::to_owned)];
    for (name, count) in counts {
        let verdict = match expected.get(name) {
            committed if is_close(*count, committed) => String::new(),
            Some(committed) => format!("{:+.1} %", (*count as f64 / *committed as f64 - 1.0) * 100.0),
            None => "new".to_owned(),
        };
        let committed = expected.get(name).map_or_else(String::new, u64::to_string);
        lines.push([name.clone(), count.to_string(), committed, verdict]);
    }
    let mut text = columns(&lines, 1);
    if !counts.iter().all(|(name, count)| is_close(*count, expected.get(name))) {
        text += "`cargo xtask bench instructions --bless` commits to what was counted\n";
    }
    text
}

fn report(counts: &Counts, expected: &Counts) -> Report {
    let rows = counts.iter().map(|(name, count)| {
        json!({"system": "bulkhead", "variant": name, "instructions": count, "committed": expected.get(name)})
    });
    let targets = counts.iter().map(|(name, count)| Target {
        name: format!("{name}: instructions"),
        wanted: json!(expected.get(name)),
        got: json!(count),
        ok: is_close(*count, expected.get(name)),
    });
    Report {
        bench: "instructions",
        // Nothing is timed.
        machine: Machine::stalled(0.0),
        rows: rows.collect(),
        ratios: Map::<String, Value>::new(),
        targets: targets.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> Counts {
        all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn all_that_was_counted_is_at_the_end() {
        assert_eq!(total("events: Ir\nsummary: 7\nfn=(1) main\n0 7\ntotals: 1234\n"), Some(1_234));
        assert_eq!(total("summary: 7\n"), Some(7));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn a_count_may_leave_what_is_committed_by_two_percent_either_way() {
        let expected = counts(&[("a", 1_000)]);
        let check =
            |count, met| assert_eq!(report(&counts(&[("a", count)]), &expected).met(), met, "{count}");
        check(1_020, true);
        check(980, true);
        check(1_021, false);
        check(979, false);
    }

    #[test]
    fn people_see_what_left_and_what_is_new() {
        let text =
            text(&counts(&[("a", 1_000), ("b", 1_100), ("c", 5)]), &counts(&[("a", 1_000), ("b", 1_000)]));
        let expected = "\
decision  instructions  committed
a                 1000       1000
b                 1100       1000  +10.0 %
c                    5                 new
`cargo xtask bench instructions --bless` commits to what was counted
";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_case_has_a_committed_count() {
        let text = fs::read_to_string(EXPECTED).expect("is committed");
        let expected: Counts = serde_json::from_str(&text).expect("is in this form");
        assert_eq!(expected.len(), CASES.len());
        assert!(CASES.iter().all(|case| expected.contains_key(case.name)));
    }
}
