//! The demo, as a stranger starts it: `bulkhead demo --check` does what it invites people to do. What it promises in
//! milliseconds it judges itself, for whoever has an idle machine; here only that holds which no stall can change.

use std::process::Command;

use serde_json::{Value, json};

#[test]
fn the_demo_loses_nothing_and_says_what_it_found() {
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["demo", "--check", "--json"])
        .output()
        .expect("the demo starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr)));
    for part in ["bench", "machine", "rows", "ratios", "targets"] {
        assert!(found.get(part).is_some(), "every bench says its {part}: {said}");
    }
    assert_eq!((&found["bench"], &found["ratios"]), (&json!("demo"), &json!({})));
    assert!(found["machine"]["cores"].as_u64() > Some(0), "{said}");

    let rows = found["rows"].as_array().expect("a list");
    for row in rows {
        assert_eq!((&row["system"], &row["failed"]), (&json!("bulkhead"), &json!(0)), "{said}");
        for figure in ["requests", "p50Ms", "p99Ms", "maxMs"] {
            assert!(row[figure].is_number(), "{figure} is no number: {row}");
        }
    }
    let requests = |variant: &str| {
        let row = rows.iter().find(|row| row["variant"] == variant);
        row.and_then(|row| row["requests"].as_u64()).expect("a row with a number")
    };
    let cells = ["payments-a", "payments-b", "payments-c"].map(requests);
    assert!(cells[0] > 20 && cells[1] > 20, "both cells of the first group answered: {said}");
    assert_eq!(cells.iter().sum::<u64>(), requests("all cells"), "none was lost: {said}");

    let targets = found["targets"].as_array().expect("a list");
    let (timed, way_back): (Vec<&Value>, Vec<&Value>) =
        targets.iter().partition(|target| target["wanted"].is_number());
    assert_eq!((timed.len(), way_back.len()), (4, 1), "{said}");
    for target in timed {
        assert!(target["name"].is_string(), "{target}");
        assert_eq!(target["ok"], target["got"].as_u64() <= target["wanted"].as_u64(), "{target}");
    }
    is_a_way_back(way_back[0]);
    let all_ok = targets.iter().all(|target| target["ok"] == true);
    assert_eq!(output.status.success(), all_ok, "{said}");
}

/// From 0 up to 100 by the steps that were wanted. A cell that stalls on its way is let in anew, from 0; a step that
/// was over between two looks is not seen.
fn is_a_way_back(target: &Value) {
    let steps = |of: &str| -> Vec<u64> { serde_json::from_value(target[of].clone()).expect("numbers") };
    let (wanted, seen) = (steps("wanted"), steps("got"));
    assert_eq!(target["ok"], wanted == seen, "{target}");
    assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&100)), "{target}");
    assert!(seen.iter().all(|step| wanted.contains(step)), "{target}");
    assert!(seen.windows(2).all(|pair| pair[1] == 0 || pair[1] > pair[0]), "{target}");
}
