//! What became of the requests, counted while they run. How it reads for people is the report's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::histogram::Histogram;

/// Failures kept word for word.
const SAMPLES: usize = 5;

/// Counts since the start, or of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub sent: u64,
    pub ok: u64,
    pub failed: u64,
    /// By `STATUS REASON`, `STATUS`, or `connect`, `reset`, `timeout`.
    pub failures: BTreeMap<String, u64>,
    /// The first failures, word for word.
    pub samples: Vec<String>,
    /// Of requests that succeeded, in microseconds from when they were due.
    pub latency: Histogram,
    /// How late requests were sent, in microseconds: connections all busy, or the machine stalled.
    pub lateness: Histogram,
    /// Connections made.
    pub connects: u64,
    pub cells: BTreeMap<String, CellTally>,
}

/// One cell's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellTally {
    pub ok: u64,
    pub failed: u64,
    pub latency: Histogram,
    pub hits: Hits,
}

/// First and last hit of a cell, each in milliseconds since 1970, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// When the first request that it answered was sent.
    pub first_sent: u64,
    pub last_sent: u64,
    /// When it says that the last request arrived, where it says so.
    pub last_received: u64,
    pub last_answered: u64,
}

/// The end of one request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which request of the plan, from 0.
    pub number: u64,
    /// Of the answer; `None` when there was none.
    pub status: Option<u16>,
    /// The transaction's id, where the answer names one.
    pub transaction: Option<String>,
    /// Of the answer; empty when there was none.
    pub body: Bytes,
    /// Where it was sent last; `None` when nobody accepted a connection.
    pub target: Option<SocketAddr>,
    /// Why it failed; `None` when it did not.
    pub failure: Option<Failure>,
    /// The cell that answered, where that is known.
    pub cell: Option<String>,
    /// From when it was due, in microseconds.
    pub latency_micros: u64,
    pub lateness_micros: u64,
    pub sent_unix_ms: u64,
    pub received_unix_ms: u64,
    pub answered_unix_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: String,
    pub detail: String,
}

impl Tally {
    pub(super) fn record(&mut self, outcome: Outcome) {
        self.sent += 1;
        self.lateness.record(outcome.lateness_micros);
        let ok = outcome.failure.is_none();
        if ok {
            self.ok += 1;
            self.latency.record(outcome.latency_micros);
        }
        if let Some(name) = &outcome.cell {
            if !self.cells.contains_key(name) {
                self.cells.insert(name.clone(), CellTally::default());
            }
            if let Some(cell) = self.cells.get_mut(name) {
                cell.record(&outcome);
            }
        }
        if let Some(failure) = outcome.failure {
            self.failed += 1;
            if self.samples.len() < SAMPLES {
                self.samples.push(format!("{}: {}", failure.kind, failure.detail));
            }
            *self.failures.entry(failure.kind).or_default() += 1;
        }
    }

    /// What came after `earlier`, which must be an older copy of this one. Times of hits stay as they are.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let none = CellTally::default();
        let cells = self.cells.iter().map(|(name, cell)| {
            let before = earlier.cells.get(name).unwrap_or(&none);
            let window = CellTally {
                ok: cell.ok.saturating_sub(before.ok),
                failed: cell.failed.saturating_sub(before.failed),
                latency: cell.latency.since(&before.latency),
                hits: cell.hits,
            };
            (name.clone(), window)
        });
        let failures = self.failures.iter().filter_map(|(kind, count)| {
            let count = count.saturating_sub(earlier.failures.get(kind).copied().unwrap_or(0));
            (count > 0).then(|| (kind.clone(), count))
        });
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            ok: self.ok.saturating_sub(earlier.ok),
            failed: self.failed.saturating_sub(earlier.failed),
            failures: failures.collect(),
            samples: self.samples.iter().skip(earlier.samples.len()).cloned().collect(),
            latency: self.latency.since(&earlier.latency),
            lateness: self.lateness.since(&earlier.lateness),
            connects: self.connects.saturating_sub(earlier.connects),
            cells: cells.collect(),
        }
    }
}

impl CellTally {
    fn record(&mut self, outcome: &Outcome) {
        if outcome.failure.is_none() {
            self.ok += 1;
            self.latency.record(outcome.latency_micros);
        } else {
            self.failed += 1;
        }
        let hits = &mut self.hits;
        if hits.first_sent == 0 || outcome.sent_unix_ms < hits.first_sent {
            hits.first_sent = outcome.sent_unix_ms;
        }
        hits.last_sent = hits.last_sent.max(outcome.sent_unix_ms);
        hits.last_received = hits.last_received.max(outcome.received_unix_ms);
        hits.last_answered = hits.last_answered.max(outcome.answered_unix_ms);
    }
}

/// Told of every request's end, on the thread that ended it; it must not take long.
pub type Observer = Arc<dyn Fn(&Outcome) + Send + Sync>;

/// The tally of a load that runs. Clones show the same.
#[derive(Clone, Default)]
pub struct Live {
    tally: Arc<Mutex<Tally>>,
    pub(super) observer: Option<Observer>,
}

impl Live {
    /// The numbers of this moment.
    pub fn tally(&self) -> Tally {
        self.lock().clone()
    }

    pub(super) fn record(&self, outcome: Outcome) {
        if let Some(observer) = &self.observer {
            observer(&outcome);
        }
        self.lock().record(outcome);
    }

    pub(super) fn connected(&self) {
        self.lock().connects += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // Counting cannot panic half way; whoever did elsewhere left the numbers whole.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(cell: &str, failure: Option<&str>, sent: u64) -> Outcome {
        Outcome {
            number: 0,
            status: None,
            transaction: None,
            body: Bytes::new(),
            target: None,
            failure: failure.map(|kind| Failure { kind: kind.to_owned(), detail: String::new() }),
            cell: Some(cell.to_owned()),
            latency_micros: 1_000,
            lateness_micros: 0,
            sent_unix_ms: sent,
            received_unix_ms: sent + 1,
            answered_unix_ms: sent + 2,
        }
    }

    #[test]
    fn cells_know_their_first_and_last_hit() {
        let mut tally = Tally::default();
        for sent in [20, 10, 30] {
            tally.record(outcome("a", None, sent));
        }
        let expected = Hits { first_sent: 10, last_sent: 30, last_received: 31, last_answered: 32 };
        assert_eq!(tally.cells["a"].hits, expected);
    }

    #[test]
    fn a_window_shows_only_what_is_new() {
        let mut tally = Tally::default();
        tally.record(outcome("a", None, 1));
        tally.record(outcome("a", Some("503 Capacity"), 2));
        let earlier = tally.clone();
        tally.record(outcome("b", Some("reset"), 3));
        let window = tally.since(&earlier);
        assert_eq!((window.sent, window.ok, window.failed), (1, 0, 1));
        assert_eq!(window.failures, BTreeMap::from([("reset".to_owned(), 1)]));
        assert_eq!((window.cells["a"].ok, window.cells["b"].failed), (0, 1));
    }
}
