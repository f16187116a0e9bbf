//! The demo, as a stranger starts it: `bulkhead demo --check` does what it invites people to do.

use std::process::Command;

#[test]
fn the_demo_loses_nothing_and_is_never_late() {
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(["demo", "--check", "--json"])
        .output()
        .expect("the demo starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!((&found["bench"], &found["ok"]), (&"demo".into(), &true.into()), "{said}");
}
