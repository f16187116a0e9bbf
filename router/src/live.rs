//! What changes faster than tables: the health and load of cells and pods, as atomics that the health thread writes and
//! the request path reads. They outlive tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::HeaderValue;

use crate::objects::Pod;

/// One cell in this router.
pub(crate) struct CellLive {
    pub(crate) name: Arc<str>,
    /// The name as a header's value.
    pub(crate) header: HeaderValue,
    is_in: AtomicBool,
    /// When the ramp began, by the process's clock; `NO_RAMP` when there is none.
    ramp_from: AtomicU64,
    /// Transactions of this router under way in the cell.
    in_flight: AtomicU32,
    /// How many this router may have under way there; `u32::MAX` is no limit.
    allowance: AtomicU32,
    report: ArcSwap<CellReport>,
}

/// What people and the operator are told of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CellReport {
    /// A CamelCase word; `Ready` when in.
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Pods that this router streams from.
    pub(crate) pods: u32,
}

const NO_RAMP: u64 = u64::MAX;

impl CellLive {
    pub(crate) fn new(name: &str) -> Self {
        let report = CellReport {
            reason: "NotHeardYet".to_owned(),
            message: "no orchestrator has said anything yet".to_owned(),
            pods: 0,
        };
        Self {
            name: name.into(),
            // Names of cells are letters, digits and hyphens, which every header takes.
            header: HeaderValue::try_from(name).unwrap_or_else(|_| HeaderValue::from_static("")),
            is_in: AtomicBool::new(false),
            ramp_from: AtomicU64::new(NO_RAMP),
            in_flight: AtomicU32::new(0),
            allowance: AtomicU32::new(u32::MAX),
            report: ArcSwap::from_pointee(report),
        }
    }

    pub(crate) fn is_in(&self) -> bool {
        self.is_in.load(Ordering::Acquire)
    }

    /// Milliseconds since the ramp began; `u64::MAX` where there is none.
    pub(crate) fn ramp_age(&self, now_ms: u64) -> u64 {
        match self.ramp_from.load(Ordering::Relaxed) {
            NO_RAMP => u64::MAX,
            from => now_ms.saturating_sub(from),
        }
    }

    /// Lets the cell in, with the time at which its ramp began, or takes it out.
    pub(crate) fn set_in(&self, is_in: bool, ramp_from: Option<u64>) {
        self.ramp_from.store(ramp_from.unwrap_or(NO_RAMP), Ordering::Relaxed);
        self.is_in.store(is_in, Ordering::Release);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts one more under way, unless the cell has its fill of this router.
    pub(crate) fn admit(&self) -> bool {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let admitted = before < self.allowance.load(Ordering::Relaxed);
        if !admitted {
            self.leave();
        }
        admitted
    }

    pub(crate) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set_allowance(&self, allowance: u32) {
        self.allowance.store(allowance, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> Arc<CellReport> {
        self.report.load_full()
    }

    pub(crate) fn set_report(&self, report: CellReport) {
        if **self.report.load() != report {
            self.report.store(Arc::new(report));
        }
    }
}

/// One orchestrator pod in this router.
pub(crate) struct PodLive {
    pub(crate) at: Pod,
    /// Whether its stream speaks and says ready.
    usable: AtomicBool,
}

impl PodLive {
    pub(crate) fn is_usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    pub(crate) fn set_usable(&self, usable: bool) {
        self.usable.store(usable, Ordering::Relaxed);
    }
}

/// Every cell and pod by name and address, so that a new table finds what the one before knew.
#[derive(Default)]
pub(crate) struct Registry {
    cells: HashMap<Arc<str>, Arc<CellLive>>,
    pods: HashMap<Pod, Arc<PodLive>>,
}

impl Registry {
    pub(crate) fn cell(&mut self, name: &str) -> Arc<CellLive> {
        if let Some(cell) = self.cells.get(name) {
            return Arc::clone(cell);
        }
        let cell = Arc::new(CellLive::new(name));
        self.cells.insert(Arc::clone(&cell.name), Arc::clone(&cell));
        cell
    }

    pub(crate) fn pod(&mut self, at: Pod) -> Arc<PodLive> {
        let new = || Arc::new(PodLive { at, usable: AtomicBool::new(false) });
        Arc::clone(self.pods.entry(at).or_insert_with(new))
    }

    /// Forgets what nobody holds any more.
    pub(crate) fn prune(&mut self) {
        self.cells.retain(|_, cell| Arc::strong_count(cell) > 1);
        self.pods.retain(|_, pod| Arc::strong_count(pod) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_takes_no_more_than_its_allowance() {
        let cell = CellLive::new("a");
        cell.set_allowance(2);
        assert!(cell.admit() && cell.admit());
        assert!(!cell.admit());
        assert_eq!(cell.in_flight(), 2);
        cell.leave();
        assert!(cell.admit());
    }

    #[test]
    fn the_registry_keeps_what_is_held_and_forgets_the_rest() {
        let mut registry = Registry::default();
        let held = registry.cell("a");
        held.set_in(true, None);
        drop(registry.cell("b"));
        registry.prune();
        assert!(registry.cell("a").is_in());
        assert_eq!(registry.cells.len(), 1);
    }
}
