//! Whether this process wants work: named gates that its parts open and close. What follows from it is the reader's
//! affair.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Cloneable set of gates; ready when every gate is open, so also when there is none.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    /// For each gate, why it is closed.
    gates: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

/// One part's say. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Gate {
    name: String,
    readiness: Readiness,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// A gate of that name, closed until it is opened. Asking again for a name gives the same gate, as it stands.
    pub fn gate(&self, name: &str) -> Gate {
        self.lock().entry(name.to_owned()).or_insert_with(|| Some("not yet".to_owned()));
        Gate { name: name.to_owned(), readiness: self.clone() }
    }

    pub fn is_ready(&self) -> bool {
        self.lock().values().all(Option::is_none)
    }

    /// `NAME: REASON` for every closed gate, in order of name.
    pub fn closed(&self) -> Vec<String> {
        self.lock()
            .iter()
            .filter_map(|(name, reason)| reason.as_ref().map(|reason| format!("{name}: {reason}")))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<String>>> {
        // Nothing under this lock leaves the map half changed, so a panic elsewhere does not spoil it.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    pub fn open(&self) {
        self.set(None);
    }

    pub fn close(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<String>) {
        self.readiness.lock().insert(self.name.clone(), reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_while_every_gate_is_open() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let (table, health) = (readiness.gate("table"), readiness.gate("health"));
        assert_eq!(readiness.closed(), ["health: not yet", "table: not yet"]);
        table.open();
        health.open();
        assert!(readiness.is_ready());
        readiness.gate("table").close("draining");
        assert_eq!(readiness.closed(), ["table: draining"]);
    }
}
