//! A cluster at rest is left alone, and what people or their GitOps tools wrote stays theirs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::pods::{Unready, routers, running};
use bulkhead_tests::traffic::{Load, Request, now_ms, send};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, audit, eventually, holds_for};
use nix::sys::signal::Signal;
use serde_json::Value;

/// How long a cluster at rest is watched; `cargo xtask soak` does it for longer.
const REST: Duration = Duration::from_secs(30);

/// What was written since then, each thing once.
fn writes_since(world: &World, from: u64) -> Result<BTreeSet<String>> {
    Ok(audit::writes_since(world, from)?.iter().map(ToString::to_string).collect())
}

fn end_of_log(world: &World) -> u64 {
    audit::end(world).expect("the log is there")
}

#[test]
fn a_cluster_at_rest_is_not_written_to() {
    is_left_alone(REST);
}

/// Comes to rest, and then sees no write for that long.
pub(crate) fn is_left_alone(watched: Duration) {
    let (world, _turn) = World::enter();
    // Statuses may settle once more after the last test.
    let mut from = end_of_log(world);
    eventually(Duration::from_secs(60), || {
        let before = std::mem::replace(&mut from, end_of_log(world));
        holds_for(Duration::from_secs(5), || Ok(()))?;
        let writes = writes_since(world, before)?;
        ensure!(writes.is_empty(), "still writing: {writes:?}");
        Ok(())
    })
    .expect("it comes to rest");
    let from = end_of_log(world);
    holds_for(watched, || {
        let writes = writes_since(world, from)?;
        ensure!(writes.is_empty(), "written without need: {writes:?}");
        Ok(())
    })
    .expect("nothing is written");

    // The control: a change is written, so the log shows what it should.
    world.patch("cell", "payments-c", r#"{"spec":{"weight":50}}"#).expect("patched");
    let seen = eventually(Duration::from_secs(10), || {
        let writes = writes_since(world, from)?;
        ensure!(!writes.is_empty(), "no write in the audit log");
        Ok(writes)
    });
    world.patch("cell", "payments-c", r#"{"spec":{"weight":100}}"#).expect("patched back");
    seen.expect("the negative control");
}

#[test]
fn a_failover_leaves_the_spec_as_gitops_wrote_it() {
    let (world, _turn) = World::enter();
    let specs = || {
        let cells = world.json(&["get", "cells"]).expect("listed");
        let policies = world.json(&["get", "routingpolicies", "-A"]).expect("listed");
        let specs = |list: &Value| {
            list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|item| (item["spec"].clone(), item["metadata"]["generation"].clone()))
                .collect::<Vec<_>>()
        };
        (specs(&cells), specs(&policies))
    };
    let before = specs();
    let load = Load::start(world, 100);
    load.wait_for(Duration::from_secs(10), "payments-b").expect("traffic flows");
    // Not a kill: a container is back before anybody has to see that it was gone.
    let unready = Unready::new(world, "payments-b").expect("the services take the order");
    let is_out = || world.expect_condition("payments-b", "OrchestratorReady", "False");
    eventually(Duration::from_secs(10), is_out).expect("it is out");
    // Re-applying what is in Git, as a GitOps controller does every few seconds: nobody has written over it.
    holds_for(Duration::from_secs(10), || {
        world.kubectl(&["apply", "-f", "examples/"])?;
        ensure!(specs() == before, "a spec or its generation changed");
        is_out()
    })
    .expect("specs stay as they are in Git");
    drop(unready);
    eventually(Duration::from_secs(60), || world.expect_condition("payments-b", "Serving", "True"))
        .expect("it is back");
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
    assert_eq!(specs(), before);
}

#[test]
fn a_drained_cell_stays_drained_over_a_restart_of_routers_and_operator() {
    let (world, _turn) = World::enter();
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#).expect("patched");
    eventually(Duration::from_secs(10), || world.expect_condition("payments-a", "Drained", "True"))
        .expect("drained");
    let load = Load::start(world, 100);
    let since = now_ms();
    let operators = running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators");
    let first_router = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers").remove(0);
    for pod in operators.iter().chain([&first_router]) {
        pod.signal(Signal::SIGKILL).expect("killed");
    }
    let address = routers(world).expect("routers")[0];
    let answered_by = |key: u32| {
        let answer = send(address, &Request::get("/").header("x-account", &key.to_string()))?;
        ensure!(answer.status == 200, "answered {}", answer.status);
        answer.cell().map(str::to_owned).context("a cell answers")
    };
    eventually(Duration::from_secs(60), || answered_by(0)).expect("the router is back");
    for key in 0..200 {
        assert_eq!(answered_by(key).expect("answered"), "payments-b", "key {key}, from the restarted router");
    }
    load.wait_for_since(Duration::from_secs(10), "payments-b", now_ms()).expect("traffic goes on");
    let seen = load.stop();
    let late = seen.sent_between("payments-a", since, u64::MAX);
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#).expect("patched back");
    assert_eq!(late, 0, "requests to a drained cell");
}

/// How many of 500 keys that router gives to payments-a.
fn keys_of_a(router: SocketAddr) -> Result<usize> {
    let cells = (0..500).map(|key: u32| {
        let answer = send(router, &Request::get("/").header("x-account", &key.to_string()))?;
        ensure!(answer.status == 200, "key {key} was answered {}", answer.status);
        Ok(answer.cell() == Some("payments-a"))
    });
    Ok(cells.collect::<Result<Vec<_>>>()?.into_iter().filter(|of_a| *of_a).count())
}

#[test]
fn a_shift_of_a_rule_outlives_the_operators() {
    let (world, _turn) = World::enter();
    let shares = |expected: &[&str]| {
        let policy = world.json(&["get", "routingpolicy", "payments"])?;
        let rules = policy["status"]["rules"].as_array().cloned().unwrap_or_default();
        let rule = rules.iter().find(|rule| rule["name"] == "everything-else");
        let shares = rule.map(|rule| rule["shares"].clone()).unwrap_or_default();
        ensure!(shares == serde_json::json!(expected), "{shares}");
        Ok(())
    };
    let even = ["payments-a=80.0%", "payments-b=20.0%"];
    eventually(Duration::from_secs(10), || shares(&even)).expect("as the spec says");
    world
        .apply(
            "apiVersion: bulkhead.dev/v1alpha1
kind: TrafficShift
metadata: {name: try-b}
spec:
  policy: {namespace: default, name: payments, rule: everything-else}
  weights: [{name: payments-a, weight: 10}, {name: payments-b, weight: 90}]
  reason: a test
  expiresAt: 2099-01-01T00:00:00Z
",
        )
        .expect("stored");
    let shifted = ["payments-a=10.0%", "payments-b=90.0%"];
    eventually(Duration::from_secs(10), || shares(&shifted)).expect("as the shift says");
    world
        .kubectl(&["wait", "--for=condition=Ready", "trafficshift/try-b", "--timeout=15s"])
        .expect("all is said of it");
    let from = end_of_log(world);
    for pod in running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators") {
        pod.signal(Signal::SIGKILL).expect("killed");
    }
    world
        .kubectl(&["rollout", "status", "deployment/bulkhead-operator", "-n", SYSTEM, "--timeout=120s"])
        .expect("they are back");
    // Another leader is elected when the lease of the one that was killed is over.
    let marker = r#"{"metadata":{"labels":{"steady":"yes"}},"spec":{"weight":50}}"#;
    world.patch("cell", "payments-c", marker).expect("patched");
    eventually(Duration::from_secs(120), || {
        let cell = world.json(&["get", "cell", "payments-c"])?;
        ensure!(cell["status"]["observedGeneration"] == cell["metadata"]["generation"], "not seen yet");
        Ok(())
    })
    .expect("one of them leads");
    let still = holds_for(Duration::from_secs(5), || {
        shares(&shifted)?;
        let others: Vec<_> =
            writes_since(world, from)?.into_iter().filter(|write| !write.contains("payments-c")).collect();
        ensure!(others.is_empty(), "written without need: {others:?}");
        Ok(())
    });
    let sent: Vec<_> = routers(world).expect("routers").into_iter().map(keys_of_a).collect();
    world.kubectl(&["delete", "trafficshift", "try-b"]).expect("cleaned up");
    world.kubectl(&["label", "cell", "payments-c", "steady-"]).expect("cleaned up");
    eventually(Duration::from_secs(10), || shares(&even)).expect("as the spec says again");
    still.expect("nobody took it back");
    for keys in sent {
        let keys = keys.expect("every key is answered");
        // 50 are expected, and five standard deviations are 34.
        assert!((16..=84).contains(&keys), "payments-a has {keys} of 500 keys");
    }
}

#[test]
fn routers_that_join_later_get_the_table_before_they_are_ready() {
    let (world, _turn) = World::enter();
    world
        .kubectl(&["scale", "statefulset", "bulkhead-router", "-n", SYSTEM, "--replicas=5"])
        .expect("scaled out");
    let scaled = world
        .kubectl(&["rollout", "status", "statefulset/bulkhead-router", "-n", SYSTEM, "--timeout=90s"])
        .and_then(|_| routers(world))
        .and_then(|addresses| {
            ensure!(addresses.len() == 5, "{} routers", addresses.len());
            for address in addresses {
                let answer = send(address, &Request::get("/").header("x-account", "7"))?;
                ensure!(answer.status == 200, "{address} answered {}: {}", answer.status, answer.body);
            }
            Ok(())
        });
    world
        .kubectl(&["scale", "statefulset", "bulkhead-router", "-n", SYSTEM, "--replicas=2"])
        .expect("scaled in");
    scaled.expect("every router serves as soon as it is ready");
    eventually(Duration::from_secs(60), || {
        let left = running(world, SYSTEM, "bulkhead.dev/component=router")?.len();
        ensure!(left == 2, "{left} routers");
        Ok(())
    })
    .expect("two are left");
}
