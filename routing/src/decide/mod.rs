//! Deciding where one request goes: the first rule that matches, the first group that is healthy enough, and the cell
//! that the key chooses there. Nothing here grows with the number of rules, locks, or asks anybody.

mod choose;
mod doubt;
mod hash;
mod matching;
#[cfg(test)]
mod tests;

use bulkhead_protocol::Reason;

use crate::table::CellIndex;

pub(crate) use choose::{Named, Scene};
pub use choose::{choose, ramps, shares};
pub use doubt::Doubt;
pub use hash::{Key, key};
pub(crate) use hash::{digest_name, key_value, score};
pub use matching::match_rule;

/// Why no cell gets the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Refusal {
    pub reason: Reason,
    /// A sentence for people, with the rule or the part of the request that it is about.
    pub detail: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    pub fn reason(&self) -> &'static str {
        self.reason.as_str()
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub cell: CellIndex,
    /// Place of the group in the rule.
    pub group: usize,
}

/// One cell at the moment of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// 0 to 100, as [`crate::Table::cell_weight`] says.
    pub weight: u32,
    pub is_in: bool,
    /// How long it has been in again, for the ramp; `u64::MAX` needs none.
    pub ramp_age_ms: u64,
    /// Drained or disabled on purpose, by weight 0, state or a shift.
    pub drained: bool,
    /// What evidence has against it. How many of a rule's cells that may concern is looked at where the rule is.
    pub doubt: Option<Doubt>,
}

impl CellView {
    /// Whether it may get a request at all.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_in && !self.drained && self.weight > 0
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained || self.weight == 0
    }
}

/// The cells as one router sees them now.
pub trait CellStates {
    fn state(&self, cell: CellIndex) -> CellView;
    /// Milliseconds since 1970; asked only where a rule has TrafficShifts.
    fn now_unix_ms(&self) -> u64;
    /// Whether there may be a doubt in any cell: asked first, so that without one there is nothing to look at.
    fn any_doubt(&self) -> bool {
        true
    }
}
