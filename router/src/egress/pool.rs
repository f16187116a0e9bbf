//! One thread's connections to destinations: which endpoint gets the next message, and connections kept for later.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_protocol::{EgressStatus, Reason};

use super::destination::{DestinationLive, Endpoint, Open};
use super::exchange::Ready;
use super::metrics::{DestinationMetrics, EgressMetrics};
use super::registry::Destinations;
use crate::edge::Connection;
use crate::pool::Idle;

/// How long a connection is kept unused, in milliseconds. Few servers close earlier than after 5 s: a message that meets
/// their close on its way has an outcome that nobody knows.
const IDLE_MS: u64 = 4_000;
/// How long an endpoint that was not reached comes after those that were, in milliseconds.
const SHUNNED_MS: u64 = 5_000;

/// Endpoints that one message was not sent to although they were tried.
#[derive(Default)]
pub(crate) struct Tried(Vec<Arc<Endpoint>>);

impl Tried {
    pub(super) fn add(&mut self, endpoint: &Arc<Endpoint>) {
        self.0.push(Arc::clone(endpoint));
    }

    fn contains(&self, endpoint: &Arc<Endpoint>) -> bool {
        self.0.iter().any(|tried| tried == endpoint)
    }
}

/// A connection that counts among its destination's.
pub(super) struct Counted {
    pub(super) connection: Connection,
    _open: Open,
}

impl Borrow<Connection> for Counted {
    fn borrow(&self) -> &Connection {
        &self.connection
    }
}

/// One endpoint on this thread.
pub(super) struct Lane {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) idle: Idle<Counted>,
    pub(super) in_flight: Cell<u32>,
    failed_ms: Cell<Option<u64>>,
}

/// One destination on this thread.
struct Lanes {
    live: Arc<DestinationLive>,
    lanes: Vec<Rc<Lane>>,
    next: Cell<usize>,
    counts: Rc<DestinationMetrics>,
}

/// All destinations on this thread.
pub(crate) struct EgressPools {
    clock: Monotonic,
    metrics: EgressMetrics,
    known: RefCell<HashMap<Arc<str>, Rc<Lanes>>>,
}

impl EgressPools {
    pub(crate) fn new(clock: Monotonic, metrics: EgressMetrics) -> Self {
        Self { clock, metrics, known: RefCell::default() }
    }

    /// A live connection to an endpoint that was not tried, TLS included: a kept one that still works, or a new one. It
    /// counts in its endpoint until it is used or dropped; `until` is a time of the worker's clock.
    ///
    /// # Errors
    /// `DestinationUnavailable` when no endpoint is left, `Timeout` when no time is.
    pub(crate) async fn connect(
        &self,
        live: &Arc<DestinationLive>,
        tried: &mut Tried,
        until: Duration,
    ) -> Result<Ready, Reason> {
        let lanes = self.lanes(live);
        loop {
            let lane = lanes.pick(tried, self.clock.millis()).ok_or(Reason::DestinationUnavailable)?;
            let left = until.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return Err(Reason::Timeout);
            }
            let kept_since = self.clock.millis().saturating_sub(IDLE_MS);
            if let Some((connection, since_ms)) = lane.idle.take(kept_since) {
                return Ok(self.ready(&lanes, &lane, connection, since_ms, false));
            }
            let limit = live.spec.connect_timeout;
            match Connection::open(&lane.endpoint.connector, lane.endpoint.address, left.min(limit)).await {
                Ok(connection) => {
                    lane.failed_ms.set(None);
                    let counted = Counted { connection, _open: Open::count(&live.load) };
                    return Ok(self.ready(&lanes, &lane, counted, self.clock.millis(), true));
                }
                Err(error) => {
                    live.failed(&lane.endpoint, &error);
                    lanes.counts.no_connection();
                    // It had less time than it may take, which is no fault of its own.
                    if left >= limit || error.kind() != io::ErrorKind::TimedOut {
                        lane.failed_ms.set(Some(self.clock.millis()));
                    }
                    tried.add(&lane.endpoint);
                }
            }
        }
    }

    /// Counts what became of a message in the end, over all its connections.
    pub(crate) fn delivered(&self, live: &Arc<DestinationLive>, status: EgressStatus) {
        self.lanes(live).counts.delivered(status);
    }

    /// What happens a few times a second: connections that were unused for too long are closed, counts are handed in, and
    /// destinations that are gone are forgotten.
    pub(crate) fn sweep(&self, destinations: &Destinations) {
        let kept_since = self.clock.millis().saturating_sub(IDLE_MS);
        self.known.borrow_mut().retain(|name, lanes| {
            lanes.lanes.iter().for_each(|lane| lane.idle.sweep(kept_since));
            lanes.counts.flush();
            destinations.contains_key(name)
        });
    }

    fn ready(
        &self,
        lanes: &Lanes,
        lane: &Rc<Lane>,
        connection: Counted,
        since_ms: u64,
        fresh: bool,
    ) -> Ready {
        let (live, counts) = (Arc::clone(&lanes.live), Rc::clone(&lanes.counts));
        Ready::new(live, Rc::clone(lane), counts, self.clock, connection, since_ms, fresh)
    }

    /// This thread's lanes to that destination. Where an endpoint stays, so do its connections.
    fn lanes(&self, live: &Arc<DestinationLive>) -> Rc<Lanes> {
        let mut known = self.known.borrow_mut();
        let before = known.get(&live.spec.name);
        if let Some(lanes) = before.filter(|lanes| Arc::ptr_eq(&lanes.live, live)) {
            return Rc::clone(lanes);
        }
        let lane = |endpoint: &Arc<Endpoint>| {
            let mut lanes = before.iter().flat_map(|lanes| &lanes.lanes);
            lanes.find(|lane| lane.endpoint == *endpoint).map_or_else(|| Lane::new(endpoint), Rc::clone)
        };
        let counts = || Rc::new(self.metrics.local(&live.spec.name));
        let lanes = Rc::new(Lanes {
            live: Arc::clone(live),
            lanes: live.endpoints.iter().map(lane).collect(),
            next: Cell::new(crate::random::below(live.endpoints.len().max(1))),
            counts: before.map_or_else(counts, |before| Rc::clone(&before.counts)),
        });
        known.insert(Arc::clone(&live.spec.name), Rc::clone(&lanes));
        lanes
    }
}

impl Lane {
    fn new(endpoint: &Arc<Endpoint>) -> Rc<Self> {
        Rc::new(Self {
            endpoint: Arc::clone(endpoint),
            idle: Idle::default(),
            in_flight: Cell::new(0),
            failed_ms: Cell::new(None),
        })
    }
}

impl Lanes {
    fn pick(&self, tried: &Tried, now_ms: u64) -> Option<Rc<Lane>> {
        let first = self.next.get();
        self.next.set(first.wrapping_add(1));
        let candidates = self.lanes.iter().map(|lane| {
            let shunned =
                lane.failed_ms.get().is_some_and(|failed| now_ms.saturating_sub(failed) < SHUNNED_MS);
            (!tried.contains(&lane.endpoint)).then(|| (shunned, lane.in_flight.get()))
        });
        pick(candidates, first).map(|place| Rc::clone(&self.lanes[place]))
    }
}

/// The place of the endpoint whose turn it is: of those that are candidates the reached before the shunned, then the one
/// with the least in flight, then the next in turn from `first`.
fn pick(candidates: impl ExactSizeIterator<Item = Option<(bool, u32)>>, first: usize) -> Option<usize> {
    let count = candidates.len();
    let turn = |place: usize| (place + count - first % count) % count;
    let fit = candidates.enumerate().filter_map(|(place, rank)| Some((rank?, turn(place), place)));
    fit.min().map(|(.., place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(candidates: &[Option<(bool, u32)>], first: usize, expected: Option<usize>) {
        assert_eq!(pick(candidates.iter().copied(), first), expected, "{candidates:?} from {first}");
    }

    #[test]
    fn equals_take_turns() {
        let equal = [Some((false, 0)); 3];
        for first in 0..6 {
            check(&equal, first, Some(first % 3));
        }
        check(&[], 0, None);
    }

    #[test]
    fn the_least_busy_comes_before_its_turn_and_the_shunned_come_last() {
        check(&[Some((false, 2)), Some((false, 1)), Some((false, 2))], 0, Some(1));
        check(&[Some((true, 0)), Some((false, 9))], 0, Some(1));
        check(&[Some((true, 0)), None], 1, Some(0));
        check(&[None, None], 0, None);
    }
}
