//! Where a transaction has been: never twice in one cell, and of a cell never twice at one pod.

use std::rc::Rc;
use std::sync::Arc;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bulkhead_routing::table::{CellIndex, Table};

use crate::pool::Pool;
use crate::worker::LocalCell;
use bulkhead_routing::transaction::Failure;

#[derive(Default)]
pub(crate) struct Tried {
    /// By name, since the table may change between attempts.
    cells: Vec<Arc<str>>,
    pods: Vec<Rc<Pool>>,
    attempts: u32,
    /// The cell that the last attempt was made in.
    attempted: Option<Arc<str>>,
    /// What the client is told of: the last failure, of those after which something may have happened if there is any.
    told: Option<(Arc<str>, Failure)>,
    was_full: bool,
}

impl Tried {
    /// The cells that are left out, as places in that table.
    pub(crate) fn in_table(&self, table: &Table) -> Vec<CellIndex> {
        self.cells.iter().filter_map(|name| table.cell_named(name)).collect()
    }

    pub(crate) fn pods(&self) -> &[Rc<Pool>] {
        &self.pods
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins an attempt and gives its number. Another pod of the same cell is the same attempt.
    pub(crate) fn attempt(&mut self, cell: &LocalCell) -> u32 {
        if self.attempted.as_ref() != Some(&cell.live.name) {
            self.attempts += 1;
            self.attempted = Some(Arc::clone(&cell.live.name));
        }
        self.attempts
    }

    /// From here on every cell and pod may be asked again: where it began is of no matter for how it is finished.
    pub(crate) fn forgive(&mut self) {
        self.cells.clear();
        self.pods.clear();
    }

    pub(crate) fn pod(&mut self, pool: Rc<Pool>) {
        self.pods.push(pool);
    }

    /// The cell is not asked again.
    pub(crate) fn failed(&mut self, cell: &LocalCell, failure: Failure) {
        self.cells.push(Arc::clone(&cell.live.name));
        let worst = self.told.as_ref().is_some_and(|(_, told)| told.may_have_effects());
        if failure.may_have_effects() || !worst {
            self.told = Some((Arc::clone(&cell.live.name), failure));
        }
    }

    /// The cell has its fill, which is no attempt.
    pub(crate) fn full(&mut self, cell: &LocalCell) {
        self.skip(&cell.live.name);
        self.was_full = true;
    }

    pub(crate) fn skip(&mut self, cell: &Arc<str>) {
        self.cells.push(Arc::clone(cell));
    }

    /// Why there is no answer: what an attempt said, else that cells are full, else what the decision said.
    pub(crate) fn refusal(&self, decided: Refusal) -> Refusal {
        match &self.told {
            Some((cell, failure)) => {
                let reason = match failure.reason() {
                    // Between router and cell only: to a client it is a cell that could not be reached.
                    Reason::WrongCell => Reason::ConnectFailed,
                    reason => reason,
                };
                let attempts = self.attempts;
                let detail = format!(
                    "no answer after {attempts} attempt(s); this is what came of the one in cell {cell}"
                );
                Refusal { reason, detail }
            }
            None if self.was_full => Refusal {
                reason: Reason::Capacity,
                detail: "every cell that could take the request is at its capacity (its own, or half of limits.inFlight)"
                    .to_owned(),
            },
            None => decided,
        }
    }
}
