//! The bytes of a client's connection in HTTP/2: each that comes in is metered, and whether the client takes what goes out is
//! told to the worker.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::meter::{Flood, Meter};
use crate::edge::watch::Watch;
use crate::edge::wire::Wire;
use crate::front::Stream;

/// What the connection's loop and its bytes have in common.
pub(super) struct Gauge {
    pub(super) meter: RefCell<Meter>,
    pub(super) flood: Cell<Option<Flood>>,
    pub(super) watch: Rc<Watch>,
}

impl Gauge {
    pub(super) fn new(watch: &Rc<Watch>) -> Rc<Self> {
        let meter = RefCell::new(Meter::new());
        Rc::new(Self { meter, flood: Cell::new(None), watch: Rc::clone(watch) })
    }

    /// Whether the client takes none of the bytes that wait for it.
    pub(super) fn is_blocked(&self) -> bool {
        self.watch.is_blocked()
    }
}

pub(super) struct Io {
    pub(super) wire: Rc<RefCell<Wire<Stream>>>,
    pub(super) gauge: Rc<Gauge>,
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { wire, gauge } = &*self;
        if gauge.flood.get().is_some() {
            // The loop ends the connection as soon as it sees that.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let wire = &mut *wire.borrow_mut();
        if wire.inbound.is_empty() {
            ready!(Pin::new(&mut wire.stream).poll_read(context, buffer))?;
        } else {
            let length = wire.inbound.len().min(buffer.remaining());
            buffer.put_slice(&wire.inbound.split_to(length));
            if wire.inbound.is_empty() {
                wire.inbound = BytesMut::new();
            }
        }
        let fed = gauge.meter.borrow_mut().feed(&buffer.filled()[before..], gauge.watch.now());
        if let Err(flood) = fed {
            gauge.flood.set(Some(flood));
            buffer.set_filled(before);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.wire.borrow_mut().stream).poll_write(context, bytes);
        self.gauge.watch.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.wire.borrow_mut().stream).poll_write_vectored(context, slices);
        self.gauge.watch.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.borrow().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.wire.borrow_mut().stream).poll_flush(context);
        self.gauge.watch.wrote(&polled);
        polled
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire.borrow_mut().stream).poll_shutdown(context)
    }
}
