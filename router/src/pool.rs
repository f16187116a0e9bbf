//! One thread's connections to one pod, and how many of its attempts are under way there.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::edge::Connection;
use crate::live::PodLive;

/// Connections kept for later; more are closed when they come back.
const MOST_IDLE: usize = 512;
/// How long a connection is kept unused, in milliseconds. Shorter than what a cell-runtime waits, so that it is this
/// side that closes.
pub(crate) const IDLE_MS: u64 = 20_000;

pub(crate) struct Pool {
    pub(crate) pod: Arc<PodLive>,
    idle: RefCell<Vec<(Connection, u64)>>,
    in_flight: Cell<u32>,
}

impl Pool {
    pub(crate) fn new(pod: Arc<PodLive>) -> Self {
        Self { pod, idle: RefCell::new(Vec::new()), in_flight: Cell::new(0) }
    }

    /// The connection used last, if it still works: the oldest ones can then go.
    pub(crate) async fn take(&self) -> Option<Connection> {
        loop {
            let (mut connection, _) = self.idle.borrow_mut().pop()?;
            if connection.is_usable().await {
                return Some(connection);
            }
        }
    }

    pub(crate) fn give_back(&self, connection: Connection, now_ms: u64) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MOST_IDLE && !connection.is_closed() {
            idle.push((connection, now_ms));
        }
    }

    /// Closes what has been unused for too long, and forgets what the pod closed.
    pub(crate) fn sweep(&self, now_ms: u64) {
        self.idle
            .borrow_mut()
            .retain(|(connection, since)| !connection.is_closed() && now_ms.saturating_sub(*since) < IDLE_MS);
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
