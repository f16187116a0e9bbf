//! What bytes of a connection go through: the socket itself, or TLS over it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

pub(crate) enum Wire {
    Plain(TcpStream),
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Wire {
    /// A client's, which shakes hands with whoever has that name before its first byte.
    ///
    /// # Errors
    /// When TLS refuses the name.
    pub(crate) fn client(
        stream: TcpStream,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    ) -> io::Result<Self> {
        let Some((config, name)) = tls else { return Ok(Self::Plain(stream)) };
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self::Client(Box::new(StreamOwned::new(connection, stream))))
    }

    /// A server's.
    ///
    /// # Errors
    /// When TLS is not set up as it has to be.
    pub(crate) fn server(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let Some(config) = tls else { return Ok(Self::Plain(stream)) };
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::Server(Box::new(StreamOwned::new(connection, stream))))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => &stream.sock,
            Self::Server(stream) => &stream.sock,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Client(stream) => stream.read(buffer),
            Self::Server(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Client(stream) => stream.write(bytes),
            Self::Server(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Client(stream) => stream.flush(),
            Self::Server(stream) => stream.flush(),
        }
    }
}
