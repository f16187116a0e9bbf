//! Routers, operators and what else a cluster runs come and go under load, and clients do not notice.

use std::time::Duration;

use bulkhead_tests::pods::{Stopped, running};
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, holds_for};

#[test]
fn a_rolling_restart_of_routers_and_operators_fails_nothing() {
    let (world, _turn) = World::enter();
    let load = Load::through_service(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    for what in ["statefulset/bulkhead-router", "deployment/bulkhead-operator"] {
        world.kubectl(&["rollout", "restart", what, "-n", SYSTEM]).expect("begun");
    }
    for what in ["statefulset/bulkhead-router", "deployment/bulkhead-operator"] {
        world
            .kubectl(&["rollout", "status", what, "-n", SYSTEM, "--timeout=180s"])
            .expect("every pod is a new one");
    }
    load.wait_for_since(Duration::from_secs(10), "payments-a", now_ms()).expect("traffic goes on");
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
}

#[test]
fn dns_and_operators_that_hang_are_not_on_the_path() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    let mut aside = running(world, "kube-system", "k8s-app=kube-dns").expect("the cluster's DNS");
    aside.extend(running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators"));
    assert!(aside.len() >= 3, "DNS and two operators: {aside:?}");
    let stopped = Stopped::new(aside).expect("stopped");
    holds_for(Duration::from_secs(5), || load.flowing()).expect("traffic goes on");
    drop(stopped);
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
}
