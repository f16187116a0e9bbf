//! What changes faster than tables: the health and load of cells and pods, as atomics that the health thread writes and
//! the request path reads. They outlive tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bulkhead_process::Connector;
use bulkhead_routing::decide::Doubt;
use tokio::sync::watch;

use crate::evidence::Said;
use crate::objects::Pod;

/// One cell in this router.
pub(crate) struct CellLive {
    pub(crate) name: Arc<str>,
    is_in: AtomicBool,
    /// When the ramp began, by the process's clock, so below 0 for a cell that was ready before this process started;
    /// [`NO_RAMP`] when there is none.
    ramp_from: AtomicI64,
    /// Rank of the suspicion of the cell, and when its way back from there begins; 0 is none.
    suspected: AtomicU32,
    back_from: AtomicI64,
    /// What requests say of the cell, until the health thread takes it.
    pub(crate) said: Said,
    /// Transactions of this router under way in the cell.
    in_flight: AtomicU32,
    /// How many this router may have under way there; `u32::MAX` is no limit.
    allowance: AtomicU32,
    /// Requests that this router may begin there each second.
    rate: Rate,
    /// Drains of the cell whose time was over.
    drains_over: AtomicU32,
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

const NO_RAMP: i64 = i64::MIN;

impl CellLive {
    pub(crate) fn new(name: &str) -> Self {
        let report = CellReport {
            reason: "NotHeardYet".to_owned(),
            message: "no orchestrator has said anything yet".to_owned(),
            pods: 0,
        };
        Self {
            name: name.into(),
            is_in: AtomicBool::new(false),
            ramp_from: AtomicI64::new(NO_RAMP),
            suspected: AtomicU32::new(0),
            back_from: AtomicI64::new(0),
            said: Said::default(),
            in_flight: AtomicU32::new(0),
            allowance: AtomicU32::new(u32::MAX),
            rate: Rate::default(),
            drains_over: AtomicU32::new(0),
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
            from => {
                let age = i64::try_from(now_ms).unwrap_or(i64::MAX).saturating_sub(from);
                u64::try_from(age).unwrap_or(0)
            }
        }
    }

    /// Lets the cell in, with the time at which its ramp began, or takes it out.
    pub(crate) fn set_in(&self, is_in: bool, ramp_from: i64) {
        self.ramp_from.store(ramp_from, Ordering::Relaxed);
        self.is_in.store(is_in, Ordering::Release);
    }

    /// Takes what evidence has against the cell, if anything: see [`bulkhead_routing::health::State::suspected`].
    pub(crate) fn set_suspected(&self, suspected: Option<(u16, i64)>) {
        let (rank, back_from) = suspected.unwrap_or_default();
        self.back_from.store(back_from, Ordering::Relaxed);
        self.suspected.store(rank.into(), Ordering::Release);
    }

    pub(crate) fn doubt(&self, now_ms: u64) -> Option<Doubt> {
        let rank = u16::try_from(self.suspected.load(Ordering::Acquire)).unwrap_or(u16::MAX);
        (rank > 0).then(|| Doubt::since(rank, self.back_from.load(Ordering::Relaxed), now_ms))
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts one more under way, unless the cell has its fill of this router. `most` may set a lower limit; it is asked
    /// once the request is counted, so that of two that come together neither overlooks the other.
    pub(crate) fn admit(&self, now: Duration, most: impl FnOnce() -> u32) -> bool {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let most = most().min(self.allowance.load(Ordering::Relaxed));
        let admitted = before < most && self.rate.admit(now);
        if !admitted {
            self.leave();
        }
        admitted
    }

    /// Counts one that was in the cell before and comes back to be finished, whatever there is room for.
    pub(crate) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Drains of the cell whose time was over. What began there when there were fewer is to end.
    pub(crate) fn drains_over(&self) -> u32 {
        self.drains_over.load(Ordering::Relaxed)
    }

    pub(crate) fn drain_is_over(&self) {
        self.drains_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_allowance(&self, allowance: Allowance) {
        self.allowance.store(allowance.in_flight, Ordering::Relaxed);
        self.rate.set(allowance.per_second);
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

/// What a cell has room for, of this router's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowance {
    /// Transactions under way at the same time; `u32::MAX` is no limit.
    pub(crate) in_flight: u32,
    /// Requests begun each second.
    pub(crate) per_second: Option<f64>,
}

/// Requests at a bounded rate, on one atomic: the time at which the next would be due if they came evenly. A tenth of a
/// second's worth may come at once.
#[derive(Default)]
struct Rate {
    /// Nanoseconds between two; 0 is no limit.
    interval: AtomicU64,
    due: AtomicU64,
}

const BURST_NANOS: u64 = 100_000_000;

impl Rate {
    fn set(&self, per_second: Option<f64>) {
        let interval = per_second.map_or(0.0, |rate| 1e9 / rate.max(1e-3));
        self.interval.store(interval as u64, Ordering::Relaxed);
    }

    fn admit(&self, now: Duration) -> bool {
        let interval = self.interval.load(Ordering::Relaxed);
        if interval == 0 {
            return true;
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let next = |due: u64| (due <= now.saturating_add(BURST_NANOS)).then(|| due.max(now) + interval);
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// One orchestrator pod in this router.
pub(crate) struct PodLive {
    pub(crate) at: Pod,
    /// How connections to it are made from now on.
    connector: watch::Sender<Arc<Connector>>,
    /// Whether its stream speaks and says ready.
    usable: AtomicBool,
    /// Versions of contexts that it can go on from.
    contexts: ArcSwap<Vec<String>>,
}

impl PodLive {
    pub(crate) fn set_connector(&self, connector: &Connector) {
        if *self.connector() != *connector {
            self.connector.send_replace(Arc::new(connector.clone()));
        }
    }

    pub(crate) fn connector(&self) -> Arc<Connector> {
        Arc::clone(&self.connector.borrow())
    }

    /// The same, and another when it changes.
    pub(crate) fn connectors(&self) -> watch::Receiver<Arc<Connector>> {
        self.connector.subscribe()
    }

    /// Whether it can go on from a context of that version.
    pub(crate) fn reads(&self, version: &str) -> bool {
        self.contexts.load().iter().any(|known| known == version)
    }

    pub(crate) fn set_contexts(&self, versions: &[String]) {
        if **self.contexts.load() != versions {
            self.contexts.store(Arc::new(versions.to_vec()));
        }
    }

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
    any_doubt: Arc<AtomicBool>,
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

    /// Whether evidence may have a part in what becomes of any of them.
    pub(crate) fn any_doubt(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.any_doubt)
    }

    pub(crate) fn pod(&mut self, at: Pod) -> Arc<PodLive> {
        let new = || {
            Arc::new(PodLive {
                at,
                connector: watch::Sender::default(),
                usable: AtomicBool::new(false),
                contexts: ArcSwap::default(),
            })
        };
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
        cell.set_allowance(Allowance { in_flight: 2, per_second: None });
        let now = Duration::ZERO;
        assert!(cell.admit(now, || u32::MAX) && cell.admit(now, || u32::MAX));
        assert!(!cell.admit(now, || u32::MAX));
        assert_eq!(cell.in_flight(), 2);
        cell.leave();
        assert!(cell.admit(now, || u32::MAX));
        cell.leave();
        assert!(!cell.admit(now, || 1));
    }

    #[test]
    fn a_cell_takes_no_more_each_second_than_its_rate() {
        let cell = CellLive::new("a");
        cell.set_allowance(Allowance { in_flight: u32::MAX, per_second: Some(100.0) });
        let admitted = |second: u64| {
            (0..1_000)
                .filter(|ms| cell.admit(Duration::from_millis(second * 1_000 + ms), || u32::MAX))
                .count()
        };
        // A burst of ten, and a hundred each second from then on.
        assert!((105..=112).contains(&admitted(1)));
        assert!((99..=101).contains(&admitted(2)));
    }

    #[test]
    fn a_cell_that_was_ready_before_the_router_started_has_the_age_that_it_says() {
        let cell = CellLive::new("a");
        assert_eq!(cell.ramp_age(5_000), u64::MAX);
        cell.set_in(true, -1_000);
        assert_eq!(cell.ramp_age(500), 1_500);
        cell.set_in(true, 2_000);
        assert_eq!(cell.ramp_age(500), 0);
    }

    #[test]
    fn a_cell_that_is_suspected_has_no_age_until_its_time_is_over() {
        let cell = CellLive::new("a");
        assert_eq!(cell.doubt(0), None);
        cell.set_suspected(Some((1_500, 10_000)));
        assert_eq!(cell.doubt(9_999), Some(Doubt { rank: 1_500, age_ms: None }));
        assert_eq!(cell.doubt(12_000), Some(Doubt { rank: 1_500, age_ms: Some(2_000) }));
        cell.set_suspected(None);
        assert_eq!(cell.doubt(12_000), None);
    }

    #[test]
    fn the_registry_keeps_what_is_held_and_forgets_the_rest() {
        let mut registry = Registry::default();
        let held = registry.cell("a");
        held.set_in(true, 0);
        drop(registry.cell("b"));
        registry.prune();
        assert!(registry.cell("a").is_in());
        assert_eq!(registry.cells.len(), 1);
    }
}
