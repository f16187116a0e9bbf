//! The body of a client's request that is still arriving, whichever version of HTTP brings it.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use super::arriving::{Http1Body, Unreadable};
use super::h2;

/// A body that is still arriving. Dropped before its end, the rest is left to the connection.
pub(crate) enum Arriving {
    Http1(Http1Body),
    Http2(Box<h2::Body>),
}

impl Arriving {
    /// Bytes that will come, where the sender said so. 0 is no body.
    pub(crate) fn declared(&self) -> Option<u64> {
        match self {
            Self::Http1(body) => body.declared(),
            Self::Http2(body) => body.declared(),
        }
    }

    /// The next bytes, or `None` at the end. Trailers are left out.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Unreadable>> {
        match self {
            Self::Http1(body) => body.next().await,
            Self::Http2(body) => body.next().await,
        }
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Unreadable>>> {
        match self {
            Self::Http1(body) => body.poll_next(context),
            Self::Http2(body) => body.poll_next(context),
        }
    }

    /// The rest of a body of known length, read to where it is kept.
    ///
    /// # Errors
    /// Why it stopped before its end.
    pub(crate) async fn rest(&mut self, into: &mut BytesMut) -> Result<(), Unreadable> {
        match self {
            Self::Http1(body) => body.rest(into).await,
            Self::Http2(body) => body.rest(into).await,
        }
    }
}
