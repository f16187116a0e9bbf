//! All cells of one router with the router's doubt in itself: where events go in and effects come out. It outlives tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cell::OPENING_MS;
use super::evidence::LEAST_RAMPING;
use super::suspicion::Beside;
use super::{Doubt, Effect, Event, Observer, Samples, State, observe, step};
use crate::table::{CellIndex, Table};

/// How long the other cells of the first table have from when one has spoken: two tries of a stream.
const OTHERS_MS: u64 = 2_000;

/// Health of every cell that the table names, by name.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    cells: BTreeMap<Arc<str>, State>,
    observer: Observer,
    /// When a cell first spoke to this router.
    spoken_ms: Option<u64>,
}

impl Fleet {
    /// Takes the cells of a new table: keeps what is known of those it knew, forgets those that are gone.
    pub fn sync<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>, now_ms: u64) {
        let mut known = std::mem::take(&mut self.cells);
        for name in names {
            let state = known.remove(name).unwrap_or_else(|| State::new(now_ms));
            self.cells.insert(Arc::clone(name), state);
        }
    }

    pub fn get(&self, cell: &str) -> Option<&State> {
        self.cells.get(cell)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &State)> {
        self.cells.iter()
    }

    /// Whether a router that starts knows enough to serve: every cell of its first table has spoken, or its time is over.
    /// While none has, the way to all of them may not be open yet, and they get longer.
    pub fn is_answered(&self, now_ms: u64) -> bool {
        let Some(begun_ms) = self.cells.values().map(State::known_since_ms).min() else { return true };
        let until_ms = self.spoken_ms.map_or(begun_ms + OPENING_MS, |spoken| spoken + OTHERS_MS);
        let mut first = self.cells.values().filter(|cell| cell.known_since_ms() == begun_ms);
        now_ms >= until_ms || first.all(State::has_spoken)
    }

    /// An event of one cell. One of a cell that is in no table is dropped.
    pub fn event(&mut self, cell: &str, event: Event, now_ms: u64) -> Vec<Effect> {
        let Some(state) = self.cells.get_mut(cell) else { return Vec::new() };
        let (next, effects) = step(std::mem::replace(state, State::new(now_ms)), event, now_ms);
        *state = next;
        if state.has_spoken() {
            self.spoken_ms.get_or_insert(now_ms);
        }
        effects
    }

    /// Time passes: to be called at least every 50 ms, after everything that sockets hold was read. `late_ms` is by how
    /// much this call comes later than it was planned.
    pub fn tick(&mut self, late_ms: u64, now_ms: u64) -> (Doubt, Vec<(Arc<str>, Effect)>) {
        let heard = self.cells.values().filter(|state| state.is_in()).filter_map(State::heard_ms);
        let (observer, doubt) = observe(self.observer, heard, late_ms, now_ms);
        self.observer = observer;
        let judge = doubt == Doubt::None;
        let mut effects = Vec::new();
        for (name, state) in &mut self.cells {
            let before = std::mem::replace(state, State::new(now_ms));
            let (next, changed) = step(before, Event::Tick { late_ms, judge }, now_ms);
            *state = next;
            effects.extend(changed.into_iter().map(|effect| (Arc::clone(name), effect)));
        }
        (doubt, effects)
    }

    /// Takes what requests said of each cell since the last time, and looks at how it does beside its siblings: to be
    /// called every 250 ms with the table that is in force.
    pub fn look(
        &mut self,
        table: &Table,
        mut said: impl FnMut(CellIndex) -> Samples,
        now_ms: u64,
    ) -> Vec<(Arc<str>, Effect)> {
        let mut sums = Vec::with_capacity(table.cells().len());
        for (index, cell) in table.cells() {
            self.event(&cell.name, Event::Samples(said(index)), now_ms);
            sums.push(self.get(&cell.name).and_then(|state| state.measure(now_ms)));
        }
        let mut effects = Vec::new();
        for (index, cell) in table.cells() {
            let own = sums[index.0 as usize];
            let mut siblings = Samples::default();
            // Without them nothing is found, and the sum of many need not be made.
            if own.is_none_or(|own| own.failed().of >= LEAST_RAMPING) {
                let of = cell.kin.siblings.iter().filter_map(|sibling| sums[sibling.0 as usize].as_ref());
                of.for_each(|sum| siblings.add(sum));
            }
            let event = Event::Evidence(Beside::new(siblings, &cell.kin, table.evidence));
            let changed = self.event(&cell.name, event, now_ms);
            effects.extend(changed.into_iter().map(|effect| (Arc::clone(&cell.name), effect)));
        }
        effects
    }

    /// Whether evidence has a part in what becomes of any cell.
    pub fn doubts_any(&self) -> bool {
        self.cells.values().any(|state| state.suspected().is_some())
    }
}
