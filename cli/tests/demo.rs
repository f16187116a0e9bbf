//! The demo, as a stranger starts it: `bulkhead demo --check` does what it invites people to do.

use std::process::Command;

use serde_json::{Value, json};

#[test]
fn the_demo_loses_nothing_and_is_never_late() {
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["demo", "--check", "--json"])
        .output()
        .expect("the demo starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_str(&said).expect("one JSON object");
    for part in ["bench", "machine", "rows", "ratios", "targets"] {
        assert!(found.get(part).is_some(), "every bench says its {part}: {said}");
    }
    assert_eq!((&found["bench"], &found["ratios"]), (&json!("demo"), &json!({})));
    assert!(found["machine"]["cores"].as_u64() > Some(0), "{said}");

    let rows = found["rows"].as_array().expect("a list");
    for row in rows {
        assert_eq!(row["system"], "bulkhead", "{said}");
        for figure in ["requests", "failed", "p50Ms", "p99Ms", "maxMs"] {
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
    let numbers = targets.iter().filter(|target| target["wanted"].is_number() && target["got"].is_number());
    assert_eq!((targets.len(), numbers.count()), (5, 4), "all but the steps of the way back: {said}");
    for target in targets {
        assert_eq!(target["ok"], true, "{target}");
        assert!(target["name"].is_string(), "{target}");
    }
}
