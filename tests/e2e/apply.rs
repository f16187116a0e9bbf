//! `kubectl apply -f examples/` and what `kubectl` then tells.

use std::time::Duration;

use bulkhead_tests::World;

#[test]
fn the_examples_are_ready_and_serving_within_a_minute() {
    let (world, _turn) = World::enter();
    assert!(world.time_to_ready <= Duration::from_secs(60), "it took {:?}", world.time_to_ready);
}

#[test]
fn applying_the_same_files_again_changes_nothing() {
    let (world, _turn) = World::enter();
    let told = world.kubectl(&["apply", "-f", "examples/"]).expect("applied");
    let changed: Vec<_> = told.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    assert!(!told.is_empty() && changed.is_empty(), "{changed:#?}");
}

#[test]
fn kubectl_get_cells_tells_the_story() {
    let (world, _turn) = World::enter();
    let table = world.kubectl(&["get", "cells"]).expect("kubectl get cells");
    let mut lines = table.lines();
    let header: Vec<_> = lines.next().expect("a header").split_whitespace().collect();
    assert_eq!(
        header,
        ["NAME", "STATE", "WEIGHT", "EFFECTIVE", "READY", "ISOLATED", "SERVING", "REVISION", "AGE"]
    );
    for name in ["payments-a", "payments-b", "payments-c"] {
        let row = table.lines().find(|line| line.starts_with(name)).expect("a row for every cell");
        let columns: Vec<_> = row.split_whitespace().collect();
        assert_eq!(columns[1..7], ["Active", "100", "100", "True", "Unknown", "True"], "{row}");
    }
}

#[test]
fn kubectl_wait_and_the_routing_policy_say_that_all_is_programmed() {
    let (world, _turn) = World::enter();
    world
        .kubectl(&["wait", "--for=condition=Ready", "cell", "--all", "--timeout=5s"])
        .expect("cells are Ready");
    world
        .kubectl(&["wait", "--for=condition=Ready", "routingpolicy", "--all", "--timeout=15s"])
        .expect("the policy is accepted, resolved and programmed");
}
