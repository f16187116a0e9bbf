//! The routing table: what a router decides from, immutable, swapped whole. How it is made is in [`build`].

mod build;
mod destination;
mod draft;
mod fence;
mod index;
mod ranges;
mod reweigh;
mod shift;
mod siblings;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::cell::{Capacity, CellState};
use bulkhead_crds::policy::{RestartPolicy, TooLarge};
use bulkhead_crds::router::{
    CellTls, Evidence, ForwardedRules, Idempotency, Limits, ListenerTls, ProxyProtocol,
};

use crate::condition::Source;
use crate::json::Pointers;
use index::Index;
pub(crate) use index::Open;

pub use build::{Build, Inputs, build};
pub use destination::{Destination, Kind as DestinationKind};
pub use draft::bytes;
pub(crate) use fence::Fence;
pub use fence::History;
pub use reweigh::differ_in_weights_alone;
pub use verdict::{DestinationVerdict, Outcome, ParentVerdict, ShiftVerdict, unknown_routers};

/// Place of a cell in one table. Another table may give the same cell another place: keep names across tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellIndex(pub u32);

/// Everything that one router decides from. A copy shares the rules and what finds them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Name of the Router object.
    pub router: String,
    /// How cells outside this cluster are spoken to.
    pub cell_tls: Option<CellTls>,
    pub(crate) cells: Vec<TableCell>,
    pub(crate) cell_places: HashMap<Arc<str>, CellIndex>,
    pub(crate) listeners: Vec<TableListener>,
    pub(crate) rules: Vec<Arc<Rule>>,
    pub(crate) destinations: HashMap<Arc<str>, Arc<Destination>>,
    /// What the Router lets speak against cells.
    pub evidence: Evidence,
}

/// A cell as the API objects describe it. Health is not here: it outlives tables.
#[derive(Clone, Debug)]
pub struct TableCell {
    pub name: Arc<str>,
    /// Percent, 0 to 100, as written in spec, whatever the state says.
    pub spec_weight: u32,
    /// A Cell that is being deleted counts as `Drained`.
    pub state: CellState,
    pub capacity: Option<Capacity>,
    /// `host:port` of each orchestrator of a cell outside this cluster.
    pub endpoints: Vec<String>,
    pub shifts: Vec<CellShift>,
    /// Names of the Destinations that its transactions may reach, in order. Some may not exist.
    pub destinations: Vec<String>,
    pub kin: Kin,
}

/// What the rules that name a cell say of how it is to be judged by evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kin {
    /// The cells that share a group of some rule with it, in order: those that it is compared with.
    pub siblings: Vec<CellIndex>,
    /// How long its way back takes by the slowest of its rules, and the longest step of any.
    pub ramp_ms: u64,
    pub step_ms: u64,
}

/// A TrafficShift of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellShift {
    pub name: String,
    /// Percent, 0 to 100; it can only lower.
    pub percent: u32,
    pub state: CellState,
    /// Milliseconds since 1970; none for the operator's, which end when they are removed.
    pub expires_at_ms: Option<u64>,
    pub by_operator: bool,
}

/// What spec, state and live shifts leave of a cell's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// 0 to 100; 0 is drained.
    pub percent: u32,
    /// The strictest of spec and live shifts: `Disabled` before `Drained` before `Active`.
    pub state: CellState,
    /// An operator's shift holds the cell at 0 now. Its end counts as let in again ([`crate::health::Event::OperatorShift`]).
    pub operator_shift: bool,
}

/// A listener of the Router, and the rules attached to it.
#[derive(Clone, Debug)]
pub struct TableListener {
    pub name: String,
    pub port: u16,
    pub explain: bool,
    pub tls: Option<ListenerTls>,
    pub proxy_protocol: Option<ProxyProtocol>,
    pub forwarded: ForwardedRules,
    /// How clients name their transactions themselves.
    pub idempotency: Option<Idempotency>,
    pub limits: Limits,
    pub(crate) index: Arc<Index>,
    /// Largest `bufferLimit` of the listener's rules, in bytes: what may be held before it is known which rule it is.
    pub buffer_limit: u64,
}

/// `NAMESPACE/POLICY/RULE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(Arc<str>);

/// One rule of one policy, ready to decide with.
#[derive(Clone, Debug)]
pub struct Rule {
    pub id: RuleId,
    /// Among the rules of its table. Another table may give the same rule another place.
    pub place: u32,
    pub(crate) key: Option<KeySource>,
    pub groups: Vec<Group>,
    pub owner: bool,
    /// Open where the rule is no owner's.
    pub(crate) fence: Fence,
    pub restart: Restart,
    pub failback: Failback,
    /// Whether some cell of the rule may reach a Destination with effects, so that its transactions need the ledger.
    pub effects: bool,
    /// Newest first.
    pub(crate) shifts: Vec<RuleShift>,
}

/// Where a rule's key is in a request.
#[derive(Clone, Debug)]
pub(crate) struct KeySource {
    pub(crate) source: Source,
    /// The source again, when it is one in the body; else none.
    pub(crate) pointers: Pointers,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub cells: Vec<GroupCell>,
    /// 0 to 100.
    pub min_healthy_percent: u32,
}

#[derive(Clone, Debug)]
pub struct GroupCell {
    pub name: Arc<str>,
    /// None when no such Cell exists: it still owns its keys under `owner`, and gets nothing otherwise.
    pub cell: Option<CellIndex>,
    /// Relative to the others of the group, as the policy writes it.
    pub weight: u32,
    /// Of the name; see [`crate::decide`].
    pub(crate) digest: u64,
}

/// A TrafficShift of one rule: other weights for a while.
#[derive(Clone, Debug)]
pub(crate) struct RuleShift {
    pub(crate) expires_at_ms: Option<u64>,
    /// By group and place in it.
    pub(crate) weights: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    pub policy: RestartPolicy,
    pub max_attempts: u32,
    pub deadline: Duration,
    /// At most the deadline.
    pub per_attempt: Duration,
    /// Bytes.
    pub buffer_limit: u64,
    pub too_large: TooLarge,
}

/// How a cell comes back; see [`crate::health::ramp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failback {
    pub hold_down_ms: u64,
    /// Percent, rising.
    pub steps: Vec<u32>,
    pub interval_ms: u64,
}

impl RuleId {
    pub(crate) fn new(namespace: &str, policy: &str, rule: &str) -> Self {
        Self(format!("{namespace}/{policy}/{rule}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `NAMESPACE/POLICY`.
    pub fn policy(&self) -> &str {
        self.parts().0
    }

    /// The policy, and the name of the rule in it.
    fn parts(&self) -> (&str, &str) {
        self.0.rsplit_once('/').expect("it is made of three parts")
    }
}

impl std::fmt::Display for RuleId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Table {
    /// Every cell, in the order of [`CellIndex`], which is that of names.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = (CellIndex, &TableCell)> {
        self.cells.iter().enumerate().map(|(place, cell)| (CellIndex(place as u32), cell))
    }

    /// # Panics
    /// When the index is of another table.
    pub fn cell(&self, cell: CellIndex) -> &TableCell {
        &self.cells[cell.0 as usize]
    }

    pub fn cell_named(&self, name: &str) -> Option<CellIndex> {
        self.cell_places.get(name).copied()
    }

    pub fn listeners(&self) -> &[TableListener] {
        &self.listeners
    }

    pub fn listener(&self, name: &str) -> Option<&TableListener> {
        self.listeners.iter().find(|listener| listener.name == name)
    }

    /// Every rule that some listener serves.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Every Destination, in no order.
    pub fn destinations(&self) -> impl Iterator<Item = &Arc<Destination>> {
        self.destinations.values()
    }

    /// The Destination of that name, where the cell may reach it.
    pub fn reaches(&self, cell: &TableCell, destination: &str) -> Option<&Arc<Destination>> {
        let allowed = cell.destinations.binary_search_by(|name| name.as_str().cmp(destination)).is_ok();
        if allowed { self.destinations.get(destination) } else { None }
    }

    /// The cell's weight at that time, in milliseconds since 1970. A shift never raises a cell above its spec.
    pub fn cell_weight(&self, cell: CellIndex, now_unix_ms: u64) -> Weight {
        let cell = self.cell(cell);
        let mut weight =
            Weight { percent: cell.spec_weight.min(100), state: cell.state, operator_shift: false };
        for shift in cell.shifts.iter().filter(|shift| is_live(shift.expires_at_ms, now_unix_ms)) {
            weight.percent = weight.percent.min(shift.percent);
            weight.state = strictest(weight.state, shift.state);
            weight.operator_shift |=
                shift.by_operator && (shift.percent == 0 || shift.state != CellState::Active);
        }
        if weight.state != CellState::Active {
            weight.percent = 0;
        }
        weight
    }
}

impl Rule {
    /// The weights that hold at that time, by group and place in it; none where the policy's own do.
    pub(crate) fn shifted_weights(&self, now_unix_ms: u64) -> Option<&[Vec<u32>]> {
        let live = |shift: &&RuleShift| is_live(shift.expires_at_ms, now_unix_ms);
        self.shifts.iter().find(live).map(|shift| shift.weights.as_slice())
    }

    /// Whether the cell is chosen by something in the body.
    pub fn key_needs_body(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.source.is_body())
    }
}

fn is_live(expires_at_ms: Option<u64>, now_unix_ms: u64) -> bool {
    expires_at_ms.is_none_or(|expiry| now_unix_ms < expiry)
}

fn strictest(a: CellState, b: CellState) -> CellState {
    match (a, b) {
        (CellState::Disabled, _) | (_, CellState::Disabled) => CellState::Disabled,
        (CellState::Drained, _) | (_, CellState::Drained) => CellState::Drained,
        (CellState::Active, CellState::Active) => CellState::Active,
    }
}
