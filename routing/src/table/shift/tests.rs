//! What shifts leave of the weights of cells and rules, and which of them hold.

use bulkhead_crds::cell::CellState;
use serde_json::{Value, json};

use crate::fixture::{World, cell, header, policy, shift, the_rule};
use crate::table::CellIndex;

fn check_weight(spec: &Value, shifts: &[Value], now_unix_ms: u64, percent: u32, operator_shift: bool) {
    let mut world = World::new(&[]);
    world.cells = vec![cell("a", spec.clone())];
    let shifts_of = |(n, spec): (usize, &Value)| shift(&format!("s{n}"), n as u32, spec.clone());
    world.shifts = shifts.iter().enumerate().map(shifts_of).collect();
    let weight = world.table().cell_weight(CellIndex(0), now_unix_ms);
    assert_eq!((weight.percent, weight.operator_shift), (percent, operator_shift), "{spec} under {shifts:?}");
}

#[test]
fn of_shifts_for_one_cell_the_lowest_holds_and_none_raises() {
    let until = "2026-01-01T00:01:00Z";
    let user = |weight: u32| json!({"cell": "a", "weight": weight, "expiresAt": until});
    let operator = |weight: u32| json!({"cell": "a", "weight": weight, "owner": "Operator"});
    let state = |state: &str| json!({"cell": "a", "state": state, "expiresAt": until});
    let end = 1_767_225_660_000;
    check_weight(&json!({}), &[], 0, 100, false);
    check_weight(&json!({"weight": 40}), &[user(70)], 0, 40, false);
    check_weight(&json!({}), &[user(70), user(20), operator(50)], 0, 20, false);
    check_weight(&json!({}), &[user(70), user(20), operator(50)], end, 50, false);
    check_weight(&json!({}), &[user(20)], end - 1, 20, false);
    check_weight(&json!({}), &[user(20)], end, 100, false);
    check_weight(&json!({}), &[operator(0)], end, 0, true);
    check_weight(&json!({}), &[state("Drained")], 0, 0, false);
    check_weight(&json!({}), &[state("Active")], 0, 100, false);
    check_weight(&json!({"state": "Drained"}), &[state("Active"), user(100)], 0, 0, false);
}

#[test]
fn every_state_is_carried_and_the_strictest_holds() {
    for (spec, of_shift, expected) in [
        ("Active", "Active", CellState::Active),
        ("Active", "Disabled", CellState::Disabled),
        ("Disabled", "Drained", CellState::Disabled),
        ("Drained", "Active", CellState::Drained),
    ] {
        let mut world = World::new(&[]);
        world.cells = vec![cell("a", json!({"state": spec}))];
        world.shifts = vec![shift("s", 0, json!({"cell": "a", "state": of_shift, "owner": "Operator"}))];
        let weight = world.table().cell_weight(CellIndex(0), 0);
        assert_eq!(weight.state, expected, "{spec} and {of_shift}");
        assert_eq!(weight.percent == 0, expected != CellState::Active);
    }
}

#[test]
fn of_shifts_for_one_rule_the_newest_holds_until_it_ends() {
    let mut world = World::with_groups(&[&[("a", 80), ("b", 20)], &[("b", 5)]]);
    let policy = json!({"namespace": "ns", "name": "p", "rule": "all"});
    let weights = |a: u32| json!([{"name": "a", "weight": a}]);
    let both = json!([{"name": "b", "weight": 3}, {"name": "nobody", "weight": 3}]);
    world.shifts = vec![
        shift("old", 1, json!({"policy": policy, "weights": both, "owner": "Operator"})),
        shift(
            "new",
            2,
            json!({"policy": policy, "weights": weights(0), "expiresAt": "1970-01-01T00:00:01Z"}),
        ),
    ];
    for _ in 0..2 {
        let table = world.table();
        assert_eq!(the_rule(&table).shifted_weights(999), Some(&[vec![0, 20], vec![5]][..]));
        assert_eq!(the_rule(&table).shifted_weights(1_000), Some(&[vec![80, 3], vec![3]][..]));
        world.shifts.reverse();
    }
}

#[test]
fn a_shift_that_cannot_hold_says_why_and_changes_nothing() {
    let mut world = World::with_groups(&[&[("a", 1)]]);
    world.policies.push(policy(
        "ns/owned",
        1,
        100,
        json!([{"name": "r", "owner": true, "key": {"header": "k"}, "matches": header("x", "1"), "groups": [{"cells": [{"name": "a"}]}]}]),
    ));
    let end = "2030-01-01T00:00:00Z";
    let rule = |name: &str, rule: &str| json!({"namespace": "ns", "name": name, "rule": rule});
    let weights = json!([{"name": "a", "weight": 0}]);
    for (spec, reason) in [
        (json!({"cell": "a", "weight": 0}), "InvalidShift"),
        (json!({"cell": "a", "weight": 0, "expiresAt": "tomorrow"}), "InvalidShift"),
        (json!({"cell": "a", "expiresAt": end}), "InvalidShift"),
        (json!({"weight": 0, "expiresAt": end}), "InvalidShift"),
        (json!({"cell": "gone", "weight": 0, "expiresAt": end}), "CellNotFound"),
        (json!({"policy": rule("p", "gone"), "weights": weights, "expiresAt": end}), "RuleNotFound"),
        (json!({"policy": rule("owned", "r"), "weights": weights, "expiresAt": end}), "OwnerRule"),
    ] {
        world.shifts = vec![shift("s", 0, spec.clone())];
        let build = world.build();
        assert_eq!(build.shifts[0].accepted.reason, reason, "{spec}");
        assert_eq!(build.table.cell_weight(CellIndex(0), 0).percent, 100, "{spec}");
        assert!(build.table.rules().iter().all(|rule| rule.shifts.is_empty()), "{spec}");
    }
}
