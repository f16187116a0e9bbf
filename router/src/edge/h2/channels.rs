//! Connections in HTTP/2 to one pod, each of which carries many calls beside each other. One is made when there is none with
//! room, and closed when nobody has used it for long.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bulkhead_process::Connector;
use bulkhead_process::connect::Stream;
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

/// Connections to one pod, of one thread.
const MOST: usize = 16;
/// Bytes of one answer that a pod may send before they are passed on; and of all answers of a connection, enough that no
/// client that takes nothing holds up the others.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
/// What small frames of answers may take beside their bytes: pods are not counted as closely as clients.
const SMALL_FRAMES: usize = 64 * 1024 * 1024;
/// Bytes of one request that wait for the socket, and of an answer's head.
const SEND_BUFFER: usize = 64 * 1024;
const MOST_HEAD: u32 = 64 * 1024;

/// Those to one pod.
#[derive(Default)]
pub(crate) struct Channels {
    open: RefCell<Vec<Rc<Channel>>>,
    /// Held by whoever makes one, so that a burst of calls does not make one each.
    opening: Mutex<()>,
}

struct Channel {
    sender: SendRequest<Bytes>,
    /// `https` where the connection is protected.
    scheme: http::uri::Scheme,
    calls: Cell<usize>,
    /// Since when there is no call, in milliseconds.
    quiet_since: Cell<Option<u64>>,
    /// Bytes that were handed to the kernel.
    written: Rc<Cell<u64>>,
    ended: Rc<Cell<bool>>,
}

/// Why there is no place for a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlace {
    #[error("there are as many connections as there may be, and each has as many calls as its pod takes")]
    Full,
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
}

impl Channels {
    /// A place for one call, and whether its connection was made for it.
    ///
    /// # Errors
    /// Why there is none. Nothing of any call was sent.
    pub(crate) async fn place(
        &self,
        connector: &Connector,
        address: SocketAddr,
        patience: Duration,
    ) -> Result<(Place, bool), NoPlace> {
        if let Some(place) = self.room() {
            return Ok((place, false));
        }
        let opened = timeout(patience, async {
            let _turn = self.opening.lock().await;
            if let Some(place) = self.room() {
                return Ok((place, false));
            }
            if self.open.borrow().len() >= MOST {
                return Err(NoPlace::Full);
            }
            let channel = open(connector, address, patience).await?;
            self.open.borrow_mut().push(Rc::clone(&channel));
            Ok((Place::new(channel), true))
        });
        opened.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    fn room(&self) -> Option<Place> {
        let mut open = self.open.borrow_mut();
        open.retain(|channel| channel.takes_calls());
        open.iter().find(|channel| channel.has_room()).map(|channel| Place::new(Rc::clone(channel)))
    }

    /// Closes what nobody has used since then, and forgets what the pod closed.
    pub(crate) fn sweep(&self, now_ms: u64, kept_since_ms: u64) {
        self.open.borrow_mut().retain(|channel| {
            if channel.calls.get() > 0 {
                channel.quiet_since.set(None);
            } else if channel.quiet_since.get().is_none() {
                channel.quiet_since.set(Some(now_ms));
            }
            channel.takes_calls() && channel.quiet_since.get().is_none_or(|since| since >= kept_since_ms)
        });
    }
}

impl Channel {
    /// Whether the pod has not said that it takes no more.
    fn takes_calls(&self) -> bool {
        let mut sender = self.sender.clone();
        let said = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        !self.ended.get() && !matches!(said, Poll::Ready(Err(_)))
    }

    fn has_room(&self) -> bool {
        self.calls.get() < self.sender.current_max_send_streams()
    }
}

async fn open(connector: &Connector, address: SocketAddr, patience: Duration) -> io::Result<Rc<Channel>> {
    let stream = connector.connect_http2(address, patience).await?;
    let scheme = match &stream {
        Stream::Plain(_) => http::uri::Scheme::HTTP,
        Stream::Tls(_) => http::uri::Scheme::HTTPS,
    };
    let (written, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        // None until the pod has said how many there may be, which it does first of all.
        .initial_max_send_streams(0)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(SMALL_FRAMES)
        .max_send_buffer_size(SEND_BUFFER)
        .max_header_list_size(MOST_HEAD);
    let counted = Counted { stream, written: Rc::clone(&written) };
    let (sender, mut connection) = builder.handshake(counted).await.map_err(io::Error::other)?;
    let settled = Rc::new(Notify::new());
    let (ends, settles) = (Rc::clone(&ended), Rc::clone(&settled));
    tokio::task::spawn_local(async move {
        let driven = poll_fn(|context| {
            let polled = Pin::new(&mut connection).poll(context);
            if connection.max_concurrent_send_streams() > 0 {
                settles.notify_one();
            }
            polled
        });
        if let Err(error) = driven.await {
            tracing::debug!(%address, %error, "a connection to a pod ended with an error");
        }
        ends.set(true);
        settles.notify_one();
    });
    settled.notified().await;
    let (calls, quiet_since) = (Cell::new(0), Cell::new(None));
    Ok(Rc::new(Channel { sender, scheme, calls, quiet_since, written, ended }))
}

/// A place for one call on a connection.
pub(crate) struct Place(Rc<Channel>);

impl Place {
    fn new(channel: Rc<Channel>) -> Self {
        channel.calls.set(channel.calls.get() + 1);
        channel.quiet_since.set(None);
        Self(channel)
    }

    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.0.sender.clone()
    }

    pub(super) fn scheme(&self) -> http::uri::Scheme {
        self.0.scheme.clone()
    }

    /// Bytes that the connection has handed to the kernel so far.
    pub(super) fn written(&self) -> u64 {
        self.0.written.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
    }
}

/// A connection whose bytes are counted as the kernel takes them.
struct Counted {
    stream: Stream,
    written: Rc<Cell<u64>>,
}

impl Counted {
    fn count(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.written.set(self.written.get() + *bytes as u64);
        }
        polled
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(polled)
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
