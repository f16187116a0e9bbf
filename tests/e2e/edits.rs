//! Edits of a route that carries traffic: nothing fails, no connection is closed, and the operator writes once about each.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_samples::load::Plan;
use bulkhead_tests::pods::routers;
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::world::condition;
use bulkhead_tests::{World, audit, eventually};

const EDITS: usize = 20;
const CONNECTIONS: u32 = 32;
const NAME: &str = "turned";
/// How long routers or operator may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The policy, removed when this goes out of scope.
struct Route<'a>(&'a World);

impl Route<'_> {
    /// Sends everything to that cell.
    fn turn_to(&self, cell: &str) {
        let policy = format!(
            "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: {NAME}, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: http}}]
  precedence: 1000
  rules:
  - name: all
    key: {{header: x-account}}
    matches: [{{all: [{{attribute: path, exact: /turned}}]}}]
    groups: [{{cells: [{{name: {cell}, weight: 1}}]}}]
"
        );
        self.0.apply(&policy).expect("stored");
    }

    fn is_ready(&self) -> Result<()> {
        let policy = self.0.json(&["get", "routingpolicy", NAME, "-n", "default"])?;
        let (newest, seen) = (&policy["metadata"]["generation"], &policy["status"]["observedGeneration"]);
        ensure!(seen == newest, "generation {seen} is spoken of, not {newest}");
        ensure!(condition(&policy, "Ready") == "True", "{}", policy["status"]["conditions"]);
        Ok(())
    }
}

impl Drop for Route<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "routingpolicy", NAME, "-n", "default", "--ignore-not-found"]);
    }
}

#[test]
fn edits_under_load_fail_nothing_close_nothing_and_are_written_about_once_each() {
    let (world, _turn) = World::enter();
    let route = Route(world);
    route.turn_to("payments-a");
    eventually(PATIENCE, || route.is_ready()).expect("the routers take it");
    let load = Load::of(Plan {
        targets: routers(world).expect("routers"),
        path: "/turned".to_owned(),
        key_header: Some(http::HeaderName::from_static("x-account")),
        rate: 500,
        connections: CONNECTIONS,
        duration: None,
        ..Plan::default()
    });
    load.wait_for(PATIENCE, "payments-a").expect("traffic flows");
    let from = audit::end(world).expect("the log is there");
    for edit in 1..=EDITS {
        let (cell, since) = (["payments-a", "payments-b"][edit % 2], now_ms());
        route.turn_to(cell);
        load.wait_for_since(PATIENCE, cell, since).expect("the routers follow");
        eventually(PATIENCE, || route.is_ready()).expect("and the status says so");
    }
    let writes = audit::writes_since(world, from).expect("read");
    let about =
        writes.iter().filter(|write| write.resource == "routingpolicies" && write.name == NAME).count();
    let connects = load.connects();
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
    assert_eq!(connects, u64::from(CONNECTIONS), "connections made");
    assert_eq!(about, EDITS, "status writes, of {writes:?}");
}
