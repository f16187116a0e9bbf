//! What evidence makes of a cell that is in: one that does far worse than its siblings is suspected for a while and comes
//! back by steps, and whatever comes back by steps goes no further while evidence is against it.

use bulkhead_crds::router::Evidence;

use super::Effect;
use super::evidence::{Case, Fault, Finding, LEAST, LEAST_RAMPING, compare};
use super::samples::{Samples, Window};
use crate::decide::Doubt;
use crate::table::Kin;

/// How long a cell is suspected, or its ramp rests, for the first time; each time is twice as long as the one before.
pub(super) const FIRST_MS: u64 = 10_000;
/// Strikes that count, so that no time is longer than 160 s.
const MOST_STRIKES: u32 = 5;
/// A strike is forgiven for each such time in which nothing spoke against the cell.
const FORGIVEN_MS: u64 = 300_000;
/// By how much an age is set back that is held, so that it does not grow into the next step between two looks.
const LEAD_MS: u64 = 1_000;

/// How a cell's siblings do, and what is known of how it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Of all siblings that are in and not suspected, in the time that samples count.
    pub siblings: Samples,
    /// As in [`Kin`].
    pub ramp_ms: u64,
    pub step_ms: u64,
    /// What may speak against cells.
    pub looked_at: Evidence,
}

impl Beside {
    pub(super) fn new(siblings: Samples, kin: &Kin, looked_at: Evidence) -> Self {
        Self { siblings, ramp_ms: kin.ramp_ms, step_ms: kin.step_ms, looked_at }
    }

    fn looks_at(&self, fault: Fault) -> bool {
        match fault {
            Fault::Errors => self.looked_at.errors,
            Fault::Latency => self.looked_at.latency,
        }
    }
}

/// Everything that evidence has to do with in the state of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    window: Window,
    suspicion: Option<Suspicion>,
    strikes: u32,
    /// When something last spoke against the cell, or a strike was forgiven.
    calm_since_ms: u64,
    /// Until when no ramp goes on; that of the last strike.
    rest_until_ms: u64,
    looked_ms: u64,
    /// Whether ramps were held at the last look.
    is_held: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspicion {
    case: Case,
    rank: u16,
    /// Until then the cell is suspected; its way back begins then, or later where it is held.
    back_ms: i64,
    has_returned: bool,
}

impl Record {
    pub(super) fn add(&mut self, samples: &Samples, now_ms: u64) {
        self.window.add(samples, now_ms);
    }

    /// The samples that count, as a measure for siblings: none of a cell that is suspected.
    pub(super) fn measure(&self, now_ms: u64) -> Option<Samples> {
        let suspected = self.doubt(now_ms).is_some_and(|doubt| doubt.age_ms.is_none());
        (!suspected).then(|| self.window.sum(now_ms))
    }

    /// The cell went out or came in: what was said before is of another life. How often it was said is remembered.
    pub(super) fn start_over(&mut self) {
        let Self { strikes, calm_since_ms, looked_ms, .. } = *self;
        *self = Self { strikes, calm_since_ms, looked_ms, ..Self::default() };
    }

    pub(super) fn doubt(&self, now_ms: u64) -> Option<Doubt> {
        let suspicion = self.suspicion.as_ref()?;
        Some(Doubt::since(suspicion.rank, suspicion.back_ms, now_ms))
    }

    /// Rank of the suspicion, and when the way back from it begins.
    pub(super) fn suspected(&self) -> Option<(u16, i64)> {
        self.suspicion.as_ref().map(|suspicion| (suspicion.rank, suspicion.back_ms))
    }

    /// The case against the cell, while it is suspected.
    pub(super) fn case(&self) -> Option<&Case> {
        self.suspicion.as_ref().filter(|suspicion| !suspicion.has_returned).map(|suspicion| &suspicion.case)
    }

    /// Looks at the evidence. `ramp_from` is where the ramp of a cell that was out began; gives where it begins now.
    pub(super) fn look(&mut self, beside: &Beside, ramp_from: i64, now_ms: u64) -> (i64, Vec<Effect>) {
        let mut effects = Vec::new();
        self.let_back(beside, now_ms, &mut effects);
        let own = self.window.sum(now_ms);
        let found = |least| compare(&own, &beside.siblings, beside.looked_at, least);
        let ramps = |from: i64| (0..clamp(beside.ramp_ms)).contains(&age(from, now_ms));
        let is_suspected = self.back_ms().is_some_and(|back| back > clamp(now_ms));
        let returns = ramps(ramp_from);
        let on_trial = self.back_ms().is_some_and(ramps);
        let finding = if returns || on_trial { found(LEAST_RAMPING) } else { found(LEAST) };
        let is_bad = matches!(finding, Finding::Bad(_)) && (returns || !is_suspected);
        if is_bad && now_ms >= self.rest_until_ms {
            self.strikes = (self.strikes + 1).min(MOST_STRIKES);
            self.rest_until_ms = now_ms + self.rest_ms();
        }
        let holds = now_ms < self.rest_until_ms || finding.speaks_against();
        self.forgive(holds, now_ms);
        let later = self.later(holds, is_bad, beside, now_ms);
        let move_on = |from: i64| from.saturating_add(later).min(clamp(now_ms)).max(from);
        let next = if returns { move_on(ramp_from) } else { ramp_from };
        if let Some(suspicion) = self.suspicion.as_mut().filter(|_| on_trial) {
            suspicion.back_ms = move_on(suspicion.back_ms);
        }
        if (returns || on_trial) && later > 0 {
            effects.push(Effect::Moved);
        }
        if let Finding::Bad(case) = found(LEAST)
            && !is_suspected
        {
            let for_ms = self.rest_ms();
            self.rest_until_ms = now_ms + for_ms;
            let back_ms = clamp(self.rest_until_ms);
            let rank = case.rank(&self.window.latest(now_ms));
            self.suspicion = Some(Suspicion { case, rank, back_ms, has_returned: false });
            effects.push(Effect::Suspected { case, for_ms });
        }
        if is_bad {
            // The next word against it has to be of what comes.
            self.window.clear();
        }
        (next, effects)
    }

    fn back_ms(&self) -> Option<i64> {
        self.suspicion.as_ref().map(|suspicion| suspicion.back_ms)
    }

    /// Ends a suspicion whose time is over, and forgets it once the cell has all of its share again, or nobody looks at
    /// such faults any more.
    fn let_back(&mut self, beside: &Beside, now_ms: u64, effects: &mut Vec<Effect>) {
        let Some(suspicion) = &mut self.suspicion else { return };
        let dropped = !beside.looks_at(suspicion.case.fault());
        let age = age(suspicion.back_ms, now_ms);
        if !suspicion.has_returned && (age >= 0 || dropped) {
            suspicion.has_returned = true;
            self.window.clear();
            effects.push(Effect::LetBack);
        }
        if dropped || age >= clamp(beside.ramp_ms) {
            self.suspicion = None;
            effects.push(Effect::Moved);
        }
    }

    /// How long the last strike holds.
    fn rest_ms(&self) -> u64 {
        FIRST_MS << self.strikes.saturating_sub(1)
    }

    fn forgive(&mut self, holds: bool, now_ms: u64) {
        if holds {
            self.calm_since_ms = now_ms;
        } else if self.strikes > 0 && now_ms.saturating_sub(self.calm_since_ms) >= FORGIVEN_MS {
            self.strikes -= 1;
            self.calm_since_ms = now_ms;
        }
    }

    /// By how many milliseconds ramps begin later than at the last look.
    fn later(&mut self, holds: bool, back_a_step: bool, beside: &Beside, now_ms: u64) -> i64 {
        let passed = now_ms.saturating_sub(std::mem::replace(&mut self.looked_ms, now_ms));
        let was_held = std::mem::replace(&mut self.is_held, holds);
        let held = match (was_held, holds) {
            (true, true) => passed,
            (false, true) => LEAD_MS,
            (_, false) => 0,
        };
        let step = if back_a_step { beside.step_ms } else { 0 };
        clamp(held.saturating_add(step))
    }
}

fn age(from: i64, now_ms: u64) -> i64 {
    clamp(now_ms).saturating_sub(from)
}

fn clamp(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
