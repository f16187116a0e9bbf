//! A client's stream as hyper has it. It notes when bytes come and go, and where hyper refuses a head that it cannot
//! read, which it does without a word, it says why.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bulkhead_protocol::Reason;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;

use super::last::last_answer;
use super::server::Watch;
use crate::message::Answer;

/// Bytes that hyper gets at once, at most. What fills its buffer, whose first size is one more, makes it take twice as
/// much and keep that for as long as the connection lives: thousands of clients with large bodies would have many times
/// the memory that is reserved for these.
const MOST: u64 = 8 * 1024 - 1;

pub(super) struct Watched<R> {
    /// Its limit is that of the next read.
    stream: Take<TcpStream>,
    watch: Arc<Watch>,
    refuse: R,
    /// What is left to write of our own refusal.
    refusal: Option<Bytes>,
}

impl<R: Fn(Reason) -> Answer> Watched<R> {
    pub(super) fn new(stream: TcpStream, watch: Arc<Watch>, refuse: R) -> Self {
        Self { stream: stream.take(MOST), watch, refuse, refusal: None }
    }

    /// Whether these bytes are a refusal of hyper's, in the place of which our own is written. It is the only answer that
    /// is written between the first byte of a head and the request: others come when there is a request, or right after
    /// it, and one that waits for the client counts as blocked.
    fn refuses(&mut self, bytes: &[u8]) -> bool {
        if self.refusal.is_some() {
            return true;
        }
        let reason = match bytes.get(..12) {
            Some(b"HTTP/1.1 400") => Reason::Malformed,
            Some(b"HTTP/1.1 414" | b"HTTP/1.1 431") => Reason::HeadTooLarge,
            _ => return false,
        };
        if !self.watch.reads_a_head() {
            return false;
        }
        self.refusal = Some(last_answer((self.refuse)(reason)));
        true
    }

    /// Writes our refusal in the place of `length` bytes of hyper's.
    fn poll_refuse(&mut self, context: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        while let Some(left) = self.refusal.as_mut().filter(|left| left.has_remaining()) {
            let written = ready!(Pin::new(self.stream.get_mut()).poll_write(context, left))?;
            left.advance(written);
        }
        Poll::Ready(Ok(length))
    }
}

impl<R: Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        self.stream.set_limit(MOST);
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.watch.bytes_arrived();
        }
        polled
    }
}

impl<R: Fn(Reason) -> Answer + Unpin> AsyncWrite for Watched<R> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = if self.refuses(bytes) {
            self.poll_refuse(context, bytes.len())
        } else {
            Pin::new(self.stream.get_mut()).poll_write(context, bytes)
        };
        self.watch.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = if self.refuses(slices.first().map_or(&[], |first| first)) {
            self.poll_refuse(context, slices.iter().map(|slice| slice.len()).sum())
        } else {
            Pin::new(self.stream.get_mut()).poll_write_vectored(context, slices)
        };
        self.watch.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }
}
