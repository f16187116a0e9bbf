//! Groups: the first that can serves, never a cell that is out or drained, and returns go by steps.

use bulkhead_protocol::Reason;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::{World, header, policy, shift};

#[test]
fn all_zero_is_all_drained_and_never_an_even_split() {
    let table = World::with_groups(&[&[("a", 0), ("b", 0)], &[("c", 0)]]).table();
    check_all(&table, &States::of(&table), "AllDrained");
    assert!(shares(the_rule(&table), &States::of(&table)).iter().all(|(_, share)| *share == 0));
    let mut world = World::with_groups(&[&[("a", 1), ("b", 1)]]);
    world.cells[0].spec.weight = 0;
    world.cells[1].spec.state = bulkhead_crds::CellState::Drained;
    let table = world.table();
    check_all(&table, &States::of(&table), "AllDrained");
}

#[test]
fn a_drained_cell_never_serves_for_others_that_are_out() {
    let mut world = World::with_groups(&[&[("a", 80), ("b", 20)]]);
    world.cells[1].spec.weight = 0;
    let table = world.table();
    check_all(&table, &States::of(&table).out(&table, &["a"]), "NoHealthyCell");
    let policy_zero = World::with_groups(&[&[("a", 1), ("b", 0)]]).table();
    check_all(&policy_zero, &States::of(&policy_zero).out(&policy_zero, &["a"]), "NoHealthyCell");
}

#[test]
fn with_half_of_a_group_dead_all_goes_to_the_other_half() {
    let table = World::with_groups(&[&[("a", 50), ("b", 50)], &[("c", 1)]]).table();
    check_all(&table, &States::of(&table).out(&table, &["b"]), "a");
    check_all(&table, &States::of(&table).out(&table, &["a"]), "b");
}

#[test]
fn a_cell_that_is_not_ready_never_gets_a_request_by_default() {
    let table = World::with_groups(&[&[("a", 1), ("b", 1)], &[("c", 1)]]).table();
    check_all(&table, &States::of(&table).out(&table, &["a", "b", "c"]), "NoHealthyCell");
    for min in [0, 50, 100] {
        let table = World::with_groups(&[&[("a", 1), ("b", 1)]])
            .rule(|r| r.groups[0].min_healthy_percent = min)
            .table();
        check_all(&table, &States::of(&table).out(&table, &["a", "b"]), "NoHealthyCell");
        check_all(&table, &States::of(&table).out(&table, &["a"]), "b");
    }
}

#[test]
fn two_groups_fail_over_with_no_other_setting() {
    let table = World::with_groups(&[&[("a", 1)], &[("b", 1)]]).table();
    check_all(&table, &States::of(&table), "a");
    check_all(&table, &States::of(&table).out(&table, &["a"]), "b");
}

/// Every order in which `n` things can go.
fn orders(n: usize) -> Vec<Vec<usize>> {
    let shorter = |order: Vec<usize>| {
        (0..n).map(move |place| {
            let mut longer = order.clone();
            longer.insert(place, n - 1);
            longer
        })
    };
    if n == 0 { vec![vec![]] } else { orders(n - 1).into_iter().flat_map(shorter).collect() }
}

#[test]
fn whatever_dies_in_whatever_order_the_first_live_group_serves() {
    for count in [3, 5] {
        let names = ["a", "b", "c", "d", "e"];
        let groups: Vec<_> = names[..count].iter().map(|name| vec![(*name, 1)]).collect();
        let table = World::with_groups(&groups.iter().map(Vec::as_slice).collect::<Vec<_>>()).table();
        for order in orders(count) {
            let mut states = States::of(&table);
            let mut live: Vec<usize> = (0..count).collect();
            for dead in order {
                assert_eq!(decide(&table, &states, 1), names[live[0]]);
                states = states.out(&table, &[names[dead]]);
                live.retain(|group| *group != dead);
            }
            assert_eq!(decide(&table, &states, 1), "NoHealthyCell");
        }
    }
}

#[test]
fn a_group_below_its_threshold_gives_way_unless_none_reaches_its_own() {
    let world = |min_of_c| {
        World::with_groups(&[&[("a", 80), ("b", 20)], &[("c", 1), ("d", 3)]]).rule(|rule| {
            rule.groups[0].min_healthy_percent = 50;
            rule.groups[1].min_healthy_percent = min_of_c;
        })
    };
    let table = world(0).table();
    check_all(&table, &States::of(&table).out(&table, &["b"]), "a");
    check_all(&table, &States::of(&table).out(&table, &["a", "d"]), "c");
    // c has 25 of 100: no group is healthy enough, and the first with a cell in serves.
    let table = world(26).table();
    check_all(&table, &States::of(&table).out(&table, &["a", "d"]), "b");
    check_all(&table, &States::of(&table).out(&table, &["a", "b", "d"]), "c");
    let table = world(25).table();
    check_all(&table, &States::of(&table).out(&table, &["a", "d"]), "c");
}

#[test]
fn the_threshold_counts_policy_weight_of_cells_that_are_not_drained() {
    let mut world = World::with_groups(&[&[("a", 80), ("b", 20)], &[("c", 1)]]);
    world.cells[0].spec.weight = 0;
    let table = world.rule(|rule| rule.groups[0].min_healthy_percent = 100).table();
    check_all(&table, &States::of(&table), "b");
}

#[test]
fn an_attempt_never_goes_where_the_transaction_was_until_all_were_tried() {
    let table = World::with_groups(&[&[("a", 1), ("b", 1)], &[("c", 1)]]).table();
    let states = States::of(&table);
    for n in 0..200 {
        let mut tried = Vec::new();
        while let Ok(choice) = choose(the_rule(&table), nth(n), &states, &tried) {
            assert!(!tried.contains(&choice.cell));
            tried.push(choice.cell);
        }
        assert_eq!(tried.len(), 3);
        assert_eq!(tried[2], table.cell_named("c").expect("c"), "the group of the first comes first");
        let refusal = choose(the_rule(&table), nth(n), &states, &tried).expect_err("none is left");
        assert_eq!(refusal.reason, Reason::NoHealthyCell);
        assert!(refusal.detail.contains("3 tried"), "{refusal}");
    }
}

#[test]
fn shares_say_where_traffic_goes() {
    let table = World::with_groups(&[&[("a", 80), ("b", 20)], &[("c", 7), ("a", 1)]]).table();
    let states = States::of(&table);
    check_shares(&table, &states, &[800_000, 200_000, 0]);
    let mut states = states;
    states.view(&table, "a").weight = 25;
    check_shares(&table, &states, &[500_000, 500_000, 0]);
    states.view(&table, "b").ramp_age_ms = 25_000;
    check_shares(&table, &states, &[800_000, 200_000, 0]);
    check_shares(&table, &States::of(&table).out(&table, &["a", "b"]), &[0, 0, 1_000_000]);
    check_shares(&table, &States::of(&table).out(&table, &["a", "b", "c"]), &[0, 0, 0]);
    let thirds = World::with_groups(&[&[("a", 1), ("b", 1), ("c", 1)]]).table();
    check_shares(&thirds, &States::of(&thirds), &[333_333, 333_333, 333_334]);
}

#[test]
fn a_cell_that_returns_gets_its_steps_and_the_others_the_rest() {
    let table = World::with_groups(&[&[("a", 60), ("b", 40)], &[("c", 1)]]).table();
    for (age, of_a) in
        [(0, 0), (9_999, 0), (10_000, 60 * 5), (20_000, 60 * 25), (30_000, 60 * 50), (40_000, 60 * 100)]
    {
        let mut states = States::of(&table);
        states.view(&table, "a").ramp_age_ms = age;
        let expected = (1_000_000_u64 * of_a / (of_a + 40 * 100)) as u32;
        check_shares(&table, &states, &[expected, 1_000_000 - expected, 0]);
    }
}

#[test]
fn a_cell_that_is_held_down_serves_only_when_nothing_else_can() {
    let table = World::with_groups(&[&[("a", 1)], &[("b", 1)]]).table();
    let mut states = States::of(&table);
    states.view(&table, "a").ramp_age_ms = 9_999;
    check_all(&table, &states, "b");
    check_all(&table, &states.out(&table, &["b"]), "a");
    let mut states = States::of(&table);
    states.view(&table, "a").ramp_age_ms = 10_000;
    check_all(&table, &states, "a");
}

#[test]
fn cells_that_came_up_together_share_at_every_step() {
    let table = World::with_groups(&[&[("a", 1), ("b", 1)]]).table();
    for age in [0, 9_000, 10_500, 20_500, 60_000] {
        let mut states = States::of(&table);
        states.view(&table, "a").ramp_age_ms = age;
        states.view(&table, "b").ramp_age_ms = age + 2_000;
        check_shares(&table, &states, &[500_000, 500_000]);
    }
}

#[test]
fn one_flip_of_a_cell_moves_every_policy_that_names_it() {
    let mut world = World::new(&["a", "b"]);
    let groups = json!([{"cells": [{"name": "a"}]}, {"cells": [{"name": "b"}]}]);
    for n in 0..100 {
        let rule = json!([{"name": "r", "matches": header("x", &n.to_string()), "groups": groups}]);
        world.policies.push(policy(&format!("ns/p{n}"), 0, 100, rule));
    }
    let table = world.table();
    let dead = States::of(&table).out(&table, &["a"]);
    for rule in table.rules() {
        let choice = choose(rule, nth(1), &dead, &[]).expect("a cell");
        assert_eq!(name(&table, &choice), "b");
    }
}

#[test]
fn a_shift_of_a_rule_holds_until_it_ends() {
    let mut world = World::with_groups(&[&[("a", 1), ("b", 1)]]);
    let spec = json!({
        "policy": {"namespace": "ns", "name": "p", "rule": "all"},
        "weights": [{"name": "a", "weight": 0}], "expiresAt": "1970-01-01T00:00:01Z",
    });
    world.shifts = vec![shift("s", 0, spec)];
    let table = world.table();
    check_all(&table, &States::at(&table, 999), "b");
    check_shares(&table, &States::at(&table, 1_000), &[500_000, 500_000]);
}

proptest! {
    #[test]
    fn a_choice_is_always_in_and_never_drained_and_refused_only_when_none_is(
        views in prop::collection::vec(view(), 5),
        weights in prop::collection::vec(prop::sample::select(vec![0_u32, 1, 20, 1_000_000]), 5),
        mins in prop::collection::vec(0_u32..=100, 2),
        n in any::<u32>(),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let cells: Vec<(&str, u32)> = names.into_iter().zip(weights.iter().copied()).collect();
        let table = World::with_groups(&[&cells[..3], &cells[3..]])
            .rule(|rule| rule.groups.iter_mut().zip(&mins).for_each(|(group, min)| group.min_healthy_percent = *min))
            .table();
        let states = States { views: views.clone(), now_unix_ms: 0 };
        let can = |place: usize| weights[place] > 0 && views[place].is_usable();
        let shares = shares(the_rule(&table), &states);
        match choose(the_rule(&table), nth(n), &states, &[]) {
            Ok(choice) => {
                let place = choice.cell.0 as usize;
                prop_assert!(can(place));
                prop_assert!(shares[place].1 > 0 || weights[place] == 1, "shares say where it goes: {:?}", shares);
                prop_assert_eq!(shares.iter().map(|(_, share)| share).sum::<u32>(), 1_000_000);
            }
            Err(refusal) => {
                prop_assert!(!(0..5).any(can), "{} while a cell could serve", refusal);
                let drained = (0..5).all(|place| weights[place] == 0 || views[place].drained);
                prop_assert_eq!(refusal.reason == Reason::AllDrained, drained);
                prop_assert!(shares.iter().all(|(_, share)| *share == 0));
            }
        }
    }
}
