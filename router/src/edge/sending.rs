//! A request on its way to a cell, whichever version of HTTP carries it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bulkhead_http1::Fields;
use bulkhead_protocol::Reason;
use http::StatusCode;

use super::connection::Http1Sending;
use super::h2::{Call, Place};
use super::upgrade::UpgradedCell;
use super::upstream::UpstreamBody;
use super::{Connection, Message, Outgoing};

/// Why no answer came through a connection.
#[derive(thiserror::Error)]
pub(crate) enum AttemptError {
    #[error("the connection was closed before anything was sent")]
    Stale { body: Outgoing },
    #[error("the connection broke: {0}")]
    Reset(#[source] io::Error),
    #[error("it was refused untouched: {0}")]
    Refused(Reason),
    #[error("what came back is no HTTP: {0} ({rule})", rule = .0.rule())]
    Protocol(#[source] bulkhead_http1::Error),
}

impl std::fmt::Debug for AttemptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the body, which is a client's.
        write!(f, "{self}")
    }
}

/// The head of a pod's answer, and its body still arriving.
pub(crate) struct UpstreamHead {
    pub(crate) status: StatusCode,
    pub(crate) fields: Fields,
    pub(crate) body: UpstreamBody,
    /// Set where the pod agreed to leave HTTP.
    pub(crate) upgrade: Option<UpgradedCell>,
}

/// What a request waits for its answer's head in. It outlives whoever gives it up; dropped before, it is taken back.
pub(crate) enum Sending {
    Http1(Http1Sending),
    Http2(Call),
}

impl Sending {
    pub(crate) fn over_http1(connection: &Connection, message: &Message, body: Outgoing) -> Self {
        Self::Http1(connection.send(message, body))
    }

    /// The message is one that was made for HTTP/2.
    pub(crate) fn over_http2(place: Place, message: &Message, body: Outgoing) -> Self {
        Self::Http2(Call::send(place, message.http2.as_deref(), body))
    }

    /// Whether the whole request is on its way.
    pub(crate) fn is_sent(&self) -> bool {
        match self {
            Self::Http1(sending) => sending.is_sent(),
            Self::Http2(call) => call.is_sent(),
        }
    }
}

impl Future for Sending {
    type Output = Result<UpstreamHead, AttemptError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Http1(sending) => Pin::new(sending).poll(context),
            Self::Http2(call) => call.poll(context),
        }
    }
}
