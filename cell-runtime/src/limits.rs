//! The cell's last word on how much it takes: transactions under way, and begun per second. Each orchestrator pod
//! answers for its part, since pods do not count together.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use bulkhead_crds::cell::Capacity;

/// Counts what is under way, and says whether more may begin.
pub(crate) struct Limits {
    capacity: Capacity,
    /// Orchestrator pods of the cell, at least 1.
    pods: AtomicU32,
    in_flight: AtomicU32,
    bucket: Mutex<Bucket>,
}

/// Tokens for transactions to begin, in thousandths. Holds one second's worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    milli_tokens: u64,
    filled_at_ms: u64,
}

impl Limits {
    pub(crate) fn new(capacity: Option<Capacity>) -> Self {
        let capacity = capacity.unwrap_or_default();
        let full = u64::from(capacity.requests_per_second.unwrap_or(0)) * 1_000;
        Self {
            capacity,
            pods: AtomicU32::new(1),
            in_flight: AtomicU32::new(0),
            bucket: Mutex::new(Bucket { milli_tokens: full, filled_at_ms: 0 }),
        }
    }

    /// How many orchestrator pods, this one included, share the cell's capacity.
    pub(crate) fn set_pods(&self, pods: u32) {
        self.pods.store(pods.max(1), Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Transactions that the whole cell may have under way.
    pub(crate) fn cell_in_flight(&self) -> Option<u32> {
        self.capacity.in_flight
    }

    /// Takes a place; the caller gives it back with [`Limits::end`] if and only if this is true.
    pub(crate) fn begin(&self, now_ms: u64) -> bool {
        let pods = self.pods.load(Ordering::Relaxed);
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        let fits = self.capacity.in_flight.is_none_or(|limit| before < limit.div_ceil(pods));
        if fits && self.take_token(pods, now_ms) {
            return true;
        }
        self.end();
        false
    }

    /// Takes a place whatever the limit: what comes back from a destination was let in when it began, and has to be
    /// finished. Given back with [`Limits::end`].
    pub(crate) fn resume(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    fn take_token(&self, pods: u32, now_ms: u64) -> bool {
        let Some(rate) = self.capacity.requests_per_second else { return true };
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (filled, taken) = bucket.take(rate.div_ceil(pods), now_ms);
        *bucket = filled;
        taken
    }
}

impl Bucket {
    fn take(self, rate: u32, now_ms: u64) -> (Self, bool) {
        let elapsed = now_ms.saturating_sub(self.filled_at_ms);
        let full = u64::from(rate) * 1_000;
        // A rate per second is as many thousandths per millisecond.
        let milli_tokens =
            self.milli_tokens.saturating_add(elapsed.saturating_mul(u64::from(rate))).min(full);
        let taken = milli_tokens >= 1_000;
        let milli_tokens = if taken { milli_tokens - 1_000 } else { milli_tokens };
        (Self { milli_tokens, filled_at_ms: now_ms.max(self.filled_at_ms) }, taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(in_flight: Option<u32>, requests_per_second: Option<u32>) -> Limits {
        Limits::new(Some(Capacity { requests_per_second, in_flight }))
    }

    fn begun(limits: &Limits, tries: u32, now: u64) -> usize {
        (0..tries).filter(|_| limits.begin(now)).count()
    }

    #[test]
    fn without_a_capacity_everything_may_begin() {
        let limits = Limits::new(None);
        assert_eq!(begun(&limits, 1_000, 0), 1_000);
        assert_eq!(limits.in_flight(), 1_000);
    }

    #[test]
    fn a_refused_transaction_takes_no_place() {
        let limits = limits(Some(3), None);
        assert_eq!((begun(&limits, 5, 0), limits.in_flight()), (3, 3));
        limits.end();
        assert_eq!(begun(&limits, 5, 0), 1);
    }

    #[test]
    fn what_has_to_be_finished_is_let_in_past_the_limit_and_counts() {
        let limits = limits(Some(1), Some(1));
        assert_eq!(begun(&limits, 1, 0), 1);
        limits.resume();
        assert_eq!((limits.in_flight(), begun(&limits, 1, 60_000)), (2, 0));
    }

    #[test]
    fn pods_share_the_cells_capacity_rounded_up() {
        let limits = limits(Some(5), None);
        limits.set_pods(2);
        assert_eq!(begun(&limits, 5, 0), 3);
    }

    #[test]
    fn a_rate_refills_by_the_clock_up_to_one_second() {
        let limits = limits(None, Some(10));
        assert_eq!(begun(&limits, 50, 0), 10);
        assert_eq!(begun(&limits, 50, 100), 1);
        assert_eq!(begun(&limits, 50, 60_000), 10);
    }
}
