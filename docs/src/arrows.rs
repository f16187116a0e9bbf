//! The arrows of ARCHITECTURE.md: which of our crates may know which, and what the pure one may use of others.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// All that `routing`, which decides and does nothing else, may use of others. A crate that does I/O, reads a clock or
/// starts a thread is none of these.
const PURE: [&str; 8] = ["http", "ipnet", "jiff", "libm", "serde", "smallvec", "thiserror", "xxhash-rust"];

/// Nothing that ships knows these.
const NOT_SHIPPED: [&str; 3] = ["bulkhead-docs", "bulkhead-tests", "xtask"];

/// A crate of ours and what its manifest names.
#[derive(Default)]
struct Manifest {
    ours: BTreeSet<String>,
    /// Without those that only its own tests use.
    ours_to_run: BTreeSet<String>,
    others_to_run: BTreeSet<String>,
}

fn workspace() -> BTreeMap<String, Manifest> {
    let metadata = crate::cargo(&["metadata", "--no-deps", "--locked", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("cargo speaks JSON");
    let packages = metadata["packages"].as_array().expect("packages are a list");
    packages.iter().map(|package| (text(&package["name"]), manifest(package))).collect()
}

fn manifest(package: &Value) -> Manifest {
    let mut manifest = Manifest::default();
    for dependency in package["dependencies"].as_array().expect("dependencies are a list") {
        let (name, to_run) = (text(&dependency["name"]), dependency["kind"] != "dev");
        if dependency["path"].is_string() {
            manifest.ours.insert(name.clone());
            if to_run {
                manifest.ours_to_run.insert(name);
            }
        } else if to_run {
            manifest.others_to_run.insert(name);
        }
    }
    manifest
}

fn text(value: &Value) -> String {
    value.as_str().expect("is text").to_owned()
}

/// Every crate of ours that this one is built with, for its own tests or in the end for any other reason.
fn knows(workspace: &BTreeMap<String, Manifest>, name: &str) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    let mut to_visit: Vec<_> = workspace[name].ours.iter().cloned().collect();
    while let Some(name) = to_visit.pop() {
        if known.insert(name.clone()) {
            to_visit.extend(workspace[&name].ours_to_run.iter().cloned());
        }
    }
    known
}

fn check_knows_only(name: &str, allowed: &[&str]) {
    let known = knows(&workspace(), name);
    let wrong: Vec<_> = known.iter().filter(|known| !allowed.contains(&known.as_str())).collect();
    assert!(wrong.is_empty(), "{name} knows {wrong:?}; ARCHITECTURE.md lets it know {allowed:?} alone");
}

fn check_never_knows(name: &str, forbidden: &[&str]) {
    let known = knows(&workspace(), name);
    let wrong: Vec<_> = known.iter().filter(|known| forbidden.contains(&known.as_str())).collect();
    assert!(wrong.is_empty(), "{name} knows {wrong:?}, which ARCHITECTURE.md forbids");
}

#[test]
fn the_types_and_the_protocol_know_no_other_crate_of_ours() {
    check_knows_only("bulkhead-crds", &[]);
    check_knows_only("bulkhead-protocol", &[]);
}

#[test]
fn the_ledger_knows_only_ids_and_what_every_program_starts_from() {
    check_knows_only("bulkhead-ledger", &["bulkhead-protocol", "bulkhead-process"]);
}

#[test]
fn decisions_know_only_the_types_and_the_protocol() {
    check_knows_only("bulkhead-routing", &["bulkhead-crds", "bulkhead-protocol"]);
}

#[test]
fn the_way_of_a_transaction_never_knows_the_operator() {
    check_never_knows("bulkhead-router", &["bulkhead-operator"]);
    check_never_knows("bulkhead-cell-runtime", &["bulkhead-operator"]);
}

#[test]
fn nothing_that_ships_knows_what_does_not() {
    let workspace = workspace();
    let shipped: Vec<_> = workspace.keys().filter(|name| !NOT_SHIPPED.contains(&name.as_str())).collect();
    assert_eq!(shipped.len() + NOT_SHIPPED.len(), workspace.len(), "a crate that does not ship was renamed");
    for name in shipped {
        check_never_knows(name, &NOT_SHIPPED);
    }
}

#[test]
fn decisions_use_nothing_that_could_do_more_than_compute() {
    let used = &workspace()["bulkhead-routing"].others_to_run;
    let wrong: Vec<_> = used.iter().filter(|name| !PURE.contains(&name.as_str())).collect();
    assert!(
        wrong.is_empty(),
        "bulkhead-routing uses {wrong:?}; it is pure, so that it may use {PURE:?} alone"
    );
}
