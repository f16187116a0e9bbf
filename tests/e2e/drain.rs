//! Draining a cell by editing its weight, under load, with nothing lost.

use std::time::Duration;

use bulkhead_tests::pods::{Stopped, orchestrators, running};
use bulkhead_tests::stall::StallWatch;
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, eventually};

/// From the patch to the last new request to a drained cell, in milliseconds; for as long as the machine stands still,
/// nothing can be in time.
const DRAIN_MS: u64 = 250;

#[test]
fn weight_0_ends_new_requests_within_250_ms_and_none_fails() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 400);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a gets its share first");

    let stalls = StallWatch::start();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#).expect("patched");
    let patched = now_ms();
    eventually(Duration::from_secs(10), || world.expect_condition("payments-a", "Drained", "True"))
        .expect("it says Drained");
    world.expect_condition("payments-a", "Ready", "True").expect("a drained cell stays green");

    let limit = DRAIN_MS + stalls.longest_ms();
    let back = now_ms();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#).expect("patched back");
    load.wait_for_since(Duration::from_secs(5), "payments-a", back).expect("a weight edit needs no ramp");
    let outcome = load.stop();

    assert!(outcome.failed.is_empty(), "{} failed: {:?}", outcome.failed.len(), outcome.failed.first());
    let late: Vec<_> = outcome
        .hits
        .iter()
        .filter(|hit| hit.cell == "payments-a" && hit.sent_ms > patched + limit && hit.sent_ms < back)
        .collect();
    assert!(
        late.is_empty(),
        "{} requests reached the drained cell, the last {} ms after the patch; {limit} ms were allowed",
        late.len(),
        late.iter().map(|hit| hit.sent_ms - patched).max().unwrap_or_default()
    );
}

#[test]
fn a_traffic_shift_drains_a_cell_and_ends_by_itself() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a gets its share first");
    let expires = jiff::Timestamp::now() + Duration::from_secs(6);
    let applied = now_ms();
    world
        .apply(&format!(
            "apiVersion: bulkhead.dev/v1alpha1\nkind: TrafficShift\nmetadata: {{name: incident-1}}\nspec: {{cell: payments-a, weight: 0, reason: a test, expiresAt: \"{expires}\"}}\n"
        ))
        .expect("applied");
    eventually(Duration::from_secs(5), || world.expect_condition("payments-a", "Drained", "True"))
        .expect("it says Drained");
    let spec = world.json(&["get", "cell", "payments-a"]).expect("read");
    assert_eq!(spec.pointer("/spec/weight"), Some(&serde_json::json!(100)), "the user's spec is the user's");
    load.wait_for_since(Duration::from_secs(30), "payments-a", applied + 5_000)
        .expect("it comes back when the shift expires");
    let outcome = load.stop();
    world.kubectl(&["delete", "trafficshift", "incident-1", "--ignore-not-found"]).expect("cleaned up");
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed.first());
}

#[test]
fn a_cell_is_drained_although_operators_and_another_cell_hang() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 400);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a gets its share first");
    let mut hanging = running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators");
    hanging.extend(orchestrators(world, "payments-c").expect("orchestrators"));
    let stopped = Stopped::new(hanging).expect("stopped");
    let stalls = StallWatch::start();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#).expect("patched");
    let patched = now_ms();
    load.wait_for_since(Duration::from_secs(10), "payments-b", patched + 2_000).expect("payments-b goes on");
    let limit = DRAIN_MS + stalls.longest_ms();
    let end = now_ms();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#).expect("patched back");
    drop(stopped);
    let seen = load.stop();
    let late = seen.sent_between("payments-a", patched + limit, end);
    assert_eq!(late, 0, "requests to the drained cell");
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
}
