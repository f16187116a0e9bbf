//! Connections to one pod of a service: in HTTP/1.1 one for each call, of which some are kept for later; in HTTP/2 a few for
//! all calls.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_process::connect::{self, Stream};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::body::Body;

/// Kept connections of one pod.
const MAX_IDLE: usize = 256;
/// A kept connection older than this may have met the service's own idle time-out, and is not used again.
const MAX_IDLE_MS: u64 = 4_000;
/// Calls of one connection in HTTP/2: no service should take fewer (RFC 9113, section 6.5.2).
const MAX_CALLS: usize = 100;
/// Bytes of one answer that a service may send before they are passed on; and of all answers of a connection, so that none
/// that nobody takes holds up the others.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// What a call is sent through.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(Shared),
}

impl Sender {
    pub(crate) async fn http1(stream: Stream) -> io::Result<Self> {
        connect::http1(stream).await.map(Self::Http1).map_err(io::Error::other)
    }

    /// Comes back when it takes a call.
    pub(crate) async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(shared) => shared.sender.ready().await,
        }
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(shared) => shared.sender.try_send_request(request).await,
        }
    }
}

/// A place for one call on a connection in HTTP/2.
pub(crate) struct Shared {
    sender: http2::SendRequest<Body>,
    calls: Arc<AtomicUsize>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections in HTTP/1.1 that nobody uses now.
#[derive(Default)]
pub(crate) struct Idle(Mutex<Vec<(http1::SendRequest<Body>, u64)>>);

impl Idle {
    /// The connection kept last, if one is young enough and still open.
    pub(crate) fn take(&self, now_ms: u64) -> Option<Sender> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((sender, since_ms)) = idle.pop() {
            if now_ms.saturating_sub(since_ms) > MAX_IDLE_MS {
                // Those beneath it are older still.
                idle.clear();
                return None;
            }
            if !sender.is_closed() {
                return Some(Sender::Http1(sender));
            }
        }
        None
    }

    /// One in HTTP/2 is kept where it is shared.
    pub(crate) fn keep(&self, sender: Sender, now_ms: u64) {
        let Sender::Http1(sender) = sender else { return };
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE && !sender.is_closed() {
            idle.push((sender, now_ms));
        }
    }
}

/// Connections in HTTP/2, each with its calls.
#[derive(Default)]
pub(crate) struct Multiplexed(Mutex<Vec<(http2::SendRequest<Body>, Arc<AtomicUsize>)>>);

impl Multiplexed {
    /// A place on a connection that works. Beside the first, those without a call are closed.
    pub(crate) fn take(&self) -> Option<Sender> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first = true;
        open.retain(|(sender, calls)| {
            let stays = !sender.is_closed() && (first || calls.load(Ordering::Relaxed) > 0);
            first &= !stays;
            stays
        });
        let has_room = open.iter().find(|(_, calls)| calls.load(Ordering::Relaxed) < MAX_CALLS);
        has_room.map(|(sender, calls)| place(sender, calls))
    }

    /// A place on a new connection, which others share from now on.
    pub(crate) async fn open(&self, stream: Stream) -> io::Result<Sender> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended with an error");
            }
        });
        let calls = Arc::new(AtomicUsize::new(0));
        let place = place(&sender, &calls);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((sender, calls));
        Ok(place)
    }
}

fn place(sender: &http2::SendRequest<Body>, calls: &Arc<AtomicUsize>) -> Sender {
    calls.fetch_add(1, Ordering::Relaxed);
    Sender::Http2(Shared { sender: sender.clone(), calls: Arc::clone(calls) })
}

/// Whether the service did not look at what was sent, by its own word (RFC 9113, sections 6.8 and 8.7).
pub(crate) fn is_untouched(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (refused || error.is_go_away())
    })
}
