//! What a request decides from: one table with the live state of its cells, immutable and swapped whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bulkhead_crds::cell::CellState;
use bulkhead_protocol::serving::ObjectVersion;
use bulkhead_routing::table::{CellIndex, DestinationVerdict, ParentVerdict, ShiftVerdict, Table, Weight};
use bulkhead_routing::{CellStates, CellView};

use crate::egress::{DestinationLive, Destinations};
use crate::front::Servers;
use crate::live::{CellLive, PodLive};
use crate::owned::Former;

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
    pub(crate) destinations: Arc<Destinations>,
    pub(crate) servers: Arc<Servers>,
    /// What is wrong with the certificates for cells.
    pub(crate) cell_tls_wrong: Option<String>,
    /// Whether evidence may have a part in what becomes of a cell. The health thread sets it; it outlives tables.
    pub(crate) any_doubt: Arc<AtomicBool>,
    /// Held by each transaction that goes to an owner by this table; gone once another is in force.
    pub(crate) owned: Weak<()>,
    pub(crate) about: Arc<About>,
}

/// What people and the operator are told of a table.
#[derive(Clone, Default)]
pub(crate) struct About {
    pub(crate) objects: BTreeMap<String, ObjectVersion>,
    pub(crate) verdicts: Vec<ParentVerdict>,
    pub(crate) shifts: Vec<ShiftVerdict>,
    pub(crate) destinations: Vec<DestinationVerdict>,
    /// Objects and files that could not be read, and why.
    pub(crate) bad: BTreeMap<String, String>,
    pub(crate) former: Vec<Former>,
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

    /// Where a Destination is reached, for a cell that may ([`Table::reaches`]).
    pub(crate) fn destination(&self, name: &str) -> Option<&Arc<DestinationLive>> {
        self.destinations.get(name)
    }

    /// Whether another cell serves too.
    pub(crate) fn serves_beside(&self, cell: CellIndex, now_unix_ms: u64) -> bool {
        self.table.cells().any(|(other, _)| {
            other != cell
                && self.live(other).is_some_and(|live| live.is_in())
                && self.table.cell_weight(other, now_unix_ms).percent > 0
        })
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
            doubt: live.and_then(|live| live.doubt(self.now_ms)),
        }
    }

    fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms
    }

    fn any_doubt(&self) -> bool {
        self.snapshot.any_doubt.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Reason;
    use bulkhead_routing::decide::{self, Key};
    use bulkhead_routing::table::{Inputs, build};
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> T {
        let metadata = json!({"name": name, "namespace": "ns"});
        let whole =
            json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        serde_json::from_value(whole).expect("an object of the API")
    }

    /// Cell a, which is in, with a rule that sends everything there; the shift of its state ends after a second.
    fn snapshot(state: &str, shifted: Option<&str>) -> Snapshot {
        let listeners = json!({"listeners": [{"name": "http", "port": 8080}]});
        let rule = json!({"name": "all", "groups": [{"cells": [{"name": "a"}]}]});
        let policy = json!({"parentRefs": [{"router": "main", "listener": "http"}], "rules": [rule]});
        let end = "1970-01-01T00:00:01Z";
        let shift = |state| {
            let spec = json!({"cell": "a", "state": state, "reason": "a test", "expiresAt": end});
            object("TrafficShift", "s", &spec)
        };
        let built = build(&Inputs {
            router: &object("Router", "main", &listeners),
            cells: vec![&object("Cell", "a", &json!({"template": "t", "state": state}))],
            policies: vec![&object("RoutingPolicy", "p", &policy)],
            shifts: shifted.map(shift).iter().collect(),
            destinations: Vec::new(),
        });
        let live = CellLive::new("a");
        live.set_in(true, 0);
        Snapshot { table: Arc::new(built.table), cells: vec![Arc::new(live)], ..Snapshot::default() }
    }

    fn check(state: &str, shifted: Option<&str>, now_unix_ms: u64, expected: Result<CellIndex, Reason>) {
        let snapshot = snapshot(state, shifted);
        let moment = snapshot.at(60_000, now_unix_ms);
        let choice = decide::choose(&snapshot.table.rules()[0], Key::of(b"key"), &moment, &[]);
        let chosen = choice.map(|choice| choice.cell).map_err(|refusal| refusal.reason);
        assert_eq!(chosen, expected, "{state}, shifted to {shifted:?}, at {now_unix_ms}");
    }

    #[test]
    fn a_cell_serves_while_its_own_state_and_that_of_a_shift_are_active() {
        let (serves, drained) = (Ok(CellIndex(0)), Err(Reason::AllDrained));
        check("Active", None, 0, serves);
        check("Drained", None, 0, drained);
        check("Disabled", None, 0, drained);
        check("Active", Some("Active"), 999, serves);
        check("Drained", Some("Active"), 999, drained);
        check("Disabled", Some("Active"), 999, drained);
        for state in ["Drained", "Disabled"] {
            check("Active", Some(state), 999, drained);
            check("Active", Some(state), 1_000, serves);
        }
    }
}
