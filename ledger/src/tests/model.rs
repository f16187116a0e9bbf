//! Any order of intents, outcomes, cancellations, failures, resolutions and crashes, beside a model that knows what each
//! caller was told: after every start an effect is what was told, or unknown.

use std::collections::BTreeMap;

use futures::FutureExt;
use proptest::prelude::*;

use super::fault_disk::{FaultDisk, Unsynced};
use super::{ANSWERED, Stage, intent, keyed, small};
use crate::effect::{Standing, State};
use crate::ledger::{Intended, ResolveError};
use crate::record::{Outcome, Resolution};
use crate::refusal::Refusal;
use crate::view::{EffectView, StateView};

const IDS: u8 = 4;
const EFFECTS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    Intend(u8, u32),
    /// Whoever waits goes away, before the record is written or after.
    Cancel(u8, u32, bool),
    End(usize, Outcome),
    Resolve(u8, u32, Resolution),
    Pump,
    FailSync,
    FailWrite(usize),
    Tick,
    Crash(Unsynced),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let effect = || (0..IDS, 1..=EFFECTS);
    let outcome = prop_oneof![Just(ANSWERED), Just(Outcome::NotSent), Just(Outcome::Unknown)];
    let resolution = prop_oneof![Just(Resolution::Answered), Just(Resolution::NotSent)];
    let unsynced = prop_oneof![Just(Unsynced::All), Just(Unsynced::Half), Just(Unsynced::None)];
    prop_oneof![
        8 => effect().prop_map(|(id, n)| Step::Intend(id, n)),
        2 => (effect(), any::<bool>()).prop_map(|((id, n), written)| Step::Cancel(id, n, written)),
        8 => (0..8_usize, outcome).prop_map(|(which, outcome)| Step::End(which, outcome)),
        2 => (effect(), resolution).prop_map(|((id, n), resolution)| Step::Resolve(id, n, resolution)),
        4 => Just(Step::Pump),
        1 => Just(Step::FailSync),
        1 => (0..200_usize).prop_map(Step::FailWrite),
        3 => Just(Step::Tick),
        2 => unsynced.prop_map(Step::Crash),
        1 => Just(Step::Restart),
    ]
}

/// What the caller knows of each effect.
type Known = BTreeMap<(u8, u32), State>;

struct World {
    disk: FaultDisk,
    stage: Stage,
    under_way: Vec<((u8, u32), Intended)>,
    known: Known,
    /// What a person said and was told that it could not be written. It may be on the disk all the same.
    said: Vec<((u8, u32), State)>,
}

impl World {
    fn new() -> Self {
        let disk = FaultDisk::default();
        let stage = Stage::open(&disk, &small()).0;
        Self { disk, stage, under_way: Vec::new(), known: Known::new(), said: Vec::new() }
    }

    fn effects(&self, id: u8) -> Vec<EffectView> {
        let found = self.stage.ledger.show(&keyed(id)).transactions;
        found.into_iter().flat_map(|view| view.effects).collect()
    }

    fn found(&self) -> Known {
        let mut found = Known::new();
        for id in 0..IDS {
            for effect in self.effects(id) {
                let state = match effect.state {
                    StateView::Open => State::Open,
                    StateView::Answered => State::Answered { status: effect.status },
                    StateView::NotSent => State::NotSent,
                    StateView::Unknown => State::Unknown,
                };
                found.insert((id, effect.n), state);
            }
        }
        found
    }

    fn note(&mut self, effect: (u8, u32), state: State) {
        if state == State::NotSent {
            self.known.remove(&effect);
        } else {
            self.known.insert(effect, state);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Intend(id, n) => {
                let before = self.known.get(&(id, n)).copied();
                match self.stage.intend(keyed(id), n) {
                    Ok(intended) => {
                        assert_eq!(before, None, "an effect is intended once");
                        self.under_way.push(((id, n), intended));
                        self.note((id, n), State::Open);
                    }
                    // A disk that fails may be said first.
                    Err(Refusal::Known(state)) => assert_eq!(before, Some(state)),
                    Err(refusal) => assert_eq!(refusal.reason(), "DiskFailed"),
                }
            }
            Step::Cancel(id, n, written) => {
                let ledger = self.stage.ledger.clone();
                let mut waiting = Box::pin(ledger.intend(intent(keyed(id), n)));
                if (&mut waiting).now_or_never().is_none() && written {
                    self.stage.pump();
                }
            }
            Step::End(which, outcome) => {
                if !self.under_way.is_empty() {
                    let (effect, intended) = self.under_way.swap_remove(which % self.under_way.len());
                    intended.end(outcome);
                    self.note(effect, outcome.into());
                }
            }
            Step::Resolve(id, n, resolution) => {
                let state = Outcome::from(resolution).into();
                match self.stage.resolve(keyed(id), n, resolution) {
                    Ok(()) => {
                        assert_eq!(self.known.get(&(id, n)), Some(&State::Unknown));
                        self.note((id, n), state);
                    }
                    Err(ResolveError::Refused(_)) => self.said.push(((id, n), state)),
                    Err(_) => assert_ne!(self.known.get(&(id, n)), Some(&State::Unknown)),
                }
            }
            Step::Pump => self.stage.pump(),
            Step::FailSync => self.disk.fail_syncs(1),
            Step::FailWrite(bytes) => self.disk.write_fails_after(bytes),
            Step::Tick => {
                self.stage.clock.pass_ms(1_000);
                self.stage.writer.tick();
            }
            Step::Crash(unsynced) => self.crash(unsynced),
            Step::Restart => self.restart(),
        }
        assert_eq!(self.found(), self.known, "while it runs, nothing but what was told is held");
    }

    fn reopen(&mut self, disk: FaultDisk) {
        // The process is gone: nobody ends what it had under way.
        std::mem::take(&mut self.under_way).into_iter().for_each(|(_, intended)| std::mem::forget(intended));
        let (stage, recovery) = Stage::open(&disk, &small());
        assert_eq!(recovery.damages, []);
        (self.disk, self.stage) = (disk, stage);
    }

    fn crash(&mut self, unsynced: Unsynced) {
        self.reopen(self.disk.after(unsynced));
        let found = self.found();
        for (effect, told) in &self.known {
            let state = found.get(effect);
            let unknown = state == Some(&State::Unknown);
            let said = self.said.contains(&(*effect, state.copied().unwrap_or(State::NotSent)));
            let as_told = state == Some(told) && *told != State::Open;
            assert!(unknown || as_told || said, "{effect:?}: told {told:?}, found {state:?}");
        }
        for (effect, state) in &found {
            let told = self.known.contains_key(effect);
            let said = self.said.contains(&(*effect, *state));
            assert!(told || said || *state == State::Unknown, "{effect:?}: nobody told {state:?}");
        }
        self.said.clear();
        self.known = found;
    }

    /// In order: all that was told is found, and nothing is unknown that was not.
    fn restart(&mut self) {
        let disk = self.disk.clone();
        self.stage.clock.pass_ms(1_000);
        disk.fail_syncs(0);
        disk.write_fails_after(usize::MAX);
        self.stage.pump();
        self.stage.writer.tick();
        self.stage.writer.close();
        self.reopen(disk.after(Unsynced::None));
        for state in self.known.values_mut().filter(|state| **state == State::Open) {
            *state = State::Unknown;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn after_every_crash_an_effect_is_what_was_told_or_unknown(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.restart();
        assert_eq!(world.found(), world.known);
        for id in 0..IDS {
            let states = world.known.range((id, 0)..=(id, EFFECTS)).map(|(_, state)| *state);
            assert_eq!(world.stage.ledger.standing(&keyed(id)), Standing::of(states));
        }
    }
}
