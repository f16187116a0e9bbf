//! What a request decides from: one table with the live state of its cells, immutable and swapped whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_crds::cell::CellState;
use bulkhead_protocol::serving::ObjectVersion;
use bulkhead_routing::table::{CellIndex, ParentVerdict, ShiftVerdict, Table, Weight};
use bulkhead_routing::{CellStates, CellView};

use crate::live::{CellLive, PodLive};

/// A table, and where its cells are.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Counts the snapshots of this process from 1; 0 is none yet.
    pub(crate) version: u64,
    pub(crate) table: Arc<Table>,
    /// By [`CellIndex`].
    pub(crate) cells: Vec<Arc<CellLive>>,
    /// By [`CellIndex`].
    pub(crate) pods: Vec<Vec<Arc<PodLive>>>,
    pub(crate) about: Arc<About>,
}

/// What people and the operator are told of a table.
#[derive(Default)]
pub(crate) struct About {
    pub(crate) objects: BTreeMap<String, ObjectVersion>,
    pub(crate) verdicts: Vec<ParentVerdict>,
    pub(crate) shifts: Vec<ShiftVerdict>,
    /// Objects and files that could not be read, and why.
    pub(crate) bad: BTreeMap<String, String>,
    pub(crate) from_disk: bool,
    pub(crate) built_unix_ms: u64,
    pub(crate) drain_timeout: std::time::Duration,
}

impl Snapshot {
    pub(crate) fn live(&self, cell: CellIndex) -> Option<&Arc<CellLive>> {
        self.cells.get(cell.0 as usize)
    }

    pub(crate) fn pods(&self, cell: CellIndex) -> &[Arc<PodLive>] {
        self.pods.get(cell.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// The cells at one moment.
    pub(crate) fn at(&self, now_ms: u64, now_unix_ms: u64) -> Moment<'_> {
        Moment { snapshot: self, now_ms, now_unix_ms }
    }
}

/// The cells of a snapshot at one moment, for decisions.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    snapshot: &'a Snapshot,
    now_ms: u64,
    now_unix_ms: u64,
}

impl Moment<'_> {
    pub(crate) fn weight(&self, cell: CellIndex) -> Weight {
        self.snapshot.table.cell_weight(cell, self.now_unix_ms)
    }
}

impl CellStates for Moment<'_> {
    fn state(&self, cell: CellIndex) -> CellView {
        let weight = self.weight(cell);
        let live = self.snapshot.live(cell);
        CellView {
            weight: weight.percent,
            is_in: live.is_some_and(|live| live.is_in()),
            ramp_age_ms: live.map_or(0, |live| live.ramp_age(self.now_ms)),
            drained: weight.state != CellState::Active,
        }
    }

    fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms
    }
}
