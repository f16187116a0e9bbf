//! Where a transaction has been and where it may go next: never twice in one cell, and of a cell never twice at one pod.

use std::rc::Rc;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bulkhead_routing::transaction::Failure;

use crate::history::Id;
use crate::world::World;

pub(crate) struct Tried {
    world: Rc<World>,
    id: Id,
    cells: Vec<usize>,
    pods: Vec<usize>,
    attempts: u32,
    /// The cell that the last attempt was made in.
    attempted: Option<usize>,
    /// The last failure, of those after which something may have happened if there is any.
    told: Option<Failure>,
}

impl Tried {
    pub(crate) fn nowhere(world: &Rc<World>, id: Id) -> Self {
        let world = Rc::clone(world);
        Self { world, id, cells: Vec::new(), pods: Vec::new(), attempts: 0, attempted: None, told: None }
    }

    /// Pods of the cell that may be asked.
    pub(crate) fn untried(&self, cell: usize) -> Vec<usize> {
        let pods = self.world.pods.iter().enumerate().filter(|(_, pod)| pod.cell == cell);
        pods.map(|(pod, _)| pod).filter(|pod| !self.has_tried(*pod)).collect()
    }

    pub(crate) fn has_tried(&self, pod: usize) -> bool {
        self.pods.contains(&pod)
    }

    /// The cells that may be asked, in the order in which this transaction chooses them.
    fn candidates(&self) -> Vec<usize> {
        let count = self.world.cells;
        let order = (0..count).map(|place| (self.id as usize + place) % count);
        let allowed = order.take(if self.world.owner { 1 } else { count });
        allowed.filter(|cell| !self.cells.contains(cell)).collect()
    }

    pub(crate) fn pods_left(&self) -> usize {
        self.candidates().into_iter().map(|cell| self.untried(cell).len()).sum()
    }

    /// A pod of that cell if it may be asked, else of the next.
    pub(crate) fn choose(&mut self, first: Option<usize>) -> Result<usize, Refusal> {
        let candidates = self.candidates();
        let first = first.filter(|cell| candidates.contains(cell));
        for cell in first.into_iter().chain(candidates) {
            let pods = self.untried(cell);
            if !pods.is_empty() {
                return Ok(self.world.dice.pick(&pods));
            }
            self.cells.push(cell);
        }
        Err(self.refusal(Reason::NoHealthyCell))
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins an attempt. Another pod of the same cell is the same attempt.
    pub(crate) fn attempt(&mut self, cell: usize) {
        if self.attempted.replace(cell) != Some(cell) {
            self.attempts += 1;
        }
    }

    pub(crate) fn pod(&mut self, pod: usize) {
        self.pods.push(pod);
    }

    /// The cell is not asked again.
    pub(crate) fn failed(&mut self, cell: usize, failure: Failure) {
        self.cells.push(cell);
        let worst = self.told.is_some_and(Failure::may_have_effects);
        if failure.may_have_effects() || !worst {
            self.told = Some(failure);
        }
    }

    /// Why there is no answer: what an attempt said, else what was decided.
    pub(crate) fn refusal(&self, decided: Reason) -> Refusal {
        let reason = match self.told.map(Failure::reason) {
            None => decided,
            Some(Reason::WrongCell) => Reason::ConnectFailed,
            Some(reason) => reason,
        };
        Refusal { reason, detail: String::new() }
    }
}
