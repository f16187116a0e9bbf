//! `bulkhead ledger` as a person starts it, on a folder that a router left.

use std::path::Path;
use std::process::{Command, Output};

use bulkhead_ledger::{Intent, Ledger, Options, Outcome, SystemClock};
use bulkhead_process::{Admin, Shutdown, admin};
use serde_json::Value;

const ANSWERED: &str = "018f0000-0000-7000-8000-000000000001";
const UNKNOWN: &str = "018f0000-0000-8000-8000-000000000002";

/// Two effects, written and closed in order.
async fn fill(dir: &Path) {
    let (ledger, _) = Ledger::open(&Options::new(dir), SystemClock::start()).expect("opens");
    for (id, outcome) in [(ANSWERED, Outcome::Answered { status: Some(200) }), (UNKNOWN, Outcome::Unknown)] {
        let id = id.parse().expect("is a UUID");
        let intent = Intent { id, n: 1, attempt: 1, cell: "payments-a".into(), destination: "visa".into() };
        ledger.intend(intent).await.expect("is taken").end(outcome);
    }
    ledger.close();
}

fn ledger(place: &[&str], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .arg("ledger")
        .args(arguments)
        .args(place)
        .output()
        .expect("the program starts")
}

fn check(dir: &Path, arguments: &[&str], status: i32, says: &str) {
    check_at(&["--dir", dir.to_str().expect("is text")], arguments, status, says);
}

/// The status, and something of what it said on both outputs.
fn check_at(place: &[&str], arguments: &[&str], status: i32, says: &str) {
    let output = ledger(place, arguments);
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(said.contains(says), "{arguments:?} does not say {says:?}: {said}");
}

#[tokio::test]
async fn what_a_router_left_is_listed_shown_and_resolved() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let dir = folder.path();
    fill(dir).await;
    check(dir, &["list"], 0, ANSWERED);
    check(dir, &["list", "--state", "unknown"], 0, UNKNOWN);
    check(dir, &["list", "--state", "open"], 1, "no transaction");
    check(dir, &["show", ANSWERED], 0, "200");
    check(dir, &["show", "018f0000-0000-8000-8000-000000000003"], 1, "no transaction");
    check(dir, &["resolve", UNKNOWN, "2", "--as", "not-sent", "--note", "x"], 2, "no effect 2");
    check(dir, &["resolve", UNKNOWN, "1", "--as", "answered", "--note", "case 7"], 0, "is resolved");
    check(
        dir,
        &["resolve", UNKNOWN, "1", "--as", "answered", "--note", "case 7"],
        2,
        "only one that is unknown",
    );
    let json = ledger(&["--dir", dir.to_str().expect("is text")], &["show", UNKNOWN, "--json"]).stdout;
    let json: Value = serde_json::from_slice(&json).expect("is JSON");
    assert_eq!(
        (&json["transactions"][0]["standing"], &json["transactions"][0]["effects"][0]["note"]),
        (&"decided".into(), &"case 7".into())
    );
}

#[tokio::test]
async fn damage_is_said_and_has_a_status_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let dir = folder.path();
    fill(dir).await;
    check(dir, &["list"], 0, UNKNOWN);
    let segment = dir.join("00000000000000000001.segment");
    let mut bytes = std::fs::read(&segment).expect("is there");
    bytes[60] ^= 1;
    std::fs::write(&segment, bytes).expect("is written");
    check(dir, &["list"], 3, "damage: 00000000000000000001.segment");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_that_names_it_and_none_is_made() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let dir = folder.path().join("mistyped");
    check(&dir, &["list"], 2, "mistyped");
    check(&dir, &["resolve", UNKNOWN, "1", "--as", "answered", "--note", "x"], 2, "mistyped");
    assert!(!dir.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_router_that_runs_is_asked_at_its_admin_port() {
    let held = Ledger::volatile(&Options::new(""), SystemClock::start()).expect("needs no disk");
    let intent = Intent {
        id: UNKNOWN.parse().expect("is a UUID"),
        n: 1,
        attempt: 1,
        cell: "payments-a".into(),
        destination: "visa".into(),
    };
    held.intend(intent).await.expect("is taken").end(Outcome::Unknown);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let routes = bulkhead_router::ledger_admin::routes(held);
    let shutdown = Shutdown::new();
    let server = tokio::spawn(admin::serve(listener, Admin { routes, ..Admin::default() }, shutdown.clone()));
    let place = ["--admin", &*url];
    check_at(&place, &["list", "--state", "unknown"], 0, UNKNOWN);
    check_at(&place, &["list", "--state", "decided"], 1, "no transaction");
    check_at(&place, &["show", ANSWERED], 1, "no transaction");
    check_at(&place, &["resolve", UNKNOWN, "1", "--as", "answered", "--note", "case 7"], 0, "is resolved");
    check_at(&place, &["resolve", UNKNOWN, "1", "--as", "answered", "--note", "case 7"], 2, "409");
    check_at(&place, &["show", UNKNOWN], 0, "case 7");
    shutdown.trigger();
    server.await.expect("ends").expect("without an error");
    check_at(&place, &["list"], 2, "cannot be asked");
}
