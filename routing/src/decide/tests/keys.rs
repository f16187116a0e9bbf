//! Keys: shares as written, keys that stay where they are, and owners.

use bulkhead_protocol::{Reason, TransactionId};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::{World, header, policy, request};
use crate::request::RequestParts;

const KEYS: u32 = 100_000;

fn counts(table: &Table, states: &States, keys: u32) -> Vec<u32> {
    let mut counts = vec![0; table.cells().len()];
    for n in 0..keys {
        let choice = choose(the_rule(table), nth(n), states, &[]).expect("a cell");
        counts[choice.cell.0 as usize] += 1;
    }
    counts
}

/// Pearson's statistic of what `keys` keys do beside what weights say; `critical` is its value at p = 0.001.
fn check_chi_square(group: &[(&str, u32)], keys: u32, critical: f64) {
    let table = World::with_groups(&[group]).table();
    check_chi_square_of(&table, &States::of(&table), group, keys, critical);
}

/// The same of the group that serves in those states.
fn check_chi_square_of(table: &Table, states: &States, group: &[(&str, u32)], keys: u32, critical: f64) {
    let counts = counts(table, states, keys);
    let total: u32 = group.iter().map(|(_, weight)| weight).sum();
    let statistic: f64 = group
        .iter()
        .map(|(name, weight)| {
            let expected = f64::from(keys) * f64::from(*weight) / f64::from(total);
            let got = counts[table.cell_named(name).expect("a cell").0 as usize];
            (f64::from(got) - expected).powi(2) / expected
        })
        .sum();
    assert!(statistic < critical, "{group:?} got {counts:?}, statistic {statistic}");
}

#[test]
fn shares_of_keys_are_those_of_weights() {
    check_chi_square(&[("a", 1), ("b", 99)], KEYS, 10.83);
    check_chi_square(&[("a", 20), ("b", 80)], KEYS, 10.83);
    check_chi_square(&[("a", 1), ("b", 2), ("c", 3)], KEYS, 13.82);
}

#[test]
fn sixty_four_equal_cells_get_equal_shares_each() {
    let names: Vec<String> = (0..64).map(|n| format!("cell-{n}")).collect();
    let group: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 100)).collect();
    check_chi_square(&group, 20_000, 103.44);
}

#[test]
fn each_of_three_groups_of_fifty_cells_shares_evenly_once_those_before_it_are_out() {
    let names: Vec<String> = (0..150).map(|n| format!("cell-{n}")).collect();
    let cells: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 100)).collect();
    let groups: Vec<&[(&str, u32)]> = cells.chunks(50).collect();
    let table = World::with_groups(&groups).table();
    let mut states = States::of(&table);
    for group in groups {
        check_chi_square_of(&table, &states, group, 10_000, 85.35);
        states = states.out(&table, &group.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
    assert_eq!(decide(&table, &states, 0), "NoHealthyCell");
}

#[test]
fn one_in_ten_thousand_is_no_less_and_no_more() {
    let (keys, share) = (1_000_000, 1e-4);
    let table = World::with_groups(&[&[("a", 1), ("b", 9_999)]]).table();
    let got = f64::from(counts(&table, &States::of(&table), keys)[0]);
    // 3.29 standard deviations of a binomial distribution are left once in a thousand.
    let (expected, deviation) = (f64::from(keys) * share, (f64::from(keys) * share * (1.0 - share)).sqrt());
    assert!((got - expected).abs() < 3.29 * deviation, "{got} keys, not {expected} of {keys}");
}

/// How many keys moved, all of them to cell a.
#[track_caller]
fn moved_to_a(before: &Table, after: &Table) -> u32 {
    let (then, now) = (States::of(before), States::of(after));
    let mut moved = 0;
    for n in 0..KEYS {
        let (from, to) = (decide(before, &then, n), decide(after, &now, n));
        assert!(from == to || to == "a", "key {n} went from {from} to {to}");
        moved += u32::from(from != to);
    }
    moved
}

#[test]
fn raising_one_weight_moves_only_keys_to_that_cell() {
    let before = World::with_groups(&[&[("a", 20), ("b", 80), ("c", 50)]]).table();
    let after = World::with_groups(&[&[("a", 30), ("b", 80), ("c", 50)]]).table();
    let moved = moved_to_a(&before, &after);
    // From 20/150 to 30/160 of the keys.
    let expected = f64::from(KEYS) * (30.0 / 160.0 - 20.0 / 150.0);
    assert!((f64::from(moved) - expected).abs() < 0.05 * expected, "{moved} keys moved, not {expected}");
}

#[test]
fn from_one_percent_to_two_only_the_new_one_moves_and_nobody_back() {
    let [before, after] =
        [1, 2].map(|percent| World::with_groups(&[&[("a", percent), ("b", 100 - percent)]]).table());
    let moved = moved_to_a(&before, &after);
    // As above: 3.29 standard deviations.
    let (expected, deviation) = (f64::from(KEYS) * 0.01, (f64::from(KEYS) * 0.01 * 0.99).sqrt());
    assert!((f64::from(moved) - expected).abs() < 3.29 * deviation, "{moved} keys moved, not {expected}");
}

#[test]
fn a_cell_that_goes_out_moves_only_its_own_keys() {
    let table = World::with_groups(&[&[("a", 20), ("b", 80), ("c", 50)]]).table();
    let (all, without) = (States::of(&table), States::of(&table).out(&table, &["b"]));
    for n in 0..20_000 {
        let (from, to) = (decide(&table, &all, n), decide(&table, &without, n));
        assert!(if from == "b" { to != "b" } else { to == from }, "key {n} went from {from} to {to}");
    }
}

/// Worked out from the documentation by another implementation in another language.
#[test]
fn keys_are_mapped_as_documented_for_ever() {
    let table = World::with_groups(&[&[("payments-a", 80), ("payments-b", 20), ("payments-c", 50)]]).table();
    let states = States::of(&table);
    let mapped: String = (0..40).map(|n| decide(&table, &states, n).pop().unwrap_or('-')).collect();
    assert_eq!(mapped, "aabaacacaaaaaacaacaaaabcacbcaaacabaaaaca");
    assert_eq!(Key::of(b"account-1"), Key(0x601c_6a20_4495_de1a));
}

#[test]
fn two_routers_agree_on_every_key_whatever_the_order_of_their_lists() {
    let one = World::with_groups(&[&[("a", 3), ("b", 5), ("c", 7)]]).table();
    let mut world = World::with_groups(&[&[("c", 7), ("b", 5), ("a", 3)]]);
    world.cells.push(crate::fixture::cell("0-first-by-name", json!({})));
    let two = world.table();
    let (of_one, of_two) = (States::of(&one), States::of(&two));
    for n in 0..KEYS {
        assert_eq!(decide(&one, &of_one, n), decide(&two, &of_two, n), "key {n}");
    }
}

#[test]
fn weight_zero_gets_nothing_in_a_hundred_thousand() {
    let table = World::with_groups(&[&[("a", 0), ("b", 1)]]).table();
    assert_eq!(counts(&table, &States::of(&table), KEYS), [0, KEYS]);
    let mut drained = World::with_groups(&[&[("a", 99), ("b", 1)]]);
    drained.cells[0].spec.weight = 0;
    let table = drained.table();
    assert_eq!(counts(&table, &States::of(&table), KEYS), [0, KEYS]);
}

fn transaction(n: u64) -> TransactionId {
    TransactionId::new_v7(n, [n as u8; 10])
}

#[test]
fn the_key_is_what_the_rule_names_or_the_transaction() {
    let of = |source: serde_json::Value, request: &RequestParts, n: u64| {
        let key_source = serde_json::from_value(source).expect("a source");
        let table = World::with_groups(&[&[("a", 1)]]).rule(|rule| rule.key = Some(key_source)).table();
        key(the_rule(&table), request, &transaction(n)).map_err(|refusal| refusal.reason)
    };
    let header = json!({"header": "X-Account"});
    assert_eq!(of(header.clone(), &request("x-account", "7"), 1), Ok(Key::of(b"7")));
    assert_eq!(of(header.clone(), &request("x-other", "7"), 1), Ok(Key::of(transaction(1).as_bytes())));
    assert_ne!(of(header.clone(), &request("x-other", "7"), 1), of(header, &request("x-other", "7"), 2));
    let body = |text: &str| RequestParts { body: text.as_bytes().to_vec(), ..RequestParts::default() };
    let pointer = json!({"jsonPointer": "/account"});
    assert_eq!(of(pointer.clone(), &body(r#"{"account":"\u0037"}"#), 1), Ok(Key::of(b"7")));
    assert_eq!(of(pointer.clone(), &body(r#"{"account":7}"#), 1), Ok(Key::of(b"7")));
    assert_eq!(of(pointer.clone(), &body("account=7"), 1), Err(Reason::Malformed));
    assert_eq!(of(pointer, &body(""), 1), Ok(Key::of(transaction(1).as_bytes())));
}

fn owner_world() -> World {
    World::with_groups(&[&[("a", 1), ("b", 1), ("c", 0)]]).rule(|rule| {
        rule.owner = true;
        rule.key = serde_json::from_value(json!({"header": "k"})).ok();
    })
}

#[test]
fn the_owner_of_a_key_serves_it_or_nobody_does() {
    let table = owner_world().table();
    let (all, without) = (States::of(&table), States::of(&table).out(&table, &["b"]));
    let mut ramping = States::of(&table);
    ramping.view(&table, "a").ramp_age_ms = 0;
    ramping.view(&table, "b").weight = 1;
    for n in 0..1_000 {
        let owner = decide(&table, &all, n);
        assert!(owner == "a" || owner == "b");
        assert_eq!(decide(&table, &ramping, n), owner, "neither ramp nor cell weight moves a key");
        let expected = if owner == "b" { "OwnerUnavailable" } else { "a" };
        assert_eq!(decide(&table, &without, n), expected);
        let tried = [table.cell_named(&owner).expect("the owner")];
        let refusal = choose(the_rule(&table), nth(n), &all, &tried).expect_err("no second cell");
        assert_eq!(refusal.reason, Reason::OwnerUnavailable);
    }
    assert_eq!(
        shares(the_rule(&table), &without).iter().map(|(_, share)| *share).collect::<Vec<_>>(),
        [500_000, 0, 0]
    );
}

#[test]
fn keys_of_an_owner_that_is_drained_or_gone_stay_its_own() {
    let mut world = owner_world();
    world.cells[1].spec.weight = 0;
    let drained = world.table();
    world.cells.remove(1);
    let gone = world.table();
    let before = owner_world().table();
    for n in 0..1_000 {
        let owner = decide(&before, &States::of(&before), n);
        let expected = if owner == "b" { "OwnerUnavailable" } else { "a" };
        assert_eq!(decide(&drained, &States::of(&drained), n), expected);
        assert_eq!(decide(&gone, &States::of(&gone), n), expected);
    }
    let keyless = key(the_rule(&before), &RequestParts::default(), &transaction(1));
    assert_eq!(keyless.map_err(|refusal| refusal.reason), Err(Reason::Malformed));
}

#[test]
fn beside_an_owner_that_is_out_a_free_rule_goes_on_with_the_other_cell() {
    let mut world = World::new(&["a", "b"]);
    let groups = json!([{"cells": [{"name": "a"}, {"name": "b"}]}]);
    let owned = json!({"name": "owned", "owner": true, "key": {"header": "k"}, "matches": header("x", "1"), "groups": groups});
    let free = json!({"name": "free", "key": {"header": "k"}, "groups": groups});
    world.policies = vec![policy("ns/p", 0, 100, json!([owned, free]))];
    let table = world.table();
    let (all, without) = (States::of(&table), States::of(&table).out(&table, &["a"]));
    let go = |rule: &str, states: &States, n: u32| {
        let rule = table.rules().iter().find(|known| known.id.as_str() == rule).expect("a rule of the table");
        match choose(rule, nth(n), states, &[]) {
            Ok(choice) => name(&table, &choice),
            Err(refusal) => refusal.reason().to_owned(),
        }
    };
    let mut of_a = 0;
    for n in 0..1_000 {
        let before = go("ns/p/owned", &all, n);
        assert_eq!(go("ns/p/free", &all, n), before, "the same key and weights");
        of_a += u32::from(before == "a");
        let expected = if before == "a" { "OwnerUnavailable" } else { "b" };
        assert_eq!(go("ns/p/owned", &without, n), expected);
        assert_eq!(go("ns/p/free", &without, n), "b");
    }
    assert!(of_a > 0 && of_a < 1_000, "{of_a}");
}

proptest! {
    /// Ten thousand times in all.
    #[test]
    fn a_key_is_asked_of_its_owner_or_of_nobody_whatever_becomes_of_the_cells(
        moments in prop::collection::vec(prop::collection::vec(view(), 3), 40),
    ) {
        let table = owner_world().table();
        let owner = decide(&table, &States::of(&table), 7);
        for views in moments {
            let mut states = States { views, now_unix_ms: 0 };
            let expected = if states.view(&table, &owner).is_usable() { &*owner } else { "OwnerUnavailable" };
            prop_assert_eq!(decide(&table, &states, 7), expected);
        }
    }
}
