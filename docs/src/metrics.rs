//! `reference/metrics.md`: every metric, read from the sources where it is named. A metric with labels is unknown to its
//! registry until it is first counted, so running programs could not be asked.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use regex::{Captures, Regex};

const OPENING: &str = "\
<!-- Made from the sources; `BLESS=1 cargo test -p bulkhead-docs` refreshes it. -->

# Metrics

At `/metrics` of the admin port, 9090, in the text format of Prometheus. No label has more values than there are cells, destinations, listeners,
services or reasons ([reasons.md](reasons.md)); none is a key or an id.
";

/// A name, its help, and perhaps its labels, as they are written in a call; and before them the variable that they are for, or
/// what is called.
const METRIC: &str = r#"(?:let (?<options>\w+) = Opts::new\(\s*|(?<call>\w+)\(\s*)?"(?<name>bulkhead_[a-z0-9_]+)",\s*"(?<help>[^"]+)"(?:,?\s*\)?(?:\s*\.buckets\(\w+\.to_vec\(\)\))?,?\s*(?<labels>&\[[^\]]*\]|"[a-z_]+"))?"#;

struct Metric {
    help: String,
    labels: String,
}

#[test]
fn the_reference_names_every_metric() {
    let mut page = OPENING.to_owned();
    for (program, folder) in [
        ("bulkhead-operator", "operator"),
        ("bulkhead-router", "router"),
        ("the ledger of bulkhead-router", "ledger"),
        ("bulkhead-cell-runtime", "cell-runtime"),
        ("every program", "process"),
    ] {
        let metrics = metrics(folder);
        assert!(!metrics.is_empty(), "{folder} has no metric that this finds");
        table(&mut page, program, &metrics).expect("a String takes all text");
    }
    crate::check("metrics.md", &page);
}

fn table(page: &mut String, program: &str, metrics: &BTreeMap<String, Metric>) -> std::fmt::Result {
    writeln!(page, "\n## {program}\n\n| metric | labels | meaning |\n|---|---|---|")?;
    for (name, Metric { help, labels }) in metrics {
        writeln!(page, "| `{name}` | {labels} | {help} |")?;
    }
    Ok(())
}

fn metrics(folder: &str) -> BTreeMap<String, Metric> {
    let metric = Regex::new(METRIC).expect("the pattern is legal");
    let mut found = BTreeMap::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join("src"), &mut |text| {
        let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for captures in metric.captures_iter(shipped) {
            let labels = labels(shipped, &captures);
            found.insert(captures["name"].to_owned(), Metric { help: captures["help"].to_owned(), labels });
        }
        // Nothing that is named may be missed because it is written in another way.
        let named = Regex::new(r#""bulkhead_[a-z0-9_]+""#).expect("the pattern is legal");
        let count = (named.find_iter(shipped).count(), metric.captures_iter(shipped).count());
        assert_eq!(count.0, count.1, "a metric's help is to follow its name, in {shipped}");
    });
    found
}

/// The labels of a metric: beside its name, where the variable of its options is used, or in the closure that makes it.
fn labels(text: &str, metric: &Captures<'_>) -> String {
    let find = |pattern: String| {
        let found = Regex::new(&pattern).expect("the pattern is legal").captures(text);
        found.map(|found| found[1].to_owned())
    };
    let beside = metric.name("labels").map(|labels| labels.as_str().to_owned());
    let of_options = || {
        let options = metric.name("options")?.as_str();
        find(format!(r"Vec::new\(\s*{options},\s*(&\[[^\]]*\])"))
    };
    let of_closure = || {
        let call = metric.name("call")?.as_str();
        find(format!(r#"let {call} = \|[^|]*\|\s*\w+Vec::new\([^;]*?(&\["[^\]]*\])"#))
    };
    let labels = beside.or_else(of_options).or_else(of_closure).unwrap_or_default();
    labels.trim_start_matches("&[").trim_end_matches(']').replace('"', "`")
}

#[test]
fn labels_are_found_wherever_they_are_given() {
    let check = |text: &str, expected: &str| {
        let metric = Regex::new(METRIC).expect("the pattern is legal");
        let captures = metric.captures(text).expect("a metric");
        assert_eq!(labels(text, &captures), expected, "{text}");
    };
    check(r#"IntGauge::new("bulkhead_ready", "Help.")?"#, "");
    check(r#"counters(registry, "bulkhead_a_total", "Help.", &["cell", "kind"])?"#, "`cell`, `kind`");
    check(r#"vec("bulkhead_in", "Help.", "cell")?"#, "`cell`");
    check(
        r#"HistogramVec::new(HistogramOpts::new("bulkhead_s", "Help.").buckets(BUCKETS.to_vec()), &["cell"])"#,
        "`cell`",
    );
    check(
        r#"let out = Opts::new("bulkhead_out", "Help."); let out = IntCounterVec::new(out, &["to", "word"])?;"#,
        "`to`, `word`",
    );
    let closure = r#"let vec = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["to"]);"#;
    check(&format!(r#"{closure} vec("bulkhead_out", "Help.")?"#), "`to`");
    check(&format!(r#"{closure} other("bulkhead_out", "Help.")?"#), "");
}

fn visit(folder: &Path, found: &mut impl FnMut(&str)) {
    for entry in std::fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            visit(&path, found);
        } else {
            found(&std::fs::read_to_string(&path).expect("sources are text"));
        }
    }
}
