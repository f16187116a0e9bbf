//! A client's side of the wire, and the body of its request that is still arriving there.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bulkhead_http1::{Decoder, Error, Framing, Piece};
use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::AsyncWrite as _;

use super::wire::{Wire, poll_read};
use crate::front::Stream;

/// What a client that waits to be told sends its body after (RFC 9110, section 10.1.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One client's connection, between its own loop and whoever reads a body off it.
pub(super) struct ClientSide {
    pub(super) wire: Rc<RefCell<Wire<Stream>>>,
    body: RefCell<Reading>,
}

/// The body that is read now, or was read last.
struct Reading {
    decoder: Decoder,
    /// What is left to write before the client sends it.
    interim: &'static [u8],
    broken: bool,
}

/// How far the body of a request was read when its answer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Whole,
    /// The rest is still on its way, or has arrived.
    Part,
    /// The client waits to be told to send it.
    Unasked,
    /// It cannot be read on.
    Broken,
}

impl ClientSide {
    pub(super) fn new(stream: Stream) -> Self {
        let nothing = Reading { decoder: Decoder::new(Framing::NONE), interim: &[], broken: false };
        Self { wire: Wire::new(stream), body: RefCell::new(nothing) }
    }

    /// The body of the request whose head was read just now.
    pub(super) fn begin(self: &Rc<Self>, framing: Framing, expects_continue: bool) -> Http1Body {
        let interim = if expects_continue { CONTINUE } else { &[] };
        *self.body.borrow_mut() = Reading { decoder: Decoder::new(framing), interim, broken: false };
        Http1Body(Rc::clone(self))
    }

    /// What is left of a body that whoever asked for it has let go.
    pub(super) fn resume(self: &Rc<Self>) -> Http1Body {
        // Too late to ask for it.
        self.body.borrow_mut().interim = &[];
        Http1Body(Rc::clone(self))
    }

    pub(super) fn read(&self) -> Read {
        let reading = self.body.borrow();
        match () {
            () if reading.broken => Read::Broken,
            () if reading.decoder.is_done() => Read::Whole,
            // Who sends it without waiting does not need to be told.
            () if reading.interim.len() == CONTINUE.len() && self.wire.borrow().inbound.is_empty() => {
                Read::Unasked
            }
            () => Read::Part,
        }
    }

    /// Comes when the client has closed the connection. What it sends ahead is kept, and read no further than that.
    pub(super) fn poll_gone(&self, context: &mut Context<'_>) -> Poll<()> {
        // Whoever reads the body finds out by itself.
        if !self.body.borrow().decoder.is_done() {
            return Poll::Pending;
        }
        let mut wire = self.wire.borrow_mut();
        while wire.inbound.is_empty() {
            if !matches!(ready!(wire.poll_fill(context)), Ok(1..)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

/// A body that is still arriving. Dropped before its end, the rest is left to the connection.
pub(crate) struct Http1Body(Rc<ClientSide>);

/// Why a body stopped before its end: the sender is gone, or what it sent is no HTTP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the body stopped before its end: the client closed the connection")]
    Closed,
    #[error("the body stopped before its end: {0}")]
    Io(#[from] io::Error),
    #[error("the body cannot be read: {0} ({rule})", rule = .0.rule())]
    Malformed(#[from] Error),
}

impl Http1Body {
    /// Bytes that will come, where the sender said so. 0 is no body.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.0.body.borrow().decoder.left()
    }

    /// The next bytes, or `None` at the end. Trailers are left out.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Unreadable>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Unreadable>>> {
        let Reading { decoder, interim, broken } = &mut *self.0.body.borrow_mut();
        let wire = &mut *self.0.wire.borrow_mut();
        let polled = ready!(poll_piece(decoder, interim, wire, context));
        *broken |= polled.is_err();
        Poll::Ready(match polled {
            Ok(Piece::Data(data)) => Some(Ok(data)),
            Ok(Piece::End(_)) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The rest of a body of known length, read to where it is kept.
    ///
    /// # Errors
    /// Why it stopped before its end.
    pub(crate) async fn rest(&mut self, into: &mut BytesMut) -> Result<(), Unreadable> {
        while let Some(left) = self.declared().filter(|left| *left > 0) {
            if self.0.wire.borrow().inbound.is_empty() {
                poll_fn(|context| self.poll_rest(left, into, context)).await?;
            } else if let Some(data) = self.next().await {
                into.extend_from_slice(&data?);
            }
        }
        Ok(())
    }

    /// Reads past the buffer.
    fn poll_rest(
        &mut self,
        left: u64,
        into: &mut BytesMut,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Unreadable>> {
        let Reading { decoder, interim, broken } = &mut *self.0.body.borrow_mut();
        let wire = &mut *self.0.wire.borrow_mut();
        ready!(poll_interim(interim, wire, context))?;
        let mut limited = into.limit(usize::try_from(left).unwrap_or(usize::MAX));
        let read = ready!(poll_read(&mut wire.stream, &mut limited, context));
        *broken |= !matches!(read, Ok(1..));
        match read? {
            0 => return Poll::Ready(Err(Unreadable::Closed)),
            length => decoder.skip(length as u64),
        }
        Poll::Ready(Ok(()))
    }
}

fn poll_piece(
    decoder: &mut Decoder,
    interim: &mut &'static [u8],
    wire: &mut Wire<Stream>,
    context: &mut Context<'_>,
) -> Poll<Result<Piece, Unreadable>> {
    loop {
        if let Some(piece) = decoder.read(&mut wire.inbound)? {
            return Poll::Ready(Ok(piece));
        }
        ready!(poll_interim(interim, wire, context))?;
        if ready!(wire.poll_fill(context))? == 0 {
            return Poll::Ready(Err(Unreadable::Closed));
        }
    }
}

fn poll_interim(
    interim: &mut &'static [u8],
    wire: &mut Wire<Stream>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !interim.is_empty() {
        let written = ready!(Pin::new(&mut wire.stream).poll_write(context, interim))?;
        *interim = &interim[written..];
        if interim.is_empty() {
            ready!(Pin::new(&mut wire.stream).poll_flush(context))?;
        }
    }
    Poll::Ready(Ok(()))
}
