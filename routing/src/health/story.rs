//! A fleet in a story: cells whose pods speak or fall silent, time that passes in ticks, and the shares that a router
//! would give them. The stories are in `stories`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::decide::{CellStates, CellView, shares};
use crate::fixture::{World, the_rule};
use crate::table::{CellIndex, Table};

pub(super) const TICK_MS: u64 = 50;
pub(super) const BEAT_MS: u64 = 250;
const LOOK_MS: u64 = 250;

/// A router with its table and fleet, and pods that beat: pod `a-0` is the first of cell `a`.
pub(super) struct Story {
    pub(super) table: Table,
    pub(super) fleet: Fleet,
    pub(super) now_ms: u64,
    pub(super) pods: Vec<Speaker>,
    /// Changes of any cell, in order, such as `50 a out Silent`.
    pub(super) told: Vec<String>,
    pub(super) doubts: usize,
    /// Requests each second, which go to cells by their shares.
    pub(super) rate: f64,
    pub(super) work: BTreeMap<String, Work>,
}

/// How a cell does what it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) failing: f64,
    pub(super) millis: u64,
    /// What of a request, and of a failure, is left over from before.
    due: f64,
    failures_due: f64,
}

/// A pod as it really is.
pub(super) struct Speaker {
    pub(super) cell: String,
    pub(super) pod: Pod,
    pub(super) ready: bool,
    pub(super) speaks: bool,
    pub(super) ready_since_ms: i64,
}

impl CellStates for Story {
    fn state(&self, cell: CellIndex) -> CellView {
        let state = self.fleet.get(&self.table.cell(cell).name).expect("a cell of the table");
        state.view(self.table.cell_weight(cell, 0), self.now_ms)
    }

    fn now_unix_ms(&self) -> u64 {
        0
    }
}

impl Story {
    /// Cells `a`, `b` and so on with one pod each, ready for an hour, heard from the start.
    pub(super) fn new(groups: &[&[(&str, u32)]]) -> Self {
        let mut story = Self::unheard(groups);
        story.speak();
        story.told.clear();
        story
    }

    pub(super) fn unheard(groups: &[&[(&str, u32)]]) -> Self {
        let table = World::with_groups(groups).table();
        let mut fleet = Fleet::default();
        let now_ms = 5_000;
        fleet.sync(table.cells().map(|(_, cell)| &cell.name), now_ms);
        let names: Vec<String> = table.cells().map(|(_, cell)| cell.name.to_string()).collect();
        let well = Work { failing: 0.0, millis: 20, due: 0.0, failures_due: 0.0 };
        let work = names.iter().map(|name| (name.clone(), well)).collect();
        let (pods, told) = (Vec::new(), Vec::new());
        let mut story = Self { table, fleet, now_ms, pods, told, doubts: 0, rate: 0.0, work };
        for cell in names {
            story.add_pod(&cell, &format!("{cell}-0"));
        }
        story
    }

    pub(super) fn add_pod(&mut self, cell: &str, pod: &str) {
        let pod: Pod = pod.into();
        let (ready, speaks, ready_since_ms) = (true, true, -3_600_000);
        self.event(cell, Event::PodAdded(Arc::clone(&pod)));
        self.pods.push(Speaker { cell: cell.to_owned(), pod, ready, speaks, ready_since_ms });
    }

    pub(super) fn event(&mut self, cell: &str, event: Event) {
        let effects = self.fleet.event(cell, event, self.now_ms);
        self.tell(cell, effects);
    }

    pub(super) fn tell(&mut self, cell: &str, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::In => self.told.push(format!("{cell} in")),
                Effect::Out { reason } => self.told.push(format!("{cell} out {reason}")),
                Effect::Suspected { case, for_ms } => {
                    self.told.push(format!("{cell} {} for {} s", case.fault().as_str(), for_ms / 1_000));
                }
                Effect::LetBack => self.told.push(format!("{cell} let back")),
                Effect::PodsChanged | Effect::Moved => {}
            }
        }
    }

    pub(super) fn speaker(&mut self, pod: &str) -> &mut Speaker {
        self.pods.iter_mut().find(|speaker| &*speaker.pod == pod).expect("a pod of the story")
    }

    /// The orchestrator changes its mind, and says so at once if it speaks.
    pub(super) fn ready(&mut self, pod: &str, ready: bool) {
        let now = self.now_ms as i64;
        let speaker = self.speaker(pod);
        if speaker.ready != ready {
            speaker.ready_since_ms = now;
        }
        speaker.ready = ready;
        let (cell, verdict) = (speaker.cell.clone(), verdict(speaker, now));
        if speaker.speaks {
            self.event(&cell, verdict);
        }
    }

    /// Every pod that speaks says how it is.
    pub(super) fn speak(&mut self) {
        let now = self.now_ms as i64;
        let speaking = self.pods.iter().filter(|speaker| speaker.speaks);
        let said: Vec<_> = speaking.map(|speaker| (speaker.cell.clone(), verdict(speaker, now))).collect();
        for (cell, verdict) in said {
            self.event(&cell, verdict);
        }
    }

    pub(super) fn tick(&mut self, late_ms: u64) {
        let (doubt, effects) = self.fleet.tick(late_ms, self.now_ms);
        self.doubts += usize::from(doubt == Doubt::ObserverStalled { began: true });
        for (cell, effect) in effects {
            self.tell(&cell, vec![effect]);
        }
    }

    /// Time passes with its ticks and beats; `each` sees every tick.
    pub(super) fn watch(&mut self, millis: u64, mut each: impl FnMut(&Self)) {
        let end = self.now_ms + millis;
        while self.now_ms < end {
            self.now_ms += TICK_MS;
            if self.now_ms.is_multiple_of(BEAT_MS) {
                self.speak();
            }
            self.tick(0);
            if self.now_ms.is_multiple_of(LOOK_MS) {
                self.look();
            }
            each(self);
        }
    }

    /// Requests of the last time come back, and the router looks at what they say.
    fn look(&mut self) {
        let shares: BTreeMap<CellIndex, u32> = shares(the_rule(&self.table), self).into_iter().collect();
        let Self { table, fleet, work, rate, now_ms, .. } = self;
        let said = |index| {
            let mut samples = Samples::default();
            let work = work.get_mut(&*table.cell(index).name).expect("a cell of the story");
            let share = f64::from(shares.get(&index).copied().unwrap_or_default()) / 1e6;
            work.due += *rate * share * LOOK_MS as f64 / 1e3;
            while work.due >= 1.0 {
                work.due -= 1.0;
                work.failures_due += work.failing;
                if work.failures_due >= 1.0 {
                    work.failures_due -= 1.0;
                    samples.fail();
                } else {
                    samples.answer(work.millis * 1_000);
                }
            }
            samples
        };
        for (cell, effect) in fleet.look(table, said, *now_ms) {
            self.tell(&cell, vec![effect]);
        }
    }

    /// The part of its attempts that fails in the cell from now on.
    pub(super) fn fails(&mut self, cell: &str, failing: f64) {
        self.work.get_mut(cell).expect("a cell of the story").failing = failing;
    }

    pub(super) fn takes(&mut self, cell: &str, millis: u64) {
        self.work.get_mut(cell).expect("a cell of the story").millis = millis;
    }

    pub(super) fn pass(&mut self, millis: u64) {
        self.watch(millis, |_| {});
    }

    /// Share of the cell in percent, rounded.
    pub(super) fn share(&self, cell: &str) -> u32 {
        let index = self.table.cell_named(cell).expect("a cell of the table");
        let shares = shares(the_rule(&self.table), self);
        let share = shares.iter().find(|(cell, _)| *cell == index).expect("a cell of the rule").1;
        (share + 5_000) / 10_000
    }

    pub(super) fn is_answered(&self) -> bool {
        self.fleet.is_answered(self.now_ms)
    }

    pub(super) fn check_told(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.told), expected);
    }
}

pub(super) fn verdict(speaker: &Speaker, now_ms: i64) -> Event {
    let ready_for_ms = if speaker.ready { (now_ms - speaker.ready_since_ms) as u64 } else { 0 };
    let reason = if speaker.ready { "Ready" } else { "ServiceNotReady" };
    Event::Verdict {
        pod: Arc::clone(&speaker.pod),
        ready: speaker.ready,
        reason: reason.to_owned(),
        ready_for_ms,
    }
}
