//! Bodies as they pass through: streamed frame by frame, never copied. A body holds what must be given back at its
//! end: the place among those under way, and the connection that it came from.

use std::pin::Pin;
use std::task::{Context, Poll};

use bulkhead_protocol::hop;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use crate::call::Lease;
use crate::cell::Place;

pub(crate) struct Body {
    source: Source,
    /// Given back when the body ends or is dropped.
    place: Option<Place>,
    lease: Option<Lease>,
}

enum Source {
    Stream(Incoming),
    Whole(Full<Bytes>),
}

impl Body {
    /// A request's body, as it comes from the router.
    pub(crate) fn stream(body: Incoming) -> Self {
        Self { source: Source::Stream(body), place: None, lease: None }
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { source: Source::Whole(Full::new(bytes.into())), place: None, lease: None }
    }

    /// An answer's body, as it comes from a service over a leased connection.
    pub(crate) fn leased(body: Incoming, lease: Lease) -> Self {
        Self { source: Source::Stream(body), place: None, lease: Some(lease) }
    }

    /// The whole body, in one piece from the start: one in chunks of a byte would take many times its length.
    ///
    /// # Errors
    /// When it is longer than `limit`, or does not come to its end.
    pub(crate) async fn read(self, limit: usize) -> Result<Bytes, Broken> {
        let mut body = Limited::new(self, limit);
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => whole.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Err(error) if error.is::<LengthLimitError>() => return Err(Broken::TooLong(limit)),
                Err(error) => return Err(Broken::Off(error.to_string())),
            }
        }
        Ok(whole.freeze())
    }

    pub(crate) fn holding(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }
}

/// Why a body did not become whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("is longer than the {0} bytes that are passed on whole")]
    TooLong(usize),
    #[error("broke off: {0}")]
    Off(String),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = match &mut this.source {
            Source::Stream(body) => std::task::ready!(Pin::new(body).poll_frame(context)),
            Source::Whole(body) => match std::task::ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => Some(Ok(frame)),
                None => None,
                Some(Err(never)) => match never {},
            },
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(this.cleaned(frame))),
            Some(Err(error)) => {
                if let Some(lease) = &this.lease {
                    lease.failed();
                }
                Some(Err(error))
            }
            None => {
                this.end();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Stream(body) => body.is_end_stream(),
            Source::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Stream(body) => body.size_hint(),
            Source::Whole(body) => body.size_hint(),
        }
    }
}

impl Body {
    /// Trailers of a service may not speak for the cell-runtime either.
    fn cleaned(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_trailers() {
            Ok(mut trailers) => {
                if self.lease.is_some() {
                    hop::drop_ours(&mut trailers);
                }
                Frame::trailers(trailers)
            }
            Err(frame) => frame,
        }
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.keep();
        }
        self.place = None;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // Whoever reads to the announced length never polls for the end.
        if self.is_end_stream() {
            self.end();
        }
    }
}
