//! What decision tests share; the tests are in the files beside it, by what they are about.

mod bodies;
mod doubts;
mod fence;
mod groups;
mod keys;

use proptest::prelude::*;

use super::*;
use crate::fixture::{States, the_rule};
use crate::table::Table;

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

/// Shares of all cells in the order of names, in parts per million.
fn check_shares(table: &Table, states: &States, expected: &[u32]) {
    let shares: Vec<u32> = shares(the_rule(table), states).into_iter().map(|(_, share)| share).collect();
    assert_eq!(shares, expected);
}

/// A cell in any state.
fn view() -> impl Strategy<Value = CellView> {
    let ages = prop::sample::select(vec![0, 9_000, 12_000, 25_000, 35_000, u64::MAX]);
    let doubts = prop::option::weighted(0.4, (1_u16..4, prop::option::of(0_u64..50_000)));
    let doubts = doubts.prop_map(|doubt| doubt.map(|(rank, age_ms)| Doubt { rank, age_ms }));
    (prop::sample::select(vec![0, 1, 50, 100]), any::<bool>(), ages, doubts).prop_map(
        |(weight, is_in, ramp_age_ms, doubt)| CellView {
            weight,
            is_in,
            ramp_age_ms,
            drained: weight == 0,
            doubt,
        },
    )
}
