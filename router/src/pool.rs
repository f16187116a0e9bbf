//! Connections that a thread keeps for later, and those to one pod with how many of its attempts are under way there.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bulkhead_process::Connector;
use bulkhead_protocol::Reason;

use crate::edge::{Channels, Connection};
use crate::live::PodLive;

/// Connections kept for later; more are closed when they come back.
const MOST_IDLE: usize = 512;
/// How long a connection is kept unused, in milliseconds. Shorter than what a cell-runtime waits, so that it is this
/// side that closes.
pub(crate) const IDLE_MS: u64 = 20_000;

/// Connections to one place that nobody uses now, each with the time in milliseconds at which it was last used.
pub(crate) struct Idle<C>(RefCell<Vec<(C, u64)>>);

impl<C> Default for Idle<C> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<C: Borrow<Connection>> Idle<C> {
    /// The connection used last, if it was so at `kept_since_ms` or later and still works: the oldest ones can then go.
    pub(crate) fn take(&self, kept_since_ms: u64) -> Option<(C, u64)> {
        loop {
            let (connection, used_ms) = self.0.borrow_mut().pop()?;
            if used_ms >= kept_since_ms && connection.borrow().is_usable() {
                return Some((connection, used_ms));
            }
        }
    }

    pub(crate) fn give_back(&self, connection: C, used_ms: u64) {
        let mut idle = self.0.borrow_mut();
        if idle.len() < MOST_IDLE && connection.borrow().is_idle() {
            idle.push((connection, used_ms));
        }
    }

    /// Closes what was last used before that, and forgets what the other side closed.
    pub(crate) fn sweep(&self, kept_since_ms: u64) {
        self.0
            .borrow_mut()
            .retain(|(connection, used_ms)| *used_ms >= kept_since_ms && connection.borrow().rests());
    }
}

pub(crate) struct Pool {
    pub(crate) pod: Arc<PodLive>,
    /// All its connections are made so; for another there is another pool.
    pub(crate) connector: Arc<Connector>,
    idle: Idle<Connection>,
    /// For what goes in HTTP/2.
    pub(crate) channels: Channels,
    in_flight: Cell<u32>,
    /// Why what is under way there should go on elsewhere, as far as it can.
    recalled: Cell<Option<Reason>>,
}

impl Pool {
    pub(crate) fn new(pod: Arc<PodLive>) -> Self {
        Self {
            connector: pod.connector(),
            pod,
            idle: Idle::default(),
            channels: Channels::default(),
            in_flight: Cell::new(0),
            recalled: Cell::new(None),
        }
    }

    /// Whether it is for that pod, as connections to it are made now.
    pub(crate) fn is_of(&self, pod: &Arc<PodLive>) -> bool {
        Arc::ptr_eq(&self.pod, pod) && Arc::ptr_eq(&self.connector, &pod.connector())
    }

    /// A kept connection that still works.
    pub(crate) fn take(&self) -> Option<Connection> {
        self.idle.take(0).map(|(connection, _)| connection)
    }

    pub(crate) fn give_back(&self, connection: Connection, now_ms: u64) {
        self.idle.give_back(connection, now_ms);
    }

    /// Closes what has been unused for too long, and forgets what the pod closed.
    pub(crate) fn sweep(&self, now_ms: u64) {
        self.idle.sweep(now_ms.saturating_sub(IDLE_MS));
        self.channels.sweep(now_ms, now_ms.saturating_sub(IDLE_MS));
    }

    /// Asks for what is under way there, or no longer. Whether it was not asked for before: see [`Self::recalled`].
    pub(crate) fn set_recalled(&self, reason: Option<Reason>) -> bool {
        self.recalled.replace(reason).is_none() && reason.is_some()
    }

    /// Why the pod's attempts are to go on elsewhere, if they are. Each of them waits for its deadline too, so that
    /// [`crate::timers::Timers::stir`] wakes it to look again.
    pub(crate) fn recalled(&self) -> Option<Reason> {
        self.recalled.get()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }
}
