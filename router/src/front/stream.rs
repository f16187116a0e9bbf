//! A client's connection behind what came before HTTP: plain or TLS, with whatever was read ahead.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bulkhead_process::secured::Secured;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are read ahead at once, at most: most of a ClientHello.
const MOST: u64 = 2048;

/// TCP, of which something may have been read ahead. That is read first; afterwards it takes no memory.
#[derive(Debug)]
pub(crate) struct Prefixed {
    ahead: Vec<u8>,
    /// Of these, the number that was taken.
    taken: usize,
    stream: TcpStream,
}

impl Prefixed {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { ahead: Vec::new(), taken: 0, stream }
    }

    /// What was read ahead and is not yet taken.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead[self.taken..]
    }

    /// Reads more ahead. Gives the number of bytes, which is 0 at the end.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) async fn read_ahead(&mut self) -> io::Result<usize> {
        self.ahead.reserve(MOST as usize);
        (&mut self.stream).take(MOST).read_buf(&mut self.ahead).await
    }

    /// Takes that many bytes of what was read ahead.
    pub(super) fn skip(&mut self, length: usize) {
        self.taken += length.min(self.ahead().len());
        if self.taken == self.ahead.len() {
            (self.ahead, self.taken) = (Vec::new(), 0);
        }
    }

    pub(super) fn into_inner(self) -> TcpStream {
        self.stream
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.ahead().len().min(buffer.remaining());
        buffer.put_slice(&self.ahead()[..length]);
        self.skip(length);
        Poll::Ready(Ok(()))
    }
}

/// Writes go straight to the kernel.
impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What HTTP is spoken over.
pub(crate) type Stream = Secured<Prefixed>;

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_was_read_ahead_comes_first_and_once() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let mut client = TcpStream::connect(address).await.expect("connects");
        let mut stream = Prefixed::new(listener.accept().await.expect("accepts").0);
        client.write_all(b"header and more").await.expect("writes");
        while stream.ahead().len() < 15 {
            assert!(stream.read_ahead().await.expect("reads") > 0);
        }
        stream.skip(7);
        client.write_all(b" than that").await.expect("writes");
        client.shutdown().await.expect("closes");
        let (mut text, mut few) = (Vec::new(), [0; 3]);
        loop {
            let length = stream.read(&mut few).await.expect("reads");
            if length == 0 {
                break;
            }
            text.extend_from_slice(&few[..length]);
        }
        assert_eq!(String::from_utf8_lossy(&text), "and more than that");
        assert_eq!(stream.ahead.capacity(), 0);
    }
}
