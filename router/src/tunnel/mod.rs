//! Tunnels out of cells, on an address and a thread of their own: CONNECT and nothing else, to endpoints of `connect`
//! Destinations and to nothing else. What goes through one is between the cell and its far side.

mod leave;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bulkhead_process::connect::Stream;
use bulkhead_process::tunnel::{self, Far};
use bulkhead_process::{Shutdown, socket};
use bulkhead_protocol::{Problem, Reason, fields};
use bulkhead_routing::table::DestinationKind;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::egress::{DestinationLive, Place};
use crate::forbidden::Forbidden;
use crate::metrics::PathMetrics;
use crate::snapshot::Snapshot;
use leave::{Asked, decide};

/// Connections at the same time, those that have not asked yet included.
const MOST: usize = 16_384;
/// After the kernel had no file or memory for a connection.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

/// What tunnels are decided from and counted in.
#[derive(Clone)]
pub(crate) struct Tunnels {
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    pub(crate) metrics: PathMetrics,
    pub(crate) forbidden: Forbidden,
}

impl Tunnels {
    /// Serves until it is told to drain; then open tunnels have the drain time-out to end, and are cut.
    pub(crate) async fn run(self, listener: TcpListener, drain: Shutdown) {
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) if open.len() < MOST => drop(open.spawn(self.clone().serve(stream, peer))),
                    Ok(_) => tracing::warn!(limit = MOST, "too many connections for tunnels; one is turned away"),
                    Err(error) => {
                        tracing::warn!(%error, "a connection for a tunnel could not be accepted");
                        sleep(OUT_OF_FILES).await;
                    }
                },
                Some(_) = open.join_next() => {}
                () = drain.requested() => break,
            }
        }
        drop(listener);
        let within = self.current.load().about.drain_timeout;
        if timeout(within, async { while open.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!(tunnels = open.len(), "the time to drain is over; what is left is cut");
        }
    }

    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        // One that takes nothing is idle, which has a time-out of its own.
        let _ = socket::set_up(&stream, None);
        tunnel::serve(stream, |asked| self.open(asked, peer)).await;
    }

    /// Opens what is asked for, or says why not.
    async fn open(&self, parts: Parts, peer: SocketAddr) -> Result<Far<Stream, Place>, Response<String>> {
        let Some(target) = tunnel::target(&parts) else {
            let detail = "this address takes CONNECT host:port alone (RFC 9110, section 9.3.6)";
            return Err(self.refuse("", &Problem::new(Reason::Malformed, detail)));
        };
        let snapshot = self.current.load_full();
        let asked = Asked { peer: peer.ip(), headers: &parts.headers, target };
        let live = decide(&snapshot, &asked).map_err(|denied| {
            if let Some((cell, destination)) = &denied.forbidden {
                self.forbidden.note(cell, destination);
            }
            self.refuse("", &Problem::new(Reason::DestinationForbidden, denied.detail))
        })?;
        let name = &*live.spec.name;
        let place = live.begin().map_err(|reason| {
            let detail = format!("{name} has as many tunnels as it may (limits.inFlight)");
            self.refuse(name, &Problem::new(reason, detail))
        })?;
        let stream = connect(live, target).await.map_err(|detail| {
            self.refuse(name, &Problem::new(Reason::DestinationUnavailable, format!("{name}: {detail}")))
        })?;
        self.metrics.egress.tunnel(name, "Open");
        let idle = match live.spec.kind {
            DestinationKind::Connect { idle_timeout } => Some(idle_timeout),
            DestinationKind::Http { .. } => None,
        };
        Ok(Far { stream, idle, held: place })
    }

    fn refuse(&self, destination: &str, problem: &Problem) -> Response<String> {
        self.metrics.egress.tunnel(destination, &problem.reason);
        let mut response = Response::new(serde_json::to_string(problem).unwrap_or_default());
        *response.status_mut() =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = HeaderValue::from_static(fields::PROBLEM_JSON);
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

/// Connects to one of the addresses of that endpoint, beginning with any of them.
async fn connect(live: &DestinationLive, target: &str) -> Result<Stream, String> {
    let is_asked_for = |endpoint: &&Arc<crate::egress::Endpoint>| {
        endpoint.authority.as_bytes().eq_ignore_ascii_case(target.as_bytes())
    };
    let mut endpoints: Vec<_> = live.endpoints.iter().filter(is_asked_for).collect();
    if endpoints.is_empty() {
        return Err(live.unavailable().unwrap_or_else(|| format!("{target} has no address")));
    }
    let first = crate::random::below(endpoints.len());
    endpoints.rotate_left(first);
    let mut why = String::new();
    for endpoint in endpoints {
        match endpoint.connector.connect(endpoint.address, live.spec.connect_timeout).await {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{}: {error}", endpoint.address),
        }
    }
    Err(why)
}
