//! One message and its answer on one connection to a destination. When it may be sent is the transaction's to say.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_http1::Fields;
use bulkhead_process::Monotonic;
use bulkhead_protocol::Reason;
use bulkhead_routing::transaction::Sent;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, header};
use tokio::time::timeout;

use super::destination::DestinationLive;
use super::fields::from_destination;
use super::metrics::DestinationMetrics;
use super::pool::{Counted, Lane, Tried};
use crate::edge::{self, AttemptError, Outgoing, Unread, UpstreamHead};

/// A message for a destination, the same on whatever connection it goes out.
pub(crate) struct Message {
    pub(crate) method: Method,
    pub(crate) path: PathAndQuery,
    /// As [`super::fields::to_destination`] makes them.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A destination's whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) status: u16,
    /// End-to-end fields alone.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A live connection in hand. One that is not used goes back.
pub(crate) struct Ready {
    live: Arc<DestinationLive>,
    lane: Rc<Lane>,
    counts: Rc<DestinationMetrics>,
    clock: Monotonic,
    /// None once a message was sent on it.
    connection: Option<Counted>,
    since_ms: u64,
    fresh: bool,
}

impl Ready {
    pub(super) fn new(
        live: Arc<DestinationLive>,
        lane: Rc<Lane>,
        counts: Rc<DestinationMetrics>,
        clock: Monotonic,
        connection: Counted,
        since_ms: u64,
        fresh: bool,
    ) -> Self {
        lane.in_flight.set(lane.in_flight.get() + 1);
        Self { live, lane, counts, clock, connection: Some(connection), since_ms, fresh }
    }

    /// Sends the message and waits for the whole answer, up to `until` by the worker's clock or the Destination's timeout.
    /// The connection is kept where the answer was read to its end, and closed where it was not.
    pub(crate) async fn send(
        mut self,
        tried: &mut Tried,
        message: &Message,
        until: Duration,
    ) -> Sent<Returned> {
        let began = self.clock.elapsed();
        let left = until.saturating_sub(began).min(self.live.spec.timeout);
        if left.is_zero() {
            return Sent::NotSent(Reason::Timeout);
        }
        // Dropped when this is over, and with it closed, unless its answer was read to its end.
        let connection = self.connection.take().expect("it is taken here alone, and self is consumed");
        let sent = timeout(left, self.exchange(&connection, message)).await;
        match sent {
            Ok(Ok(returned)) => {
                self.counts.answered(self.clock.elapsed().saturating_sub(began));
                self.lane.idle.give_back(connection, self.clock.millis());
                Sent::Answered(returned)
            }
            Ok(Err(Broken::Unsent)) => {
                // That a kept connection was closed meanwhile is no fault of its endpoint.
                if self.fresh {
                    tried.add(&self.lane.endpoint);
                }
                Sent::NotSent(Reason::DestinationUnavailable)
            }
            Ok(Err(Broken::Sent(reason))) => Sent::Unknown(reason),
            Err(_) => Sent::Unknown(Reason::Timeout),
        }
    }

    async fn exchange(&self, connection: &Counted, message: &Message) -> Result<Returned, Broken> {
        let mut request = edge::Message::new(&message.method, message.path.as_str());
        request.goes_at_once = true;
        // First, as RFC 9110, section 7.2, would have it.
        let host = message.headers.get(header::HOST).unwrap_or(&self.lane.endpoint.authority);
        request.field("host", host.as_bytes());
        request.fields(&Fields::from(&message.headers));
        let sent = connection.connection.send(&request, Outgoing::Whole(message.body.clone()));
        let UpstreamHead { status, fields, body, upgrade } = sent.await?;
        // Nobody asked it to leave HTTP, so that there is no telling what it takes the connection for.
        if upgrade.is_some() {
            return Err(Broken::Sent(Reason::UpstreamProtocol));
        }
        let limit = usize::try_from(self.live.spec.answer_bytes).unwrap_or(usize::MAX);
        let body = body.whole(limit).await?;
        Ok(Returned { status: status.as_u16(), headers: from_destination(fields.to_map()), body })
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.lane.in_flight.set(self.lane.in_flight.get().saturating_sub(1));
        if let Some(connection) = self.connection.take() {
            self.lane.idle.give_back(connection, self.since_ms);
        }
    }
}

/// Why there is no answer.
enum Broken {
    /// Nothing was handed to the kernel.
    Unsent,
    Sent(Reason),
}

impl From<AttemptError> for Broken {
    fn from(error: AttemptError) -> Self {
        tracing::debug!(%error, "a destination gave no answer");
        match error {
            AttemptError::Stale { .. } | AttemptError::Refused(_) => Self::Unsent,
            AttemptError::Reset(_) => Self::Sent(Reason::UpstreamReset),
            AttemptError::Protocol(_) => Self::Sent(Reason::UpstreamProtocol),
        }
    }
}

impl From<Unread> for Broken {
    fn from(unread: Unread) -> Self {
        tracing::debug!(%unread, "a destination's answer was not read to its end");
        Self::Sent(match unread {
            Unread::TooLong => Reason::BodyTooLarge,
            Unread::Broken(_) => Reason::UpstreamReset,
        })
    }
}

#[cfg(test)]
mod tests;
