//! The one kind of connection that is made, plain or TLS: between routers, operator and cell-runtimes, and from routers to
//! destinations. Which address to connect to, and when to try again, is the caller's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use crate::secured::Secured;
use crate::{socket, tls};

/// Makes connections, all in the same way. Equal ones make connections that protect the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connector(Kind);

#[derive(Clone, Debug, Default, PartialEq)]
enum Kind {
    #[default]
    Plain,
    Tls(tls::Client, ServerName<'static>),
    /// None is made, for that reason.
    Closed(Arc<str>),
}

impl Connector {
    /// Plain TCP.
    pub fn plain() -> Self {
        Self(Kind::Plain)
    }

    /// TLS to a server whose certificate carries that name, which may be an IP address.
    pub fn tls(client: tls::Client, name: ServerName<'static>) -> Self {
        Self(Kind::Tls(client, name))
    }

    /// Makes none, and says why: for what may not be spoken to in the clear while there are no certificates.
    pub fn closed(why: &str) -> Self {
        Self(Kind::Closed(why.into()))
    }

    /// Connects, TLS included. A side that takes nothing of what is sent to it is given up after [`socket::GONE`].
    ///
    /// # Errors
    /// What the kernel or TLS said, or `TimedOut` after `timeout`.
    pub async fn connect(&self, address: SocketAddr, timeout: Duration) -> io::Result<Stream> {
        let connected = tokio::time::timeout(timeout, self.open(address)).await;
        connected.unwrap_or_else(|_| {
            let late = format!("no connection to {address} within {timeout:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, late))
        })
    }

    /// As [`Self::connect`], to whoever speaks HTTP/2: in the clear that is known beforehand, and over TLS agreed on (ALPN,
    /// RFC 9113, section 3.2).
    ///
    /// # Errors
    /// As [`Self::connect`]; and `Unsupported` from who speaks TLS and no HTTP/2.
    pub async fn connect_http2(&self, address: SocketAddr, timeout: Duration) -> io::Result<Stream> {
        let Kind::Tls(client, name) = &self.0 else { return self.connect(address, timeout).await };
        let stream = Self::tls(client.for_http2(), name.clone()).connect(address, timeout).await?;
        if stream.agreed_protocol() == Some(tls::server::HTTP2) {
            return Ok(stream);
        }
        let why = format!("{address} does not speak HTTP/2 over TLS (ALPN h2)");
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    async fn open(&self, address: SocketAddr) -> io::Result<Stream> {
        let tls = match &self.0 {
            Kind::Plain => None,
            Kind::Tls(client, name) => Some((client, name)),
            Kind::Closed(why) => return Err(io::Error::other(why.to_string())),
        };
        let stream = TcpStream::connect(address).await?;
        socket::set_up(&stream, Some(socket::GONE))?;
        match tls {
            None => Ok(Stream::Plain(stream)),
            Some((client, name)) => {
                // Boxed, so that plain connections do not carry its state about.
                let stream = Box::pin(client.shake_hands(stream, name.clone())).await?;
                Ok(Stream::tls(stream))
            }
        }
    }
}

/// Speaks HTTP/1.1 as a client. The connection is driven by a task of its own, which ends with the connection;
/// dropping the sender and the answer's body closes it.
///
/// # Errors
/// When hyper refuses the connection.
pub async fn http1<B>(stream: Stream) -> hyper::Result<SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection ended with an error");
        }
    });
    Ok(sender)
}

/// Says that the body comes in chunks where its length is unknown: hyper would take a GET with such a body for one
/// without, and send none of it.
pub fn say_chunked<B: Body>(request: &mut Request<B>) {
    if request.body().size_hint().exact().is_none() {
        request.headers_mut().insert(header::TRANSFER_ENCODING, header::HeaderValue::from_static("chunked"));
    }
}

/// A connection, whatever protects it.
pub type Stream = Secured<TcpStream>;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::port::Port;

    #[tokio::test]
    async fn bytes_go_both_ways_without_delay_and_silence_is_noticed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let mut client = Connector::plain().connect(address, Duration::from_secs(5)).await.expect("connects");
        let Stream::Plain(inner) = &client else { unreachable!("is plain") };
        assert!(inner.nodelay().expect("is connected"));
        let socket = socket2::SockRef::from(inner);
        assert!(socket.keepalive().expect("is connected"));
        assert_eq!(socket.tcp_user_timeout().expect("is connected"), Some(socket::GONE));
        let (mut server, _) = listener.accept().await.expect("accepts");
        client.write_all(b"ping").await.expect("writes");
        let mut buffer = [0; 4];
        server.read_exact(&mut buffer).await.expect("reads");
        server.write_all(&buffer).await.expect("writes");
        client.read_exact(&mut buffer).await.expect("reads");
        assert_eq!(&buffer, b"ping");
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_at_once() {
        let closed = Port::free().expect("one is free");
        let connected = Connector::plain().connect(closed.address, Duration::from_secs(5)).await;
        let error = connected.expect_err("is refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
