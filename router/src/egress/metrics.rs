//! What the router counts of destinations. Labels are names of Destinations and outcomes, nothing else.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bulkhead_protocol::EgressStatus;
use prometheus::core::{Collector, Desc};
use prometheus::local::{LocalHistogram, LocalIntCounter};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use crate::metrics::BUCKETS;
use crate::snapshot::Snapshot;

/// Metrics of all destinations. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EgressMetrics {
    egress: IntCounterVec,
    failures: IntCounterVec,
    tunnels: IntCounterVec,
    seconds: HistogramVec,
}

impl EgressMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let egress = Opts::new(
            "bulkhead_router_egress_total",
            "Messages for destinations by what became of them: answered, not-sent or unknown.",
        );
        let failures = Opts::new(
            "bulkhead_router_egress_connect_failures_total",
            "Connections to a destination that could not be made, TLS included.",
        );
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "bulkhead_router_egress_seconds",
                "From a message's first byte to the last of its answer.",
            )
            .buckets(BUCKETS.to_vec()),
            &["destination"],
        )?;
        let tunnels = Opts::new(
            "bulkhead_router_tunnels_total",
            "Tunnels that cells asked for by what became of them: Open, or the reason why not.",
        );
        let egress = IntCounterVec::new(egress, &["destination", "outcome"])?;
        let failures = IntCounterVec::new(failures, &["destination"])?;
        let tunnels = IntCounterVec::new(tunnels, &["destination", "outcome"])?;
        registry.register(Box::new(tunnels.clone()))?;
        registry.register(Box::new(egress.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self { egress, failures, tunnels, seconds })
    }

    /// A tunnel was asked for; the destination is empty where the cell reaches none.
    pub(crate) fn tunnel(&self, destination: &str, outcome: &str) {
        self.tunnels.with_label_values(&[destination, outcome]).inc();
    }

    pub(super) fn local(&self, name: &str) -> DestinationMetrics {
        let outcome = |status: EgressStatus| self.egress.with_label_values(&[name, status.as_str()]).local();
        DestinationMetrics {
            outcomes: EgressStatus::ALL.map(|status| (status, outcome(status))),
            failures: self.failures.with_label_values(&[name]).local(),
            seconds: self.seconds.with_label_values(&[name]).local(),
        }
    }
}

/// One thread's counts of one destination.
pub(super) struct DestinationMetrics {
    outcomes: [(EgressStatus, LocalIntCounter); 3],
    failures: LocalIntCounter,
    seconds: LocalHistogram,
}

impl DestinationMetrics {
    pub(super) fn delivered(&self, status: EgressStatus) {
        self.outcomes.iter().filter(|(of, _)| *of == status).for_each(|(_, counter)| counter.inc());
    }

    pub(super) fn answered(&self, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
    }

    pub(super) fn no_connection(&self) {
        self.failures.inc();
    }

    pub(super) fn flush(&self) {
        self.outcomes.iter().for_each(|(_, counter)| counter.flush());
        self.failures.flush();
        self.seconds.flush();
    }
}

/// Reads off what destinations are, each time that it is asked.
pub(crate) struct EgressReadings {
    current: Arc<ArcSwap<Snapshot>>,
    in_flight: GaugeVec,
    connections: GaugeVec,
    addresses: GaugeVec,
    certificates: GaugeVec,
}

impl EgressReadings {
    pub(crate) fn register(registry: &Registry, current: Arc<ArcSwap<Snapshot>>) -> prometheus::Result<()> {
        let vec = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["destination"]);
        let readings = Self {
            current,
            in_flight: vec(
                "bulkhead_router_egress_in_flight",
                "Messages and tunnels under way at the destination.",
            )?,
            connections: vec(
                "bulkhead_router_egress_connections",
                "Open connections to the destination, used or kept.",
            )?,
            addresses: vec(
                "bulkhead_router_egress_addresses",
                "Addresses that the destination is reached at; 0 while it is not available.",
            )?,
            certificates: vec(
                "bulkhead_router_egress_certificates_unusable",
                "1 while the destination's certificates are missing or wrong; the last good ones stay in use.",
            )?,
        };
        registry.register(Box::new(readings))
    }

    fn gauges(&self) -> [&GaugeVec; 4] {
        [&self.in_flight, &self.connections, &self.addresses, &self.certificates]
    }
}

impl Collector for EgressReadings {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauges().into_iter().for_each(GaugeVec::reset);
        let snapshot = self.current.load();
        for (name, live) in snapshot.destinations.iter() {
            let set = |gauge: &GaugeVec, value: f64| gauge.with_label_values(&[&**name]).set(value);
            set(&self.in_flight, f64::from(live.in_flight()));
            set(&self.connections, f64::from(live.connections()));
            set(&self.addresses, live.endpoints.len() as f64);
            set(&self.certificates, f64::from(u8::from(live.certificates.is_some())));
        }
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}
