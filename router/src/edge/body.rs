//! Bodies on their way: from the client, to a cell, and from a cell back to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bulkhead_protocol::hop;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::attempt::Lease;
use crate::message::{AnswerBody, Holds};
use crate::metrics::PathMetrics;

/// A body that is still arriving.
pub(crate) struct Arriving(Incoming);

/// Why a body stopped before its end: the sender is gone, or what it sent is no HTTP.
#[derive(Debug, thiserror::Error)]
#[error("the body stopped before its end: {0}")]
pub(crate) struct Unreadable(#[from] hyper::Error);

impl Arriving {
    pub(super) fn new(body: Incoming) -> Self {
        Self(body)
    }

    /// Bytes that will come, where the sender said so. 0 is no body.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.0.size_hint().exact()
    }

    /// The next bytes, or `None` at the end. Trailers are left out.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Unreadable>> {
        loop {
            match self.0.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(Unreadable(error))),
            }
        }
    }
}

/// A body on its way to a cell.
pub(crate) enum Outgoing {
    /// Held whole: it can be sent again.
    Whole(Bytes),
    /// What was read already, then the rest as it arrives: it can be sent once.
    Rest { read: Bytes, rest: Arriving },
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Rest { read, rest } if read.is_empty() => Pin::new(&mut rest.0).poll_frame(context),
            Self::Rest { read, .. } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(read))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Rest { read, rest } => read.is_empty() && rest.0.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Rest { read, rest } => behind(read, &rest.0),
        }
    }
}

/// A body that arrives from a cell, with the lease on the connection it comes through. Read to its end it gives the
/// connection back; dropped before, it closes it.
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    lease: Option<Lease>,
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("the body is longer than it may be")]
    TooLong,
    #[error("the body broke off: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming) -> Self {
        Self { incoming, lease: None }
    }

    /// From here on the end of the body is the end of the attempt.
    pub(crate) fn attach(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// What the request holds is held until the answer ends.
    pub(crate) fn hold(&mut self, holds: Holds, metrics: &PathMetrics) {
        if let Some(lease) = &mut self.lease {
            lease.hold(holds, metrics);
        }
    }

    /// The whole body, of `limit` bytes at most.
    ///
    /// # Errors
    /// When there are more, or it broke off.
    pub(crate) async fn whole(mut self, limit: usize) -> Result<Bytes, Unread> {
        let read = Limited::new(&mut self.incoming, limit).collect().await;
        self.finish(read.is_ok());
        match read {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLong),
            Err(error) => Err(Unread::Broken(error)),
        }
    }

    /// Reads to the end, up to `limit` bytes, so that the connection can be used again. Whether it got there.
    pub(crate) async fn discard(mut self, limit: usize) -> bool {
        let mut left = limit;
        while !self.incoming.is_end_stream() {
            match self.incoming.frame().await {
                None => break,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                    Some(rest) => left = rest,
                    None => return false,
                },
            }
        }
        self.finish(true);
        true
    }

    fn finish(&mut self, whole: bool) {
        if let Some(lease) = self.lease.take() {
            lease.finish(whole);
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        // A body of known length is not polled for its end once all of it is written.
        let whole = self.incoming.is_end_stream();
        self.finish(whole);
    }
}

/// What could be read of an answer's body.
pub(crate) enum Collected {
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// More than may be held; what has arrived goes first.
    More(Bytes),
    Broken,
}

impl UpstreamBody {
    /// Reads to the end, up to `limit` bytes; `room` is asked before more is held than was announced. What has arrived
    /// when it is dropped is in `begun`.
    pub(crate) async fn collect(
        &mut self,
        limit: usize,
        begun: &mut BytesMut,
        room: impl Fn(usize) -> bool,
    ) -> Collected {
        let mut trailers = None;
        while !self.incoming.is_end_stream() {
            match self.incoming.frame().await {
                None => break,
                Some(Err(_)) => return Collected::Broken,
                Some(Ok(frame)) => match frame.into_data() {
                    Err(frame) => trailers = cleaned(frame).into_trailers().ok(),
                    Ok(data) => {
                        let fits = begun.len() + data.len() <= limit && room(data.len());
                        if fits && begun.is_empty() && self.incoming.is_end_stream() {
                            return Collected::Whole { data, trailers: None };
                        }
                        begun.extend_from_slice(&data);
                        if !fits {
                            return Collected::More(std::mem::take(begun).freeze());
                        }
                    }
                },
            }
        }
        Collected::Whole { data: std::mem::take(begun).freeze(), trailers }
    }

    /// Bytes that will come, where the cell said so.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// What it came through, once it was read whole.
    pub(crate) fn into_lease(mut self) -> Option<Lease> {
        self.lease.take()
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Whole { data, trailers, .. } if data.is_empty() => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Self::Whole { data, .. } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(data))))),
            Self::Stream { begun, .. } if !begun.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(begun)))))
            }
            Self::Stream { rest: body, .. } => {
                let frame = ready!(Pin::new(&mut body.incoming).poll_frame(context));
                match &frame {
                    None => body.finish(true),
                    Some(Err(_)) => body.finish(false),
                    Some(Ok(_)) => {}
                }
                Poll::Ready(frame.map(|frame| frame.map(cleaned)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole { data, trailers, .. } => data.is_empty() && trailers.is_none(),
            Self::Stream { begun, rest } => begun.is_empty() && rest.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // Trailers need chunks, which a length would forbid.
            Self::Whole { trailers: Some(_), .. } => SizeHint::default(),
            Self::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
            Self::Stream { begun, rest } => behind(begun, &rest.incoming),
        }
    }
}

/// Trailers without what a cell may not say there.
fn cleaned(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            hop::drop_ours(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// The length of what was read already with all that follows, where it is known.
fn behind(begun: &Bytes, rest: &impl Body) -> SizeHint {
    let whole = rest.size_hint().exact().map(|left| begun.len() as u64 + left);
    whole.map_or_else(SizeHint::default, SizeHint::with_exact)
}
