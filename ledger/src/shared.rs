//! What the ledger's handles and its writer share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::Index;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::queue::Queue;
use crate::refusal::{Accepting, Refusal};
use crate::time::Time;

pub(crate) struct Shared {
    pub(crate) index: Index,
    pub(crate) queue: Queue,
    pub(crate) accepting: Accepting,
    pub(crate) metrics: Metrics,
    pub(crate) time: Time,
    /// The segment that is written now. A record that is queued ends in this or a later one.
    segment: AtomicU64,
    serials: AtomicU64,
}

impl Shared {
    pub(crate) fn new(options: &Options, time: Time, metrics: Metrics) -> Self {
        let window_ms = u64::try_from(options.window.as_millis()).unwrap_or(u64::MAX);
        metrics.accepting.set(1);
        Self {
            index: Index::new(options.transactions, window_ms, &metrics),
            queue: Queue::new(options.queue),
            accepting: Accepting::default(),
            metrics,
            time,
            segment: AtomicU64::new(0),
            serials: AtomicU64::new(1),
        }
    }

    pub(crate) fn segment(&self) -> u64 {
        self.segment.load(Ordering::Acquire)
    }

    pub(crate) fn set_segment(&self, sequence: u64) {
        self.segment.store(sequence, Ordering::Release);
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Refuses intents from now on, or accepts them again. Said once for each change.
    pub(crate) fn accept(&self, refusal: Option<&Refusal>) {
        self.metrics.accepting.set(i64::from(refusal.is_none()));
        match refusal {
            Some(why) if self.accepting.set(Some(why.clone())) => tracing::error!(%why, "no intent is taken"),
            None if self.accepting.set(None) => tracing::info!("intents are taken again"),
            Some(_) | None => {}
        }
    }
}
