//! Where requests go: shares as written, keys that stay, groups in their order, and never a cell that is out or drained.

use bulkhead_protocol::{Reason, TransactionId};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixture::{States, World, header, policy, request, shift, the_rule, to};
use crate::request::{RequestParts, RequestView};
use crate::table::Table;

const KEYS: u32 = 100_000;

fn nth(n: u32) -> Key {
    Key::of(format!("account-{n}").as_bytes())
}

fn name(table: &Table, choice: &Choice) -> String {
    table.cell(choice.cell).name.to_string()
}

/// The cell that gets the key, or the word for why none does.
fn decide(table: &Table, states: &States, n: u32) -> String {
    match choose(the_rule(table), nth(n), states, &[]) {
        Ok(choice) => name(table, &choice),
        Err(refusal) => refusal.reason().to_owned(),
    }
}

/// That every one of some keys ends there.
fn check_all(table: &Table, states: &States, expected: &str) {
    for n in 0..200 {
        assert_eq!(decide(table, states, n), expected, "key {n}");
    }
}

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
    let counts = counts(&table, &States::of(&table), keys);
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
fn raising_one_weight_moves_only_keys_to_that_cell() {
    let before = World::with_groups(&[&[("a", 20), ("b", 80), ("c", 50)]]).table();
    let after = World::with_groups(&[&[("a", 30), ("b", 80), ("c", 50)]]).table();
    let (then, now) = (States::of(&before), States::of(&after));
    let mut moved = 0;
    for n in 0..KEYS {
        let (from, to) = (decide(&before, &then, n), decide(&after, &now, n));
        assert!(from == to || to == "a", "key {n} went from {from} to {to}");
        moved += u32::from(from != to);
    }
    // From 20/150 to 30/160 of the keys.
    let expected = f64::from(KEYS) * (30.0 / 160.0 - 20.0 / 150.0);
    assert!((f64::from(moved) - expected).abs() < 0.05 * expected, "{moved} keys moved, not {expected}");
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
fn a_dead_cell_is_never_replaced_by_that_of_a_broader_rule() {
    let mut world = World::new(&["a", "z"]);
    let bin = json!([{"all": [{"jsonPointer": "/card/bin", "prefix": "4761"}]}]);
    world.policies = vec![
        policy("ns/bin", 0, 100, json!([to("r", bin, "a")])),
        policy("ns/all", 0, 0, json!([to("r", json!([]), "z")])),
    ];
    let table = world.table();
    let pay = |body: &str| RequestParts { body: body.as_bytes().to_vec(), ..RequestParts::default() };
    let dead = States::of(&table).out(&table, &["a"]);
    let go = |request: &RequestParts| {
        let rule = match_rule(&table, "http", request)?;
        choose(rule, nth(0), &dead, &[]).map(|choice| name(&table, &choice))
    };
    assert_eq!(
        go(&pay(r#"{"card":{"bin":"476112"}}"#)).map_err(|refusal| refusal.reason),
        Err(Reason::NoHealthyCell)
    );
    assert_eq!(go(&pay(r#"{"card":{"bin":"5"}}"#)).as_deref(), Ok("z"));
}

/// A request that knows whether its body was asked for.
struct Watched {
    parts: RequestParts,
    asked: std::cell::Cell<bool>,
}

impl RequestView for Watched {
    fn method(&self) -> &str {
        self.parts.method()
    }

    fn path(&self) -> &str {
        self.parts.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.query()
    }

    fn host(&self) -> Option<&str> {
        self.parts.host()
    }

    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        self.parts.header(lower_case_name)
    }

    fn body(&self) -> &[u8] {
        self.asked.set(true);
        self.parts.body()
    }
}

#[test]
fn a_body_that_cannot_be_read_is_refused_and_never_falls_through() {
    let mut world = World::new(&["a", "z"]);
    let bin =
        json!([{"all": [{"attribute": "method", "exact": "POST"}, {"jsonPointer": "/bin", "exact": "1"}]}]);
    world.policies = vec![
        policy("ns/bin", 0, 100, json!([to("r", bin, "a")])),
        policy("ns/all", 0, 0, json!([to("r", json!([]), "z")])),
    ];
    let table = world.table();
    let of = |method: &str, body: Vec<u8>| {
        let parts = RequestParts { method: method.to_owned(), body, ..RequestParts::default() };
        let request = Watched { parts, asked: false.into() };
        let rule = match_rule(&table, "http", &request).map(|rule| rule.id.to_string());
        (request.asked.get(), rule.map_err(|refusal| refusal.reason))
    };
    let (a, z) = (Ok("ns/bin/r".to_owned()), Ok("ns/all/r".to_owned()));
    let far = format!("{{\"pad\":\"{}\",\"bin\":\"1\"}}", "x".repeat(1 << 20));
    assert_eq!(of("POST", far.clone().into_bytes()), (true, a.clone()), "far behind");
    assert_eq!(of("POST", far.into_bytes()[..1 << 20].to_vec()), (true, Err(Reason::Malformed)), "cut off");
    assert_eq!(of("POST", br#"{"bin":"1","bin":"2"}"#.to_vec()), (true, a), "the first of two");
    assert_eq!(of("POST", br#"{"bin":"2","bin":"1"}"#.to_vec()), (true, z.clone()), "the first of two");
    assert_eq!(of("POST", vec![b'['; 10_000]), (true, Err(Reason::Malformed)), "nested deeply");
    assert_eq!(
        of("POST", "\u{feff}{\"bin\":\"1\"}".into()),
        (true, Err(Reason::Malformed)),
        "a byte order mark"
    );
    assert_eq!(of("POST", vec![0x1f, 0x8b, 8, 0]), (true, Err(Reason::Malformed)), "compressed");
    assert_eq!(of("POST", Vec::new()), (true, z.clone()), "no body has no field");
    assert_eq!(of("GET", b"no JSON".to_vec()), (false, z), "nobody looks");
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

/// Shares of all cells in the order of names, in parts per million.
fn check_shares(table: &Table, states: &States, expected: &[u32]) {
    let shares: Vec<u32> = shares(the_rule(table), states).into_iter().map(|(_, share)| share).collect();
    assert_eq!(shares, expected);
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

fn view() -> impl Strategy<Value = CellView> {
    let ages = prop::sample::select(vec![0, 9_000, 12_000, 25_000, 35_000, u64::MAX]);
    (prop::sample::select(vec![0, 1, 50, 100]), any::<bool>(), ages).prop_map(
        |(weight, is_in, ramp_age_ms)| CellView { weight, is_in, ramp_age_ms, drained: weight == 0 },
    )
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
