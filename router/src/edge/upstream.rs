//! The body of an answer that arrives from a cell or a destination.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bulkhead_http1::{Fields, Known, Piece};
use bytes::{Bytes, BytesMut};

use super::connection::Upstream;
use super::h2;
use crate::attempt::Lease;
use crate::headers::is_ours;
use crate::message::Holds;
use crate::worker::Worker;

/// A body with the lease on the connection it comes through. Read to its end it gives the connection back; dropped before,
/// it closes it.
pub(crate) struct UpstreamBody {
    upstream: Source,
    lease: Option<Lease>,
}

/// What an answer comes through.
pub(super) enum Source {
    Http1(Rc<Upstream>),
    Http2(Box<h2::Returning>),
}

impl Source {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        match self {
            Self::Http1(upstream) => upstream.poll_piece(context),
            Self::Http2(returning) => returning.poll_piece(context),
        }
    }

    fn is_read(&self) -> bool {
        match self {
            Self::Http1(upstream) => upstream.is_read(),
            Self::Http2(returning) => returning.is_read(),
        }
    }

    fn left(&self) -> Option<u64> {
        match self {
            Self::Http1(upstream) => upstream.left(),
            Self::Http2(returning) => returning.is_read().then_some(0),
        }
    }

    fn end(&self) {
        match self {
            Self::Http1(upstream) => upstream.end(),
            // Takes itself back when it is dropped.
            Self::Http2(_) => {}
        }
    }
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("the body is longer than it may be")]
    TooLong,
    #[error("the body broke off: {0}")]
    Broken(#[from] io::Error),
}

/// What could be read of an answer's body.
pub(crate) enum Collected {
    Whole {
        data: Bytes,
        trailers: Option<Fields>,
    },
    /// More than may be held; what has arrived goes first.
    More(Bytes),
    Broken,
    /// Its cell is drained, and the time for what is under way there is over.
    Overdue,
}

impl UpstreamBody {
    pub(super) fn new(upstream: Source) -> Self {
        Self { upstream, lease: None }
    }

    /// From here on the end of the body is the end of the attempt.
    pub(crate) fn attach(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// What the request holds is held until the answer ends.
    pub(crate) fn hold(&mut self, holds: Holds, worker: &Worker) {
        if let Some(lease) = &mut self.lease {
            lease.hold(holds, worker);
        }
    }

    /// Bytes that will come, where the cell said so.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.upstream.left()
    }

    /// Whether nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.upstream.is_read()
    }

    /// Has what is left of the request sent while nobody reads the answer.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) {
        match &mut self.upstream {
            Source::Http1(_) => {}
            Source::Http2(returning) => returning.poll_send(context),
        }
    }

    /// Comes when the answer is to end since its cell is drained and the time for that is over.
    pub(super) fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(lease) = &mut self.lease else { return Poll::Pending };
        ready!(lease.poll_cut(context));
        self.finish(false);
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the cell is drained (drainTimeout)"))
    }

    /// What comes next. Trailers are without what a cell may not say there.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        let polled = self.upstream.poll_piece(context).map_ok(|piece| match piece {
            Piece::End(trailers) => Piece::End(trailers.map(cleaned)),
            data @ Piece::Data(_) => data,
        });
        match &polled {
            Poll::Ready(Ok(Piece::End(_))) => self.finish(true),
            Poll::Ready(Err(_)) => self.finish(false),
            Poll::Ready(Ok(Piece::Data(_))) | Poll::Pending => {}
        }
        polled
    }

    async fn next(&mut self) -> io::Result<Piece> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// The whole body, of `limit` bytes at most.
    ///
    /// # Errors
    /// When there are more, or it broke off.
    pub(crate) async fn whole(mut self, limit: usize) -> Result<Bytes, Unread> {
        let mut begun = BytesMut::new();
        match self.collect(limit, &mut begun, |_| true).await {
            Collected::Whole { data, .. } => {
                self.finish(true);
                Ok(data)
            }
            Collected::More(_) => Err(Unread::TooLong),
            Collected::Broken | Collected::Overdue => {
                Err(Unread::Broken(io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    /// Reads to the end, up to `limit` bytes, so that the connection can be used again. Whether it got there.
    pub(crate) async fn discard(mut self, limit: usize) -> bool {
        let mut left = limit;
        loop {
            match self.next().await {
                Err(_) => return false,
                Ok(Piece::End(_)) => return true,
                Ok(Piece::Data(data)) => match left.checked_sub(data.len()) {
                    Some(rest) => left = rest,
                    None => return false,
                },
            }
        }
    }

    /// Reads to the end, up to `limit` bytes; `room` is asked before more is held than was announced. What has arrived
    /// when it is dropped is in `begun`.
    pub(crate) async fn collect(
        &mut self,
        limit: usize,
        begun: &mut BytesMut,
        room: impl Fn(usize) -> bool,
    ) -> Collected {
        loop {
            // The lease stays: whoever asked gives it back.
            let piece = poll_fn(|context| match self.upstream.poll_piece(context) {
                Poll::Pending if self.lease.as_ref().is_some_and(Lease::is_cut) => Poll::Ready(None),
                polled => polled.map(Some),
            });
            let data = match piece.await {
                None => return Collected::Overdue,
                Some(Err(_)) => return Collected::Broken,
                Some(Ok(Piece::End(trailers))) => {
                    let data = std::mem::take(begun).freeze();
                    return Collected::Whole { data, trailers: trailers.map(cleaned) };
                }
                Some(Ok(Piece::Data(data))) => data,
            };
            let fits = begun.len() + data.len() <= limit && room(data.len());
            if fits && begun.is_empty() && self.upstream.is_read() {
                return Collected::Whole { data, trailers: None };
            }
            begun.extend_from_slice(&data);
            if !fits {
                return Collected::More(std::mem::take(begun).freeze());
            }
        }
    }

    /// What it came through, once it was read whole.
    pub(crate) fn into_lease(mut self) -> Option<Lease> {
        self.lease.take()
    }

    fn finish(&mut self, whole: bool) {
        if let Some(lease) = self.lease.take() {
            lease.finish(whole);
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        let whole = self.upstream.is_read();
        if !whole {
            self.upstream.end();
        }
        self.finish(whole);
    }
}

/// Trailers without what says how a message is read, and without ours.
fn cleaned(mut trailers: Fields) -> Fields {
    trailers.retain(|known, name, _| known == Known::Other && !is_ours(name));
    trailers
}
