//! What the ledger counts, for Prometheus. Labels are reasons and states, never ids, cells or destinations.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::refusal::Refusal;

/// Seconds; from a disk with a battery to one that hangs.
const SYNC_BUCKETS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
/// Records in one write.
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) intents: IntCounter,
    pub(crate) refused: IntCounterVec,
    pub(crate) batch_records: Histogram,
    pub(crate) sync_seconds: Histogram,
    pub(crate) failures: IntCounter,
    pub(crate) lost_outcomes: IntCounter,
    pub(crate) open: IntGauge,
    pub(crate) unknown: IntGauge,
    pub(crate) transactions: IntGauge,
    pub(crate) damages: IntGauge,
    pub(crate) segments: IntGauge,
    pub(crate) bytes: IntGauge,
    pub(crate) accepting: IntGauge,
}

impl Metrics {
    pub(crate) fn new() -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| IntCounter::new(name, help);
        let gauge = |name: &str, help: &str| IntGauge::new(name, help);
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
        };
        let refused = IntCounterVec::new(
            Opts::new("bulkhead_ledger_refused_total", "Intents that were not taken, by reason."),
            &["reason"],
        )?;
        for reason in Refusal::REASONS {
            refused.with_label_values(&[reason]);
        }
        Ok(Self {
            intents: counter(
                "bulkhead_ledger_intents_total",
                "Intents that were taken and are on the disk.",
            )?,
            refused,
            batch_records: histogram(
                "bulkhead_ledger_batch_records",
                "Records that were written at once.",
                BATCH_BUCKETS,
            )?,
            sync_seconds: histogram(
                "bulkhead_ledger_sync_seconds",
                "Time that the disk took for one fdatasync.",
                SYNC_BUCKETS,
            )?,
            failures: counter(
                "bulkhead_ledger_failures_total",
                "Writes and syncs that failed; each ended its segment.",
            )?,
            lost_outcomes: counter(
                "bulkhead_ledger_unwritten_outcomes_total",
                "Outcomes that came after the ledger was closed; the next start reads them as unknown.",
            )?,
            open: gauge("bulkhead_ledger_open", "Effects under way.")?,
            unknown: gauge("bulkhead_ledger_unknown", "Effects of which a person has to say what became.")?,
            transactions: gauge(
                "bulkhead_ledger_transactions",
                "Transactions of which the standing is held in memory.",
            )?,
            damages: gauge("bulkhead_ledger_damages", "Places where the start found the ledger damaged.")?,
            segments: gauge("bulkhead_ledger_segments", "Segments on the disk.")?,
            bytes: gauge("bulkhead_ledger_bytes", "Bytes of all segments.")?,
            accepting: gauge("bulkhead_ledger_accepting", "1 while intents are taken, else 0.")?,
        })
    }

    pub(crate) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.intents.clone()))?;
        registry.register(Box::new(self.refused.clone()))?;
        registry.register(Box::new(self.batch_records.clone()))?;
        registry.register(Box::new(self.sync_seconds.clone()))?;
        registry.register(Box::new(self.failures.clone()))?;
        registry.register(Box::new(self.lost_outcomes.clone()))?;
        for gauge in [
            &self.open,
            &self.unknown,
            &self.transactions,
            &self.damages,
            &self.segments,
            &self.bytes,
            &self.accepting,
        ] {
            registry.register(Box::new(gauge.clone()))?;
        }
        Ok(())
    }

    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.refused.with_label_values(&[refusal.reason()]).inc();
    }
}
