//! The body of a request that arrives on a stream.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Response, StatusCode};

use crate::edge::arriving::Unreadable;

/// What the answer goes back through, shared by whoever reads the request's body.
pub(super) type Respond = Rc<RefCell<SendResponse<Bytes>>>;

/// A body that is still arriving. Dropped before its end, the client is told to stop once it has its answer.
pub(crate) struct Body {
    stream: RecvStream,
    /// Of `content-length`, what has not arrived.
    left: Option<u64>,
    /// Where the client waits to be told to send it.
    waits: Option<Respond>,
}

impl Body {
    /// `length` is what the head says, which the library holds the client to.
    pub(super) fn new(stream: RecvStream, length: Option<u64>, waits: Option<Respond>) -> Self {
        Self { stream, left: length, waits }
    }

    /// Bytes that will come, where the sender said so. 0 is no body.
    pub(crate) fn declared(&self) -> Option<u64> {
        // Only the stream's end says that as much came as was said.
        if self.stream.is_end_stream() { Some(0) } else { self.left.filter(|left| *left > 0) }
    }

    /// The next bytes, or none at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Unreadable>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Unreadable>>> {
        if let Some(respond) = self.waits.take() {
            let mut proceed = Response::new(());
            *proceed.status_mut() = StatusCode::CONTINUE;
            // A stream that is gone says so below.
            let _ = respond.borrow_mut().send_informational(proceed);
        }
        loop {
            let data = match ready!(self.stream.poll_data(context)) {
                None => return Poll::Ready(None),
                Some(Ok(data)) => data,
                Some(Err(error)) => return Poll::Ready(Some(Err(unreadable(error)))),
            };
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            // Read is taken: whoever asked counts it from here on, or does not ask before it is passed on.
            let _ = self.stream.flow_control().release_capacity(data.len());
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(data)));
            }
        }
    }

    /// The rest of a body of known length, read to where it is kept.
    ///
    /// # Errors
    /// Why it stopped before its end.
    pub(crate) async fn rest(&mut self, into: &mut BytesMut) -> Result<(), Unreadable> {
        while let Some(data) = self.next().await {
            into.extend_from_slice(&data?);
        }
        Ok(())
    }
}

fn unreadable(error: h2::Error) -> Unreadable {
    if error.is_remote() || error.is_io() {
        Unreadable::Closed
    } else {
        Unreadable::Io(io::Error::other(error))
    }
}
