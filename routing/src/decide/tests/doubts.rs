//! Evidence against cells: each rule takes out as many as it can do without, and no more.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::{World, to};

const THREE: &[&[(&str, u32)]] = &[&[("a", 1), ("b", 1), ("c", 1)], &[("d", 1)]];
const ALL_OF_FOUR: [u32; 4] = [333_333, 333_333, 333_334, 0];

/// Each with its rank, suspected or let back so many milliseconds ago.
fn doubted(table: &Table, cells: &[(&str, u16, Option<u64>)]) -> States {
    let mut states = States::of(table);
    for (cell, rank, age_ms) in cells {
        states.view(table, cell).doubt = Some(Doubt { rank: *rank, age_ms: *age_ms });
    }
    states
}

#[test]
fn of_three_cells_one_may_be_kept_out_and_it_is_the_worst_or_the_first_by_name() {
    let table = World::with_groups(THREE).table();
    check_shares(&table, &doubted(&table, &[("b", 9, None)]), &[500_000, 0, 500_000, 0]);
    check_shares(&table, &doubted(&table, &[("a", 8, None), ("b", 9, None)]), &[500_000, 0, 500_000, 0]);
    check_shares(&table, &doubted(&table, &[("c", 9, None), ("b", 9, None)]), &[500_000, 0, 500_000, 0]);
    let all = doubted(&table, &[("a", 7, None), ("b", 8, None), ("c", 9, None)]);
    check_shares(&table, &all, &[500_000, 500_000, 0, 0]);
}

#[test]
fn of_one_or_two_cells_none_is_kept_out() {
    for groups in [&[&[("a", 1), ("b", 1)][..], &[("c", 1), ("d", 1)]], &[&[("a", 1)], &[("b", 1)]]] {
        let table = World::with_groups(groups).table();
        let states = doubted(&table, &[("a", 9, None), ("b", 9, Some(0))]);
        check_shares(&table, &states, &shares_without(&table, &states));
    }
}

/// The shares as if nothing were doubted.
fn shares_without(table: &Table, states: &States) -> Vec<u32> {
    let views = states.views.iter().map(|view| CellView { doubt: None, ..*view }).collect();
    let states = States { views, ..*states };
    shares(the_rule(table), &states).into_iter().map(|(_, share)| share).collect()
}

#[test]
fn cells_that_could_not_serve_anyway_are_no_others() {
    let table = World::with_groups(THREE).table();
    let mut states = doubted(&table, &[("a", 9, None)]);
    states.view(&table, "b").is_in = false;
    check_shares(&table, &states, &[500_000, 0, 500_000, 0]);
    // Held down they take nothing, and a is the last that does.
    let mut states = doubted(&table, &[("a", 9, None)]);
    states.view(&table, "b").ramp_age_ms = 5_000;
    states.view(&table, "c").ramp_age_ms = 5_000;
    check_shares(&table, &states, &[1_000_000, 0, 0, 0]);
    let table = World::with_groups(&[&[("a", 1), ("b", 1), ("c", 0)]]).table();
    check_shares(&table, &doubted(&table, &[("a", 9, None)]), &[500_000, 500_000, 0]);
}

#[test]
fn a_cell_that_was_let_back_climbs_by_the_steps_of_the_rule() {
    let table = World::with_groups(THREE).table();
    for (age, percent) in [(0, 0), (10_000, 5), (20_000, 25), (30_000, 50)] {
        let share = 1_000_000 * percent / (percent + 200);
        let shares = shares(the_rule(&table), &doubted(&table, &[("a", 9, Some(age))]));
        assert_eq!(shares[0].1, share, "at {age}");
    }
    check_shares(&table, &doubted(&table, &[("a", 9, Some(40_000))]), &ALL_OF_FOUR);
    // It is the one that may be, and so the others stay.
    check_shares(&table, &doubted(&table, &[("a", 9, Some(0)), ("b", 8, None)]), &[0, 500_000, 500_000, 0]);
}

#[test]
fn under_owner_doubts_move_no_key() {
    let world = World::with_groups(&[THREE[0]]).rule(|rule| {
        rule.owner = true;
        rule.key = serde_json::from_value(json!({"header": "x-account"})).ok();
    });
    let table = world.table();
    let states = doubted(&table, &[("a", 9, None), ("b", 8, Some(0))]);
    for n in 0..100 {
        assert_eq!(decide(&table, &states, n), decide(&table, &States::of(&table), n));
    }
    check_shares(&table, &states, &[333_333, 333_333, 333_334]);
}

#[test]
fn each_rule_has_its_own_bound() {
    let mut world = World::with_groups(&[THREE[0]]);
    let alone = to("alone", crate::fixture::header("x", "1"), "a");
    world.policies.push(crate::fixture::policy("ns/q", 0, 200, json!([alone])));
    let table = world.table();
    let states = doubted(&table, &[("a", 9, None)]);
    for rule in table.rules() {
        let (shares, percents) = (shares(rule, &states), ramps(rule, &states));
        let expected = if rule.groups[0].cells.len() == 1 { (1_000_000, 100) } else { (0, 0) };
        assert_eq!((shares[0].1, percents[0].1), expected, "{}", rule.id);
    }
}

#[test]
fn what_is_kept_out_counts_against_the_threshold_of_its_group() {
    let table = World::with_groups(THREE).rule(|rule| rule.groups[0].min_healthy_percent = 100).table();
    check_all(&table, &doubted(&table, &[("a", 9, None)]), "d");
    let table = World::with_groups(THREE).rule(|rule| rule.groups[0].min_healthy_percent = 60).table();
    check_shares(&table, &doubted(&table, &[("a", 9, None)]), &[0, 500_000, 500_000, 0]);
}

#[test]
fn who_was_everywhere_else_may_go_to_a_cell_that_is_suspected() {
    let table = World::with_groups(&[THREE[0]]).table();
    let states = doubted(&table, &[("a", 9, None)]);
    let named = |cell| table.cell_named(cell).expect("a cell");
    let choice = choose(the_rule(&table), nth(1), &states, &[named("b"), named("c")]);
    assert_eq!(choice.map(|choice| choice.cell), Ok(named("a")));
}

proptest! {
    #[test]
    fn doubts_keep_a_third_out_at_most_and_leave_nobody_without_a_cell(
        views in prop::collection::vec(view(), 7),
        n in any::<u32>(),
    ) {
        let table = World::with_groups(&[
            &[("a", 1), ("b", 1), ("c", 2), ("d", 1), ("e", 3)],
            &[("f", 1), ("g", 1)],
        ]).table();
        let states = States { views, now_unix_ms: 0 };
        let rule = the_rule(&table);
        let scene = Scene::new(rule, &states);
        for group in 0..rule.groups.len() {
            let usable = scene.named(group).filter(|(_, _, view)| view.is_some_and(|view| view.is_usable()));
            let concerned = scene.look(group).cells.into_iter().filter(|(_, _, view)| view.is_some_and(|view| view.doubt.is_some()));
            prop_assert!(concerned.count() <= usable.count() / 3);
        }
        let total = |shares: &[u32]| shares.iter().sum::<u32>();
        let with: Vec<u32> = shares(rule, &states).into_iter().map(|(_, share)| share).collect();
        prop_assert_eq!(total(&with), total(&shares_without(&table, &states)));
        let without = choose(rule, nth(n), &States {
            views: states.views.iter().map(|view| CellView { doubt: None, ..*view }).collect(), now_unix_ms: 0,
        }, &[]);
        prop_assert_eq!(choose(rule, nth(n), &states, &[]).is_ok(), without.is_ok());
    }
}
