//! One client that sends a request when it has the answer to the last, over a connection that is kept.

use std::io;
use std::net::SocketAddr;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::wire::{self, Message, Request};

pub(crate) struct Client {
    server: SocketAddr,
    stream: Option<TcpStream>,
    buffer: BytesMut,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { server, stream: None, buffer: BytesMut::new() }
    }

    /// Sends the request of that number and gives the whole answer. The connection is made for the first, and anew after
    /// one that failed or whose answer closes it.
    ///
    /// # Errors
    /// When there is no connection or no whole answer.
    pub(crate) async fn exchange(&mut self, request: &Request, number: u64) -> io::Result<Message> {
        self.connect().await?;
        // Taken, so that one that is in the middle of something is not used again.
        let mut stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        self.buffer.clear();
        let (first, rest) = request.pieces(number);
        stream.write_all(&first).await?;
        stream.write_all(&rest).await?;
        let answer = wire::read(&mut stream, &mut self.buffer).await?;
        let answer = answer.ok_or(io::ErrorKind::ConnectionReset)?;
        if !answer.closes() {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    /// Makes the connection, unless there is one.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) async fn connect(&mut self) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.server).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        Ok(())
    }
}
