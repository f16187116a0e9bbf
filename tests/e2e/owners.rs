//! Keys of an `owner` rule while its weights are edited again and again: never two cells at work for one key.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_samples::load::Plan;
use bulkhead_tests::pods::{Slow, Stopped, routers, running};
use bulkhead_tests::traffic::{Hit, Load, Seen, now_ms};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, eventually, holds_for};

/// How long a cell works on each request: what is at work at the same time shows.
const WORK: Duration = Duration::from_millis(200);
const KEYS: u64 = 8;
const EDITS: usize = 12;
/// The edit during which a router hangs, and for how long.
const HANGS_AT: usize = 6;
const HANGS: Duration = Duration::from_secs(3);

/// The policy, removed when this goes out of scope.
struct Owned<'a>(&'a World);

impl<'a> Owned<'a> {
    fn new(world: &'a World) -> Self {
        let owned = Self(world);
        owned.give_all_to("payments-a");
        eventually(Duration::from_secs(30), || owned.is_settled()).expect("the routers take it");
        owned
    }

    /// Moves every key.
    fn give_all_to(&self, owner: &str) {
        let weight = |cell: &str| u32::from(cell == owner);
        let policy = format!(
            "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: owned, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: http}}]
  precedence: 1000
  rules:
  - name: all
    owner: true
    key: {{header: x-account}}
    matches: [{{all: [{{attribute: path, exact: /owned}}]}}]
    groups: [{{cells: [{{name: payments-a, weight: {}}}, {{name: payments-b, weight: {}}}]}}]
",
            weight("payments-a"),
            weight("payments-b")
        );
        self.0.apply(&policy).expect("stored");
    }

    fn is_settled(&self) -> Result<()> {
        let policy = self.0.json(&["get", "routingpolicy", "owned", "-n", "default"])?;
        let settled = policy.pointer("/status/settledGeneration").context("nothing is settled")?;
        let generation = &policy["metadata"]["generation"];
        ensure!(settled == generation, "{settled} is settled, not {generation}");
        Ok(())
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "routingpolicy", "owned", "-n", "default", "--ignore-not-found"]);
    }
}

/// When the cell was certainly at work: the request was there after it was sent, and before it was answered, for as long as
/// work takes. None where it waited for too long on the way to tell.
fn at_work(hit: &Hit) -> Option<(u64, u64)> {
    let work = WORK.as_millis() as u64;
    let (from, to) = (hit.answered_ms - work, hit.sent_ms + work);
    (from <= to).then_some((from, to))
}

/// That no two cells were at work for one key at the same time.
#[track_caller]
fn check_one_at_a_time(seen: &Seen) {
    for key in 0..KEYS {
        let hits = seen.hits.iter().filter(|hit| hit.number % KEYS == key);
        let mut spans: Vec<_> = hits.filter_map(|hit| Some((at_work(hit)?, hit))).collect();
        assert!(spans.len() > EDITS, "{} spans of key {key} say too little", spans.len());
        spans.sort_by_key(|(span, _)| *span);
        // Spans of one cell overlap; the one that ends last is all that the next cell has to come after.
        let mut last: Option<(u64, &Hit)> = None;
        for ((from, to), hit) in spans {
            if let Some((until, before)) = last {
                assert!(before.cell == hit.cell || until < from, "key {key}: {before:?} beside {hit:?}");
            }
            last = Some(last.filter(|(until, _)| *until > to).unwrap_or((to, hit)));
        }
    }
}

#[test]
fn no_key_is_worked_on_by_two_cells_however_often_its_owner_changes_and_however_slow_a_router_is() {
    let (world, _turn) = World::enter();
    let owned = Owned::new(world);
    let slow = ["payments-a", "payments-b"].map(|cell| Slow::new(world, cell, WORK).expect("it is slow"));
    let load = Load::of(Plan {
        targets: routers(world).expect("routers"),
        path: "/owned".to_owned(),
        key_header: Some(http::HeaderName::from_static("x-account")),
        keys: KEYS,
        rate: 80,
        connections: 64,
        duration: None,
        timeout: Duration::from_secs(20),
        ..Plan::default()
    });
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a owns all keys");
    for edit in 0..EDITS {
        let owner = ["payments-b", "payments-a"][edit % 2];
        let mut pods = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers");
        let hanging = (edit == HANGS_AT).then(|| Stopped::new(vec![pods.remove(0)]).expect("stopped"));
        let edited = now_ms();
        owned.give_all_to(owner);
        if hanging.is_some() {
            holds_for(HANGS, || {
                ensure!(owned.is_settled().is_err(), "settled while a router hangs");
                Ok(())
            })
            .expect("nobody serves a key that a router may still send elsewhere");
        }
        drop(hanging);
        eventually(Duration::from_secs(30), || owned.is_settled()).expect("the edit is settled");
        load.wait_for_since(Duration::from_secs(10), owner, edited).expect("the new owner serves");
        load.fails_since(edited).expect("in between, the fence refused some");
    }
    let seen = load.stop();
    drop(slow);
    let other = seen.failed.iter().find(|failure| !failure.why.contains("OwnerMoving"));
    assert!(other.is_none(), "{other:?}");
    check_one_at_a_time(&seen);
}
