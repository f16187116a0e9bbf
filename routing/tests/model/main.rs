//! A model of the protocol: the course of a transaction that routers run, `transaction::run` itself, in a world that goes
//! wrong in every way it can, in virtual time. Simulated is what `Hands` does: cells, destinations, disks, and routers
//! that crash, stop and come back. What is not here: HTTP, the choice of a cell, health.
//!
//! Every run follows from its seed. `BULKHEAD_SEEDS` says how many there are, `BULKHEAD_SEED` tells the story of one.

mod caller;
mod cell;
mod checks;
mod destination;
mod dice;
mod faults;
mod hands;
mod history;
mod ledger;
mod router;
mod sights;
mod simulation;
mod tried;
mod watched;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use faults::Flaw;
use simulation::{Tally, explore, simulate};

const SEEDS: u64 = 5_000;
/// Seeds within which a flaw has to be found.
const FEW_SEEDS: u64 = 1_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("BULKHEAD_SEED and BULKHEAD_SEEDS are numbers"))
}

#[test]
fn what_the_protocol_promises_holds_whatever_goes_wrong() {
    if let Some(seed) = number("BULKHEAD_SEED") {
        let broken = simulate(seed, None, true).broken();
        assert!(broken.is_empty(), "seed {seed}: {broken:?}");
        return;
    }
    // By promise, the first seed that breaks it.
    let broken = Mutex::new(BTreeMap::new());
    let tally = Tally::default();
    explore(number("BULKHEAD_SEEDS").unwrap_or(SEEDS), None, |seed, outcome| {
        tally.add(&outcome);
        for (promise, what) in outcome.broken() {
            broken.lock().expect("nobody panics").entry(promise).or_insert((seed, what));
        }
        false
    });
    let broken = broken.into_inner().expect("nobody panics");
    assert!(
        broken.is_empty(),
        "{broken:#?}\nto see one happen: BULKHEAD_SEED=NUMBER cargo test -p bulkhead-routing --test model holds -- --nocapture"
    );
    assert!(tally.missing().is_empty(), "no run showed {:?}", tally.missing());
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| format!("{:?}", simulate(seed, None, false).history));
        assert!(one == other, "seed {seed}");
    }
}

/// The negative control: hands with that mistake break each of those promises, and its check sees it.
#[track_caller]
fn check(flaw: Flaw, expected: &[&str]) {
    let found = Mutex::new(BTreeSet::new());
    let is_enough = |found: &BTreeSet<&str>| expected.iter().all(|promise| found.contains(promise));
    explore(FEW_SEEDS, Some(flaw), |_, outcome| {
        let mut found = found.lock().expect("nobody panics");
        found.extend(outcome.broken().into_iter().map(|(promise, _)| promise));
        is_enough(&found)
    });
    let found = found.into_inner().expect("nobody panics");
    assert!(is_enough(&found), "{flaw:?} breaks {found:?} in {FEW_SEEDS} seeds, and not all of {expected:?}");
}

/// The promises that hands with that mistake break.
fn broken_by(flaw: Flaw) -> &'static [&'static str] {
    match flaw {
        Flaw::RecordsAfterSending => &["intents are on the disk before the first byte"],
        Flaw::RetriesAFailedSync => &["effects are found in the ledger"],
        Flaw::ForgetsTheLedger | Flaw::TakesUnknownForNotSent | Flaw::RunsAnIdTwiceAtOnce => {
            &["one router sends an effect once"]
        }
        Flaw::SendsWithoutAsking => &["nothing is sent for nobody"],
        Flaw::TakesUnknownForAnswered => &["an answer is true"],
        Flaw::TakesLateReplies => &["what was given up is over"],
        Flaw::CarriesNumbersOver => &["numbers count from one"],
        Flaw::CarriesContextsOver => &["restarts carry nothing over"],
        Flaw::KeysByAttempt => &["a checked effect happens once"],
        Flaw::PromisesThatNothingHappened => {
            &["a refusal is true", "two routers repeat only what nobody was told of"]
        }
        Flaw::ShedsBeforeItAsksTheLedger => &["a refusal is true"],
        Flaw::LeavesWithTheCaller => &["what is committed is settled"],
        Flaw::AsksForEver => &["every run ends"],
        Flaw::AsksACellTwice => &["no cell begins twice"],
        Flaw::IgnoresContexts => &["what is committed is finished"],
        Flaw::KeepsIntentsOfLeavers => &["unknown is only what may have been sent"],
    }
}

#[test]
fn every_mistake_is_found_and_every_promise_is_broken_by_one() {
    for flaw in Flaw::ALL {
        check(*flaw, broken_by(*flaw));
    }
    let broken: BTreeSet<_> = Flaw::ALL.iter().flat_map(|flaw| broken_by(*flaw)).collect();
    assert_eq!(broken, checks::ALL.iter().map(|(promise, _)| promise).collect());
}
