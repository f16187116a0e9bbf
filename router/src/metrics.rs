//! What the router counts, for Prometheus. Worker threads count in locals that are flushed a few times a second; what is
//! only read off is collected when it is asked for. Labels are cells, listeners, kinds and reasons, never keys or ids.

use std::sync::Arc;

use bulkhead_process::clock;
use bulkhead_protocol::Reason;
use prometheus::core::{Collector, Desc};
use prometheus::local::{LocalHistogram, LocalIntCounter};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

use crate::edge::Fault;
use crate::egress::EgressMetrics;
use crate::evidence::Tally;
use crate::source::Freshness;
use crate::worker::Shared;

/// Seconds; from a hop in the same rack to a time-out.
pub(crate) const BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Answers of cells by the first digit of their status.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Metrics of the request path. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PathMetrics {
    requests: IntCounterVec,
    attempts: IntCounterVec,
    seconds: HistogramVec,
    broken_answers: IntCounterVec,
    late: IntCounterVec,
    drain_cuts: IntCounterVec,
    unfit: IntCounterVec,
    http2_faults: IntCounterVec,
    pub(crate) egress: EgressMetrics,
}

/// Metrics of tables and where they come from.
#[derive(Clone)]
pub(crate) struct TableMetrics {
    pub(crate) build_seconds: Histogram,
    pub(crate) tables: IntCounter,
    pub(crate) older_refused: IntCounter,
    pub(crate) older_taken: IntCounter,
    pub(crate) write_failures: IntCounter,
}

/// Metrics of health.
#[derive(Clone)]
pub(crate) struct HealthMetrics {
    pub(crate) transitions: IntCounterVec,
    pub(crate) stalled: IntCounter,
}

impl PathMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = counters(
            registry,
            "bulkhead_router_requests_total",
            "Requests by cell and outcome: the class of the cell's status, or the reason why the router refused.",
            &["cell", "outcome"],
        )?;
        let attempts = counters(
            registry,
            "bulkhead_router_attempts_total",
            "Attempts by cell and outcome: Answered, or the reason why there was no answer.",
            &["cell", "outcome"],
        )?;
        let broken_answers = counters(
            registry,
            "bulkhead_router_broken_answers_total",
            "Answers that ended before their end, after the head had gone to the client.",
            &["cell"],
        )?;
        let late = counters(
            registry,
            "bulkhead_router_late_replies_total",
            "What cells said after their attempt was given up, and what was refused: an answer, an egress, or a restart.",
            &["cell", "kind"],
        )?;
        let drain_cuts = counters(
            registry,
            "bulkhead_router_drain_cuts_total",
            "What was under way in a drained cell when the Router's `drainTimeout` was over, and was cut: streams, upgraded connections, requests without an answer.",
            &["cell"],
        )?;
        let unfit = counters(
            registry,
            "bulkhead_router_unfit_connections_total",
            "Connections that did not come to HTTP by why: NoProxyHeader, BadProxyHeader, NotTls, HandshakeFailed, Closed or Late.",
            &["listener", "reason"],
        )?;
        let http2_faults = counters(
            registry,
            "bulkhead_router_http2_faults_total",
            "HTTP/2 connections that the router ended by their clients' fault, by why: RapidReset, ControlFlood, Excess or Malformed; and answers that it gave up since their clients took nothing of them: SlowReader.",
            &["listener", "reason"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "bulkhead_router_request_seconds",
                "From a request's head to its answer's head, over all attempts, by the cell that answered.",
            )
            .buckets(BUCKETS.to_vec()),
            &["cell"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        let egress = EgressMetrics::register(registry)?;
        Ok(Self {
            requests,
            attempts,
            seconds,
            broken_answers,
            late,
            drain_cuts,
            unfit,
            http2_faults,
            egress,
        })
    }

    /// A request that the router answered itself.
    pub(crate) fn refused(&self, cell: &str, reason: Reason) {
        self.requests.with_label_values(&[cell, reason.as_str()]).inc();
    }

    /// A connection that ended before HTTP.
    pub(crate) fn unfit(&self, listener: &str, reason: &str) {
        self.unfit.with_label_values(&[listener, reason]).inc();
    }

    /// A fault of a client that speaks HTTP/2.
    pub(crate) fn http2_fault(&self, listener: &str, fault: Fault) {
        self.http2_faults.with_label_values(&[listener, fault.as_str()]).inc();
    }

    /// An attempt that brought no answer.
    pub(crate) fn failed_attempt(&self, cell: &str, reason: Reason) {
        self.attempts.with_label_values(&[cell, reason.as_str()]).inc();
    }

    pub(crate) fn late(&self, cell: &str, kind: &str) {
        self.late.with_label_values(&[cell, kind]).inc();
    }

    pub(crate) fn broken_answer(&self, cell: &str) {
        self.broken_answers.with_label_values(&[cell]).inc();
    }

    pub(crate) fn local(&self, cell: &str) -> CellMetrics {
        CellMetrics {
            answered: CLASSES.map(|class| self.requests.with_label_values(&[cell, class]).local()),
            attempts: self.attempts.with_label_values(&[cell, "Answered"]).local(),
            seconds: self.seconds.with_label_values(&[cell]).local(),
            drain_cuts: self.drain_cuts.with_label_values(&[cell]),
            tally: Tally::default(),
        }
    }
}

/// One thread's counts of one cell.
pub(crate) struct CellMetrics {
    answered: [LocalIntCounter; 5],
    attempts: LocalIntCounter,
    seconds: LocalHistogram,
    /// What was left when the time of a drain was over.
    pub(crate) drain_cuts: IntCounter,
    /// What speaks for the cell and against it.
    pub(crate) tally: Tally,
}

impl CellMetrics {
    pub(crate) fn answered(&self, status: u16, micros: u64) {
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        self.answered[class].inc();
        self.attempts.inc();
        self.seconds.observe(micros as f64 / 1e6);
    }

    pub(crate) fn flush(&self) {
        self.answered.iter().for_each(LocalIntCounter::flush);
        self.attempts.flush();
        self.seconds.flush();
    }
}

impl TableMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let build_seconds = Histogram::with_opts(
            HistogramOpts::new("bulkhead_router_table_build_seconds", "Time to make one table.")
                .buckets(BUCKETS.to_vec()),
        )?;
        registry.register(Box::new(build_seconds.clone()))?;
        Ok(Self {
            build_seconds,
            tables: counter(registry, "bulkhead_router_tables_total", "Snapshots put in force.")?,
            older_refused: counter(
                registry,
                "bulkhead_router_older_tables_refused_total",
                "Times that objects older than those served were refused.",
            )?,
            older_taken: counter(
                registry,
                "bulkhead_router_older_tables_taken_total",
                "Times that objects older than those served were taken after a minute.",
            )?,
            write_failures: counter(
                registry,
                "bulkhead_router_table_file_failures_total",
                "Times that the last good table could not be written to disk.",
            )?,
        })
    }
}

impl HealthMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            transitions: counters(
                registry,
                "bulkhead_router_cell_transitions_total",
                "Times that this router let a cell in or took it out (`to`: in, out), or suspected it by evidence (suspect).",
                &["cell", "to"],
            )?,
            stalled: counter(
                registry,
                "bulkhead_router_observer_stalled_total",
                "Times that this router held its verdicts because every cell fell silent at once.",
            )?,
        })
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

/// Reads off what the router is, each time that it is asked.
pub(crate) struct Readings {
    shared: Arc<Shared>,
    freshness: Freshness,
    cell_in: GaugeVec,
    cell_suspect: GaugeVec,
    cell_weight: GaugeVec,
    cell_in_flight: GaugeVec,
    connections: GaugeVec,
    in_flight: GaugeVec,
    certificates: GaugeVec,
    buffered: Gauge,
    table_version: Gauge,
    table_age: Gauge,
    table_from_disk: Gauge,
    bad_objects: Gauge,
    watch_age: GaugeVec,
}

impl Readings {
    pub(crate) fn register(
        registry: &Registry,
        shared: Arc<Shared>,
        freshness: Freshness,
    ) -> prometheus::Result<()> {
        let vec = |name: &str, help: &str, label: &str| GaugeVec::new(Opts::new(name, help), &[label]);
        let readings = Self {
            shared,
            freshness,
            cell_in: vec("bulkhead_router_cell_in", "1 while the cell gets new work, else 0.", "cell")?,
            cell_suspect: vec(
                "bulkhead_router_cell_suspect",
                "1 while evidence is against the cell, else 0; whether it is kept out, its siblings decide.",
                "cell",
            )?,
            cell_weight: vec("bulkhead_router_cell_weight", "Percent after spec, state and shifts.", "cell")?,
            cell_in_flight: vec(
                "bulkhead_router_cell_in_flight",
                "Transactions under way in the cell.",
                "cell",
            )?,
            connections: vec("bulkhead_router_connections", "Open client connections.", "listener")?,
            in_flight: vec("bulkhead_router_in_flight", "Requests under way.", "listener")?,
            certificates: vec(
                "bulkhead_router_listener_certificates_unusable",
                "1 while a certificate of the listener is missing or wrong; the others and the last good ones stay in use.",
                "listener",
            )?,
            buffered: Gauge::new("bulkhead_router_buffer_bytes", "Bytes of request bodies that are held.")?,
            table_version: Gauge::new("bulkhead_router_table_version", "Number of the snapshot in force.")?,
            table_age: Gauge::new("bulkhead_router_table_age_seconds", "Seconds since the table was made.")?,
            table_from_disk: Gauge::new(
                "bulkhead_router_table_from_disk",
                "1 while the table in force comes from disk, because the API server was away at the start.",
            )?,
            bad_objects: Gauge::new(
                "bulkhead_router_unreadable_objects",
                "Objects or files that could not be read and are left out.",
            )?,
            watch_age: vec(
                "bulkhead_router_watch_age_seconds",
                "Seconds since the API server said anything of this kind, bookmarks included.",
                "kind",
            )?,
        };
        registry.register(Box::new(readings))
    }

    fn gauges(&self) -> Vec<&dyn Collector> {
        vec![
            &self.cell_in,
            &self.cell_suspect,
            &self.cell_weight,
            &self.cell_in_flight,
            &self.connections,
            &self.in_flight,
            &self.certificates,
            &self.buffered,
            &self.table_version,
            &self.table_age,
            &self.table_from_disk,
            &self.bad_objects,
            &self.watch_age,
        ]
    }

    fn read(&self) {
        let snapshot = self.shared.current.load();
        let now_unix_ms = clock::now_unix_millis();
        let now_ms = self.shared.clock.millis();
        let moment = snapshot.at(now_ms, now_unix_ms);
        for vec in [
            &self.cell_in,
            &self.cell_suspect,
            &self.cell_weight,
            &self.cell_in_flight,
            &self.connections,
            &self.in_flight,
            &self.certificates,
        ] {
            vec.reset();
        }
        for (name, served) in snapshot.servers.iter() {
            let unusable = f64::from(u8::from(served.wrong.is_some()));
            self.certificates.with_label_values(&[name.as_str()]).set(unusable);
        }
        for (index, cell) in snapshot.table.cells() {
            let Some(live) = snapshot.live(index) else { continue };
            self.cell_in.with_label_values(&[&*cell.name]).set(f64::from(u8::from(live.is_in())));
            let suspect = live.doubt(now_ms).is_some_and(|doubt| doubt.age_ms.is_none());
            self.cell_suspect.with_label_values(&[&*cell.name]).set(f64::from(u8::from(suspect)));
            self.cell_weight.with_label_values(&[&*cell.name]).set(f64::from(moment.weight(index).percent));
            self.cell_in_flight.with_label_values(&[&*cell.name]).set(f64::from(live.in_flight()));
        }
        for listener in self.shared.listeners.all() {
            self.connections.with_label_values(&[listener.name()]).set(f64::from(listener.connections()));
            self.in_flight.with_label_values(&[listener.name()]).set(f64::from(listener.in_flight()));
        }
        self.buffered.set(self.shared.listeners.buffered() as f64);
        self.table_version.set(snapshot.version as f64);
        let age = now_unix_ms.saturating_sub(snapshot.about.built_unix_ms);
        self.table_age.set(if snapshot.version == 0 { 0.0 } else { age as f64 / 1000.0 });
        self.table_from_disk.set(f64::from(u8::from(snapshot.about.from_disk)));
        self.bad_objects.set(snapshot.about.bad.len() as f64);
        for (kind, age) in self.freshness.ages() {
            self.watch_age.with_label_values(&[kind]).set(age);
        }
    }
}

impl Collector for Readings {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}
