//! A socket with the bytes that have arrived on it and were not read yet; bytes on their way out; and both as a plain stream
//! for connections that leave HTTP.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::buffers;
use super::turn::{self, Flush};
use crate::message::Holds;

/// Room that a read is worth.
const LEAST: usize = 1024;

pub(super) struct Wire<S> {
    pub(super) stream: S,
    pub(super) inbound: BytesMut,
    pub(super) out: Out,
    /// What is to go out goes at the end of the turn.
    pub(super) is_posted: bool,
    /// Writing failed then.
    pub(super) failed: Option<io::Error>,
    /// Who is told when not all went out.
    task: Option<Waker>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + 'static> Wire<S> {
    pub(super) fn new(stream: S) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            stream,
            inbound: BytesMut::new(),
            out: Out::default(),
            is_posted: false,
            failed: None,
            task: None,
        }))
    }

    /// Reads more, as much as there is room for. 0 is the end.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = self.inbound.capacity() - self.inbound.len();
        if room < LEAST {
            if self.inbound.is_empty() {
                let before = std::mem::replace(&mut self.inbound, buffers::inbound());
                buffers::give_inbound(before);
            } else {
                self.inbound.reserve(buffers::CHUNK);
            }
        }
        poll_read(&mut self.stream, &mut self.inbound, context)
    }

    /// Has what is to go out written at the end of the turn. The task is woken where not all of it goes. False where this
    /// thread's turns have no end.
    pub(super) fn post(&mut self, this: &Rc<RefCell<Self>>, context: &Context<'_>) -> bool {
        let this: Rc<dyn Flush> = Rc::<RefCell<Self>>::clone(this);
        self.is_posted = turn::at_end(this);
        if self.is_posted && !self.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            self.task = Some(context.waker().clone());
        }
        self.is_posted
    }

    /// Writes what is to go out.
    ///
    /// # Errors
    /// What the kernel said, now or at the end of a turn.
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_posted = false;
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if !self.out.is_empty() {
            ready!(self.out.poll_flush(&mut self.stream, context))?;
        }
        self.out.rest();
        Poll::Ready(Ok(()))
    }

    /// Gives the buffer back while there is nothing in it.
    pub(super) fn rest(&mut self) {
        if self.inbound.is_empty() && self.inbound.capacity() > 0 {
            buffers::give_inbound(std::mem::take(&mut self.inbound));
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + 'static> Flush for RefCell<Wire<S>> {
    fn flush(&self) {
        let wire = &mut *self.borrow_mut();
        // It was not waited for, and whoever is done with it has taken it back.
        if !wire.is_posted {
            return;
        }
        let Some(task) = wire.task.clone() else { return };
        match wire.poll_flush(&mut Context::from_waker(&task)) {
            Poll::Ready(Ok(())) => return,
            Poll::Ready(Err(error)) => wire.failed = Some(error),
            Poll::Pending => {}
        }
        task.wake();
    }
}

/// Reads to the end what nobody wants, up to `limit` bytes.
pub(super) async fn discard<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    wire: &RefCell<Wire<S>>,
    limit: usize,
) {
    let mut left = limit;
    while left > 0 {
        let filled = poll_fn(|context| {
            let wire = &mut *wire.borrow_mut();
            wire.inbound.clear();
            wire.poll_fill(context)
        });
        match filled.await {
            Ok(bytes @ 1..) => left = left.saturating_sub(bytes),
            Ok(0) | Err(_) => return,
        }
    }
}

/// Reads into a buffer, as much as it has room for. 0 is the end.
pub(super) fn poll_read<S: AsyncRead + Unpin>(
    stream: &mut S,
    buffer: &mut impl BufMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    // It keeps nothing between two polls.
    pin!(stream.read_buf(buffer)).poll(context)
}

/// Bytes on their way out: a head or what is small, then one large piece, then what ends it. One write takes all of it.
#[derive(Default)]
pub(super) struct Out {
    pub(super) small: Vec<u8>,
    written: usize,
    pub(super) large: Bytes,
    tail: &'static [u8],
    /// Some of it was handed to the kernel.
    pub(super) is_begun: bool,
    /// Let go of when it is written.
    pub(super) holds: Option<Holds>,
}

/// Pieces that are copied: cheaper up to here than to have the kernel gather them.
const SMALL: usize = 4 * 1024;

impl Out {
    /// With a buffer of this thread.
    pub(super) fn new() -> Self {
        Self { small: buffers::out(), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty() && self.tail.is_empty()
    }

    /// Whether more should wait until this is written.
    pub(super) fn is_full(&self) -> bool {
        !self.large.is_empty() || self.small.len() >= 4 * SMALL
    }

    /// Puts a piece behind what there is, with `tail` behind it. Only where it is not full.
    pub(super) fn push(&mut self, piece: &Bytes, tail: &'static [u8]) {
        if piece.len() <= SMALL {
            self.small.extend_from_slice(piece);
            self.small.extend_from_slice(tail);
        } else {
            self.large = piece.clone();
            self.tail = tail;
        }
    }

    /// Writes all of it.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let small = &self.small[self.written..];
            let written = if self.large.is_empty() && self.tail.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(context, small))?
            } else {
                let slices = [IoSlice::new(small), IoSlice::new(&self.large), IoSlice::new(self.tail)];
                ready!(Pin::new(&mut *stream).poll_write_vectored(context, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_begun = true;
            self.advance(written);
        }
        // A stream that encrypts may hold bytes back until it is told to write them.
        Pin::new(stream).poll_flush(context)
    }

    fn advance(&mut self, written: usize) {
        let small = written.min(self.small.len() - self.written);
        self.written += small;
        let large = (written - small).min(self.large.len());
        self.large.advance(large);
        self.tail = &self.tail[written - small - large..];
        if self.written == self.small.len() {
            self.small.clear();
            self.written = 0;
        }
    }

    /// Gives back the buffer and what else it holds, once all is written.
    pub(super) fn rest(&mut self) {
        if self.is_empty() && self.small.capacity() > 0 {
            buffers::give_out(std::mem::take(&mut self.small));
        }
        self.holds = None;
    }
}

/// The bytes of a connection that has left HTTP: what has arrived already, then what comes.
pub(super) struct Tap<S>(pub(super) Rc<RefCell<Wire<S>>>);

impl<S: AsyncRead + Unpin> AsyncRead for Tap<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        if wire.inbound.is_empty() {
            return Pin::new(&mut wire.stream).poll_read(context, buffer);
        }
        let length = wire.inbound.len().min(buffer.remaining());
        buffer.put_slice(&wire.inbound.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tap<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes at each write.
    struct Slow {
        taken: Vec<u8>,
        at_once: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let length = bytes.len().min(self.at_once);
            self.taken.extend_from_slice(&bytes[..length]);
            Poll::Ready(Ok(length))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            self.poll_write(context, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Takes all bytes at once, as TLS does, and is done with them at the second look.
    #[derive(Default)]
    struct Late {
        asked: bool,
    }

    impl AsyncRead for Late {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Late {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if std::mem::replace(&mut self.asked, true) { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_goes_out_late_is_let_go_of_all_the_same() {
        let wire = Wire::new(Late::default());
        let wire = &mut *wire.borrow_mut();
        wire.out = Out { small: b"answer".to_vec(), ..Out::default() };
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(wire.poll_flush(&mut context).is_pending());
        assert!(wire.out.is_empty() && wire.out.small.capacity() > 0, "it waits, and keeps what it has");
        assert!(wire.poll_flush(&mut context).is_ready());
        assert_eq!(wire.out.small.capacity(), 0);
    }

    #[test]
    fn bytes_go_out_in_order_however_few_are_taken_at_once() {
        for large in [1, SMALL, SMALL + 1, 3 * SMALL] {
            for at_once in [1, 7, 4_099, 100_000] {
                let mut out = Out { small: b"head".to_vec(), ..Out::default() };
                out.push(&Bytes::from(vec![b'x'; large]), b"\r\n");
                let mut slow = Slow { taken: Vec::new(), at_once };
                let polled = out.poll_flush(&mut slow, &mut Context::from_waker(std::task::Waker::noop()));
                assert!(matches!(polled, Poll::Ready(Ok(()))) && out.is_empty());
                let expected = [b"head", &vec![b'x'; large][..], b"\r\n"].concat();
                assert!(slow.taken == expected, "{large} bytes by {at_once}");
            }
        }
    }
}
