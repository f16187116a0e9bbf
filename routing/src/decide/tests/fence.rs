//! The fence of `owner` rules: what one router serves while an edit is on its way, and that no two ever differ.

use std::collections::BTreeSet;

use bulkhead_crds::RoutingPolicy;
use bulkhead_crds::policy::{RoutingPolicyStatus, Source};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::explain::explain;
use crate::fixture::{World, request};
use crate::table::History;

const KEYS: u32 = 60;

/// Cells a, b and c, and an `owner` rule of those weights.
fn world(weights: [u32; 3]) -> World {
    let cells: Vec<(&str, u32)> = ["a", "b", "c"].into_iter().zip(weights).collect();
    World::with_groups(&[&cells]).rule(|rule| {
        rule.owner = true;
        rule.key = header("k");
    })
}

fn header(name: &str) -> Option<Source> {
    serde_json::from_value(json!({"header": name})).ok()
}

/// A generation as the API server has it, and what the operator has settled by then.
fn told(world: &World, generation: i64, settled: Option<i64>) -> RoutingPolicy {
    let mut policy = world.policies[0].clone();
    policy.metadata.generation = Some(generation);
    policy.status =
        Some(RoutingPolicyStatus { settled_generation: settled, ..RoutingPolicyStatus::default() });
    policy
}

fn fenced(world: &World, history: &History) -> Table {
    let mut table = world.table();
    table.fence(history);
    table
}

/// What becomes of each key: a cell, or the word for why none has it.
fn outcomes(table: &Table) -> Vec<String> {
    let states = States::of(table);
    (0..KEYS).map(|n| decide(table, &states, n)).collect()
}

/// That of all keys exactly those are refused that the worlds disagree on, and the others are where the last has them.
#[track_caller]
fn check(table: &Table, by: &[&World]) {
    let by: Vec<_> = by.iter().map(|world| outcomes(&world.table())).collect();
    let last = by.last().expect("there is one");
    for (n, outcome) in outcomes(table).into_iter().enumerate() {
        let agreed = by.iter().all(|owners| owners[n] == last[n]);
        assert_eq!(outcome, if agreed { &*last[n] } else { "OwnerMoving" }, "key {n}");
    }
}

#[track_caller]
fn check_closed(table: &Table) {
    assert!(outcomes(table).iter().all(|outcome| outcome == "OwnerMoving"), "{:?}", outcomes(table));
}

#[test]
fn a_key_that_an_edit_moves_waits_for_every_router_and_the_others_do_not() {
    let (one, two, three) = (world([80, 20, 0]), world([20, 80, 0]), world([20, 0, 80]));
    let mut history = History::default();
    assert!(history.take(&told(&one, 1, Some(1))));
    check(&fenced(&one, &history), &[&one]);
    history.take(&told(&two, 2, Some(1)));
    check(&fenced(&two, &history), &[&one, &two]);
    history.take(&told(&three, 3, Some(1)));
    check(&fenced(&three, &history), &[&one, &two, &three]);
    history.take(&told(&three, 3, Some(2)));
    check(&fenced(&three, &history), &[&two, &three]);
    assert!(history.take(&told(&three, 3, Some(3))));
    check(&fenced(&three, &history), &[&three]);
    assert!(!history.take(&told(&three, 3, None)), "what was settled stays so");
    check(&fenced(&three, &history), &[&three]);
    assert_ne!(outcomes(&one.table()), outcomes(&two.table()), "the control: something moves");
}

#[test]
fn where_it_is_not_known_who_owned_a_key_none_is_served_before_the_edit_is_settled() {
    let (one, two) = (world([80, 20, 0]), world([20, 80, 0]));
    let renamed = world([80, 20, 0]).rule(|rule| "other".clone_into(&mut rule.name));
    let other_key = world([80, 20, 0]).rule(|rule| rule.key = header("other"));
    let free = world([80, 20, 0]).rule(|rule| rule.owner = false);
    check_closed(&fenced(&one, &History::default()));
    for (before, now, generation) in [
        (None, &one, 1),
        (Some((&one, 1)), &renamed, 2),
        (Some((&one, 1)), &other_key, 2),
        (Some((&free, 1)), &one, 2),
        // A generation between them is missing.
        (Some((&one, 1)), &two, 3),
        // The API server went back to a backup.
        (Some((&one, 7)), &two, 3),
    ] {
        let mut history = History::default();
        if let Some((world, generation)) = before {
            history.take(&told(world, generation, Some(generation.min(1))));
        }
        let settled = before.map(|_| 1);
        history.take(&told(now, generation, settled));
        check_closed(&fenced(now, &history));
        history.take(&told(now, generation, Some(generation)));
        check(&fenced(now, &history), &[now]);
    }
}

#[test]
fn an_object_of_the_same_name_is_another() {
    let world = world([1, 1, 1]);
    let mut history = History::default();
    history.take(&told(&world, 1, Some(1)));
    let mut again = told(&world, 1, None);
    again.metadata.uid = Some("another".to_owned());
    history.take(&again);
    check_closed(&fenced(&world, &history));
}

#[test]
fn an_edit_of_something_else_holds_nothing_up_and_a_cell_that_comes_or_goes_moves_nothing() {
    let one = world([80, 20, 0]);
    let mut history = History::default();
    history.take(&told(&one, 1, Some(1)));
    let mut other = world([80, 20, 0]).rule(|rule| rule.matches = Vec::new());
    other.policies[0].spec.precedence = 7;
    history.take(&told(&other, 2, Some(1)));
    check(&fenced(&other, &history), &[&other]);
    other.cells.remove(1);
    check(&fenced(&other, &history), &[&other]);
}

#[test]
fn cells_without_weight_own_nothing_that_could_move() {
    let (none, some) = (world([0, 0, 0]), world([1, 1, 0]));
    let mut history = History::default();
    history.take(&told(&none, 1, Some(1)));
    history.take(&told(&some, 2, Some(1)));
    check(&fenced(&some, &history), &[&some]);
}

#[test]
fn more_unsettled_edits_than_are_remembered_close_the_rule() {
    let mut history = History::default();
    for generation in 1..=100 {
        history.take(&told(&world([1, 1, generation as u32]), generation, Some(1)));
    }
    let last = world([1, 1, 100]);
    check_closed(&fenced(&last, &history));
    history.take(&told(&last, 100, Some(100)));
    check(&fenced(&last, &history), &[&last]);
}

#[test]
fn what_was_remembered_before_a_restart_counts_where_it_joins() {
    let (one, two, three) = (world([80, 20, 0]), world([20, 80, 0]), world([20, 0, 80]));
    let mut before = History::default();
    before.take(&told(&one, 1, Some(1)));
    before.take(&told(&two, 2, Some(1)));
    let text = serde_json::to_string(&before).expect("serialises");
    let before: History = serde_json::from_str(&text).expect("reads");
    for (now, generation, expected) in [
        (&two, 2, Some(&[&one, &two][..])),
        (&three, 3, Some(&[&one, &two, &three])),
        // Whoever was away for a whole generation does not know it.
        (&three, 4, None),
    ] {
        let check = |history: &History| match expected {
            Some(worlds) => check(&fenced(now, history), worlds),
            None => check_closed(&fenced(now, history)),
        };
        // The disk may be read before the API server answers, or after.
        let mut first = before.clone();
        first.take(&told(now, generation, Some(1)));
        check(&first);
        let mut after = History::default();
        after.take(&told(now, generation, Some(1)));
        check_closed(&fenced(now, &after));
        after.recall(before.clone());
        check(&after);
    }
}

#[test]
fn policies_that_are_gone_are_forgotten() {
    let one = world([1, 1, 1]);
    let mut history = History::default();
    assert!(history.replace(&[told(&one, 1, Some(1))]));
    assert!(!history.replace(&[told(&one, 1, Some(1))]));
    assert!(history.replace(&[]));
    history.take(&told(&one, 1, Some(1)));
    assert!(history.forget("ns", "p"));
    assert_eq!(history, History::default());
}

#[test]
fn a_key_that_moves_is_explained() {
    let (one, two) = (world([1, 0, 0]), world([0, 1, 0]));
    let mut history = History::default();
    history.take(&told(&one, 1, Some(1)));
    history.take(&told(&two, 2, Some(1)));
    let table = fenced(&two, &history);
    let id = bulkhead_protocol::TransactionId::new_v7(1, [7; 10]);
    let explained = explain(&table, "http", &request("k", "7"), &id, &States::of(&table));
    let refusal = explained.refusal.expect("is refused");
    assert_eq!((refusal.status, refusal.reason.as_str()), (503, "OwnerMoving"));
    assert!(refusal.detail.contains("moves from cell a to cell b"), "{}", refusal.detail);
    assert!(explained.groups[0].why.contains("only the owner"), "{}", explained.groups[0].why);
}

/// One router of the model: the generation that its table has, and what it remembers.
#[derive(Default)]
struct Router {
    at: i64,
    history: History,
}

/// An API server with every generation that it had, an operator, and routers that see both as late as they please.
struct Model {
    generations: Vec<World>,
    settled: Option<i64>,
    routers: Vec<Router>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Edit([u32; 3]),
    /// The router takes what there is, or the next generation alone; it may hear of what is settled too.
    Look {
        router: usize,
        next: bool,
        hears: bool,
    },
    /// The router starts anew, with what it remembered or with nothing, and lists.
    Restart {
        router: usize,
        remembers: bool,
    },
    /// The operator asks all routers and writes what it finds.
    Settle,
}

impl Model {
    fn newest(&self) -> i64 {
        self.generations.len() as i64
    }

    fn take(&mut self, router: usize, generation: i64, settled: Option<i64>) {
        let policy = told(&self.generations[generation as usize - 1], generation, settled);
        self.routers[router].at = generation;
        self.routers[router].history.take(&policy);
    }

    fn step(&mut self, event: Event) {
        let newest = self.newest();
        match event {
            Event::Edit(weights) => self.generations.push(world(weights)),
            Event::Look { router, next, hears } => {
                let generation = if next { newest.min(self.routers[router].at + 1) } else { newest };
                let settled = self.settled.filter(|settled| hears && *settled <= generation);
                self.take(router, generation, settled);
            }
            Event::Restart { router, remembers } => {
                if !remembers {
                    self.routers[router].history = History::default();
                }
                self.take(router, newest, self.settled);
            }
            Event::Settle => {
                if self.routers.iter().all(|router| router.at == newest) {
                    self.settled = Some(newest);
                }
            }
        }
    }

    /// The cells that have a key by some router each.
    fn owners(&self, fenced: bool) -> Vec<BTreeSet<String>> {
        let mut owners = vec![BTreeSet::new(); KEYS as usize];
        for router in &self.routers {
            let mut table = self.generations[router.at as usize - 1].table();
            if fenced {
                table.fence(&router.history);
            }
            for (owners, outcome) in owners.iter_mut().zip(outcomes(&table)) {
                if outcome.len() == 1 {
                    owners.insert(outcome);
                }
            }
        }
        owners
    }
}

fn event() -> impl Strategy<Value = Event> {
    let weight = || prop::sample::select(vec![0_u32, 1, 3, 80]);
    let router = || 0_usize..3;
    prop_oneof![
        2 => [weight(), weight(), weight()].prop_map(Event::Edit),
        4 => (router(), any::<bool>(), any::<bool>())
            .prop_map(|(router, next, hears)| Event::Look { router, next, hears }),
        1 => (router(), any::<bool>()).prop_map(|(router, remembers)| Event::Restart { router, remembers }),
        2 => Just(Event::Settle),
    ]
}

fn model() -> Model {
    let mut model = Model {
        generations: vec![world([1, 1, 1])],
        settled: None,
        routers: (0..3).map(|_| Router::default()).collect(),
    };
    for router in 0..3 {
        model.take(router, 1, None);
    }
    model
}

#[test]
fn without_the_fence_two_routers_serve_one_key_in_two_cells() {
    let mut model = model();
    model.step(Event::Edit([1, 0, 0]));
    model.step(Event::Look { router: 0, next: false, hears: true });
    assert!(model.owners(false).iter().any(|owners| owners.len() > 1));
    assert!(model.owners(true).iter().all(|owners| owners.len() <= 1));
}

proptest! {
    #[test]
    fn no_two_routers_ever_serve_one_key_in_two_cells_and_all_do_once_all_know(
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut model = model();
        for event in events {
            model.step(event);
            for (n, owners) in model.owners(true).iter().enumerate() {
                prop_assert!(owners.len() <= 1, "key {n} is in {owners:?} after {event:?}");
            }
        }
        let look = |model: &mut Model| {
            (0..3).for_each(|router| model.step(Event::Look { router, next: false, hears: true }));
        };
        look(&mut model);
        model.step(Event::Settle);
        look(&mut model);
        let last = outcomes(&model.generations.last().expect("there is one").table());
        for (owners, owner) in model.owners(true).iter().zip(last) {
            let expected: BTreeSet<String> = Some(owner).filter(|owner| owner.len() == 1).into_iter().collect();
            prop_assert_eq!(owners, &expected);
        }
    }
}
