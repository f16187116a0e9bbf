//! A Destination as it is now: where it is reached, with which certificates, and how much is under way there. Made whole by
//! the builder of tables and never changed; only its load outlives it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use bulkhead_process::Connector;
use bulkhead_protocol::Reason;
use bulkhead_routing::table::Destination;
use http::HeaderValue;
use serde_json::{Value, json};

/// One address of a destination, which was found fit to be connected to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// `host:port` as the Destination writes it.
    pub(crate) authority: HeaderValue,
    /// Plain, or TLS to the name that its certificate must carry.
    pub(crate) connector: Connector,
}

/// A Destination in this router.
pub(crate) struct DestinationLive {
    pub(crate) spec: Arc<Destination>,
    /// None where no address is known and fit, or where certificates are missing.
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
    /// Endpoints or addresses that are not connected to, and why.
    pub(crate) refused: Vec<String>,
    /// What is wrong with its certificates; the last good ones stay in use.
    pub(crate) certificates: Option<String>,
    pub(super) load: Arc<Load>,
}

/// What all threads have under way at a destination.
#[derive(Default)]
pub(super) struct Load {
    in_flight: AtomicU32,
    connections: AtomicU32,
    last_failure: ArcSwapOption<String>,
}

/// One message or tunnel under way, of as many as the Destination allows, until it is dropped.
pub(crate) struct Place(Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One open connection, for as long as it is open.
pub(super) struct Open(Arc<Load>);

impl Open {
    pub(super) fn count(load: &Arc<Load>) -> Self {
        load.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DestinationLive {
    /// Takes a place among what may be under way.
    ///
    /// # Errors
    /// `DestinationUnavailable` when `limits.inFlight` is reached.
    pub(crate) fn begin(&self) -> Result<Place, Reason> {
        let before = self.load.in_flight.fetch_add(1, Ordering::Relaxed);
        // Taken first and given back by the drop, so that of two that come together neither overlooks the other.
        let place = Place(Arc::clone(&self.load));
        if before < self.spec.in_flight { Ok(place) } else { Err(Reason::DestinationUnavailable) }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.load.in_flight.load(Ordering::Relaxed)
    }

    /// Open connections of all threads, used or kept.
    pub(crate) fn connections(&self) -> u32 {
        self.load.connections.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self, endpoint: &Endpoint, error: &std::io::Error) {
        let failure = format!("{}: {error}", endpoint.address);
        tracing::debug!(destination = &*self.spec.name, failure, "no connection");
        self.load.last_failure.store(Some(Arc::new(failure)));
    }

    /// Why nobody can be reached, where that is so before anything is tried.
    pub(crate) fn unavailable(&self) -> Option<String> {
        if !self.endpoints.is_empty() {
            return None;
        }
        let why: Vec<&str> = self.certificates.iter().chain(&self.refused).map(String::as_str).collect();
        Some(if why.is_empty() { "no endpoint has an address".to_owned() } else { why.join("; ") })
    }

    /// For people, on the admin port.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "name": &*self.spec.name,
            "addresses": self.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect::<Vec<_>>(),
            "refused": self.refused,
            "certificates": self.certificates,
            "inFlight": self.in_flight(),
            "connections": self.connections(),
            "lastFailure": self.load.last_failure.load().as_deref(),
        })
    }

    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.endpoints == other.endpoints
            && self.refused == other.refused
            && self.certificates == other.certificates
    }
}
