//! What the parts of one cell-runtime share: the services, the counts, the verdict as it stands. No part waits for
//! another through it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bulkhead_crds::template::EntryProtocol;
use bulkhead_process::{Connector, Monotonic};
use bulkhead_protocol::{Beat, Verdict};
use tokio::sync::{Notify, watch};

use crate::age::Age;
use crate::config::CellConfig;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::probe;
use crate::service::Service;
use crate::verdict::{Judgement, ServiceView, sentence};
use crate::workflow::Workflow;

/// A judge that did not run for so long knows nothing of the time between.
const STALL_MS: u64 = 500;

pub(crate) struct Cell {
    pub(crate) config: CellConfig,
    pub(crate) workflow: Workflow,
    pub(crate) pod: String,
    pub(crate) body_limit: usize,
    pub(crate) probe_timeout: Duration,
    pub(crate) services: BTreeMap<String, Arc<Service>>,
    pub(crate) connector: Connector,
    pub(crate) clock: Monotonic,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    /// Something that the verdict depends on may have changed.
    pub(crate) changed: Notify,
    /// The verdict as it was spoken last.
    pub(crate) spoken: watch::Sender<Spoken>,
    /// Health addresses of the cell's other orchestrators.
    pub(crate) peers: watch::Sender<Vec<SocketAddr>>,
    pub(crate) routers: AtomicU32,
    draining: AtomicBool,
    /// When the verdict was last judged, in milliseconds of `clock`.
    judged: AtomicU64,
    /// When traffic last showed that it runs, in milliseconds of `clock`.
    traffic_seen: AtomicU64,
}

/// The verdict and for how long it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) judgement: Judgement,
    pub(crate) age: Age,
}

impl Cell {
    pub(crate) fn new(
        config: CellConfig,
        workflow: Workflow,
        pod: String,
        body_limit: usize,
        probe_timeout: Duration,
        metrics: Metrics,
    ) -> Self {
        let services = config
            .services
            .iter()
            .map(|spec| (spec.name.clone(), Arc::new(Service::new(spec.clone()))))
            .collect();
        let starting = Judgement { ready: false, reason: "Starting", message: "Just started.".to_owned() };
        Self {
            limits: Limits::new(config.capacity.clone()),
            config,
            workflow,
            pod,
            body_limit,
            probe_timeout,
            services,
            connector: Connector::plain(),
            clock: Monotonic::start(),
            metrics,
            changed: Notify::new(),
            spoken: watch::Sender::new(Spoken { judgement: starting, age: Age::default() }),
            peers: watch::Sender::default(),
            routers: AtomicU32::new(0),
            draining: AtomicBool::new(false),
            judged: AtomicU64::new(0),
            traffic_seen: AtomicU64::new(0),
        }
    }

    /// Takes the whole list of a service's pods.
    pub(crate) fn set_pods(self: &Arc<Self>, service: &str, addresses: &[SocketAddr]) {
        let Some(service) = self.services.get(service) else { return };
        let is_http2 =
            self.config.entry.as_ref().is_some_and(|entry| {
                entry.service == service.spec.name && entry.protocol == EntryProtocol::H2c
            });
        for pod in service.set_pods(addresses) {
            probe::spawn(self, &pod, &service.spec.readiness_path, is_http2);
        }
        self.changed.notify_one();
    }

    /// Takes the whole list of the cell's other orchestrators.
    pub(crate) fn set_peers(&self, peers: Vec<SocketAddr>) {
        self.limits.set_pods(u32::try_from(peers.len()).unwrap_or(u32::MAX).saturating_add(1));
        self.peers.send_replace(peers);
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Traffic runs, or is forgiven that it did not.
    pub(crate) fn see_traffic(&self) {
        self.traffic_seen.store(self.clock.millis(), Ordering::SeqCst);
    }

    /// Milliseconds for which traffic has not shown that it runs.
    pub(crate) fn traffic_silent_ms(&self) -> u64 {
        self.clock.millis().saturating_sub(self.traffic_seen.load(Ordering::SeqCst))
    }

    pub(crate) fn views(&self) -> Vec<ServiceView> {
        self.services.values().map(|service| service.view()).collect()
    }

    /// The verdict as a line says it.
    pub(crate) fn verdict(&self) -> Verdict {
        let spoken = self.spoken.borrow().clone();
        let beat = self.beat();
        Verdict {
            cell: self.config.cell.clone(),
            pod: self.pod.clone(),
            ready: spoken.judgement.ready,
            reason: spoken.judgement.reason.to_owned(),
            message: spoken.judgement.message,
            ready_for_ms: self.ready_for_ms(spoken.age),
            in_flight: beat.in_flight,
            capacity: self.limits.cell_in_flight(),
            revision: self.config.revision.clone(),
            routers: beat.routers,
            context_versions: self.context_versions().map(str::to_owned).collect(),
        }
    }

    /// The numbers of this moment.
    pub(crate) fn beat(&self) -> Beat {
        let age = self.spoken.borrow().age;
        Beat {
            ready_for_ms: self.ready_for_ms(age),
            in_flight: self.limits.in_flight(),
            routers: self.routers.load(Ordering::SeqCst),
        }
    }

    /// 0 also while the judge has not run for too long: a line may be due before it notices the stall itself.
    fn ready_for_ms(&self, age: Age) -> u64 {
        let now = self.clock.millis();
        if now.saturating_sub(self.judged.load(Ordering::SeqCst)) > STALL_MS {
            return 0;
        }
        age.ready_for_ms(now).unwrap_or(0)
    }

    /// The judge runs; returns for how long it did not, in milliseconds, when that was too long.
    pub(crate) fn judging(&self, now: u64) -> Option<u64> {
        let gap = now.saturating_sub(self.judged.swap(now, Ordering::SeqCst));
        (gap > STALL_MS).then_some(gap)
    }

    /// Versions of contexts that a transaction can go on from here: the workflow's own, or what the entry says of itself.
    pub(crate) fn context_versions(&self) -> impl Iterator<Item = &str> {
        let own = self.workflow.has_egress().then(|| self.workflow.version());
        let entry = self.config.entry.iter().flat_map(|entry| &entry.context_versions);
        own.into_iter().chain(entry.map(String::as_str))
    }

    /// Whether its entry speaks the protocol itself.
    pub(crate) fn speaks(&self) -> bool {
        self.config.entry.as_ref().is_some_and(|entry| entry.protocol == EntryProtocol::Bulkhead)
    }

    /// What a transaction lacks that is at stop `from` of the workflow: a required service that it still needs and that has
    /// fewer ready pods than it must have.
    pub(crate) fn lacking(&self, from: usize) -> Option<String> {
        let lacking = self.services.values().find(|service| {
            let spec = &service.spec;
            spec.required && service.is_short() && self.workflow.needs(&spec.name, from)
        })?;
        Some(sentence(&lacking.view()))
    }

    /// Waits until such a transaction lacks something.
    pub(crate) async fn until_lacking(&self, from: usize) -> String {
        let mut spoken = self.spoken.subscribe();
        loop {
            if let Some(lacking) = self.lacking(from) {
                return lacking;
            }
            // The cell itself holds the sender, so that it is never gone.
            let _ = spoken.changed().await;
        }
    }

    /// A place among the transactions under way; `None` past the capacity.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Place> {
        self.limits.begin(self.clock.millis()).then(|| Place(Arc::clone(self)))
    }

    /// A place for a transaction that comes back from a destination.
    pub(crate) fn resume(self: &Arc<Self>) -> Place {
        self.limits.resume();
        Place(Arc::clone(self))
    }
}

#[cfg(test)]
impl Cell {
    /// A cell for tests, with one service, `web`, whose pods are not known yet.
    pub(crate) fn of_web() -> Arc<Self> {
        let web = bulkhead_crds::template::Service {
            name: "web".to_owned(),
            min_ready: 1,
            required: true,
            ..Default::default()
        };
        let config = CellConfig { cell: "a".to_owned(), services: vec![web], ..CellConfig::default() };
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("a fresh registry");
        let workflow = Workflow::new(&[]).expect("no stops are a workflow");
        let timeout = crate::config::DEFAULT_PROBE_TIMEOUT;
        Arc::new(Self::new(config, workflow, "a-0".to_owned(), 0, timeout, metrics))
    }
}

/// A place among the transactions under way, given back when dropped.
pub(crate) struct Place(Arc<Cell>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.limits.end();
    }
}
