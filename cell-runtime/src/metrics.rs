//! What a cell-runtime counts. Labels are bounded by the services and the list of reasons.

use prometheus::{
    Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use crate::verdict::ServiceView;

#[derive(Clone)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    seconds: Histogram,
    pub(crate) in_flight: IntGauge,
    pub(crate) ready: IntGauge,
    pub(crate) routers: IntGauge,
    pods: IntGaugeVec,
    pub(crate) watch_age: IntGauge,
}

impl Metrics {
    /// # Errors
    /// When the registry has metrics of these names already.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new(
                    "bulkhead_cell_requests_total",
                    "Requests by what became of them: Served, Egress when it left for a destination, or the reason why not.",
                ),
                &["outcome"],
            )?,
            seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "bulkhead_cell_request_seconds",
                    "From a request's head to its answer's head.",
                )
                .buckets(exponential_buckets(0.0005, 2.0, 16)?),
            )?,
            in_flight: IntGauge::new("bulkhead_cell_in_flight", "Transactions under way in this pod.")?,
            ready: IntGauge::new(
                "bulkhead_cell_ready",
                "1 while this orchestrator says that the cell is ready.",
            )?,
            routers: IntGauge::new("bulkhead_cell_routers", "Routers that read this pod's health stream.")?,
            pods: IntGaugeVec::new(
                Opts::new("bulkhead_cell_service_pods", "Pods of each service by state: known or ready."),
                &["service", "state"],
            )?,
            watch_age: IntGauge::new(
                "bulkhead_cell_watch_age_seconds",
                "Seconds since the API server last said anything about endpoints.",
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.pods.clone()))?;
        for gauge in [&metrics.in_flight, &metrics.ready, &metrics.routers, &metrics.watch_age] {
            registry.register(Box::new(gauge.clone()))?;
        }
        Ok(metrics)
    }

    pub(crate) fn services(&self, views: &[ServiceView]) {
        for view in views {
            for (state, count) in [("known", view.known), ("ready", view.ready)] {
                self.pods.with_label_values(&[view.name.as_str(), state]).set(i64::from(count));
            }
        }
    }

    pub(crate) fn request(&self, outcome: &str, micros: u64) {
        self.requests.with_label_values(&[outcome]).inc();
        // Far below 2^52 microseconds, so that nothing is lost.
        self.seconds.observe(micros as f64 / 1e6);
    }
}
