//! The client's side of the edge: one connection from its first byte to its last. It turns what hyper reads into our
//! requests and our answers into what hyper writes; limits and time-outs of connections are kept here, requests' are not.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bulkhead_process::Monotonic;
use bulkhead_protocol::Reason;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::body::Arriving;
use super::upgrade::{Afterwards, Upgrade};
use super::watched::Watched;
use crate::message::{Answer, AnswerBody, Head, Request};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Between requests, or before the first.
    Idle = 0,
    /// Part of a head has arrived.
    Head = 1,
    /// A request is under way, or the connection has left HTTP.
    Busy = 2,
}

/// What the worker may tell a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kick {
    None = 0,
    /// Finish what is under way, then close.
    Graceful = 1,
    /// Close now.
    Abort = 2,
}

/// What a worker sees of a connection, and how it ends it. It costs a request two stores and no timer.
pub(crate) struct Watch {
    phase: AtomicU8,
    since: AtomicU64,
    /// Since when the client takes no bytes; `FLOWING` while it does.
    blocked_since: AtomicU64,
    kick: AtomicU8,
    kicked: Notify,
    clock: Monotonic,
}

const FLOWING: u64 = u64::MAX;

impl Watch {
    pub(crate) fn new(clock: Monotonic) -> Arc<Self> {
        Arc::new(Self {
            phase: AtomicU8::new(Phase::Idle as u8),
            since: AtomicU64::new(clock.millis()),
            blocked_since: AtomicU64::new(FLOWING),
            kick: AtomicU8::new(Kick::None as u8),
            kicked: Notify::new(),
            clock,
        })
    }

    /// The phase and for how many milliseconds it has lasted.
    pub(crate) fn phase(&self) -> (Phase, u64) {
        let phase = match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Head,
            _ => Phase::Busy,
        };
        (phase, self.clock.millis().saturating_sub(self.since.load(Ordering::Relaxed)))
    }

    /// For how many milliseconds the client has taken none of the bytes that wait for it.
    pub(crate) fn blocked(&self) -> u64 {
        match self.blocked_since.load(Ordering::Relaxed) {
            FLOWING => 0,
            since => self.clock.millis().saturating_sub(since),
        }
    }

    /// Whether part of a head has arrived while no answer waits for the client to take it.
    pub(super) fn reads_a_head(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == Phase::Head as u8
            && self.blocked_since.load(Ordering::Relaxed) == FLOWING
    }

    pub(super) fn wrote<T>(&self, polled: &Poll<T>) {
        let was_flowing = self.blocked_since.load(Ordering::Relaxed) == FLOWING;
        if polled.is_ready() && !was_flowing {
            self.blocked_since.store(FLOWING, Ordering::Relaxed);
        } else if polled.is_pending() && was_flowing {
            self.blocked_since.store(self.clock.millis(), Ordering::Relaxed);
        }
    }

    pub(crate) fn kick(&self, kick: Kick) {
        self.kick.fetch_max(kick as u8, Ordering::Relaxed);
        self.kicked.notify_one();
    }

    /// Comes back when the connection is to be closed now. Where another protocol than HTTP may be ended, only its two
    /// sides know, so that a graceful end is no matter of ours.
    async fn aborted(&self) {
        while self.kick.load(Ordering::Relaxed) != Kick::Abort as u8 {
            self.kicked.notified().await;
        }
    }

    fn enter(&self, phase: Phase) {
        self.since.store(self.clock.millis(), Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub(super) fn bytes_arrived(&self) {
        if self.phase.load(Ordering::Relaxed) == Phase::Idle as u8 {
            self.enter(Phase::Head);
        }
    }
}

/// Serves one connection until either side ends it, whether in HTTP or after it has left it. `refuse` says what a client
/// is told whose request cannot be read.
pub(crate) async fn serve_connection<F, Fut>(
    stream: TcpStream,
    peer: IpAddr,
    header_bytes: u32,
    watch: Arc<Watch>,
    refuse: impl Fn(Reason) -> Answer + Send + Unpin + 'static,
    serve: F,
) where
    F: Fn(Request) -> Fut,
    Fut: Future<Output = Answer>,
{
    let limit = usize::try_from(header_bytes).unwrap_or(usize::MAX);
    let under_way = Rc::new(Cell::new(0_u32));
    let afterwards = Afterwards::default();
    let service = service_fn(|request: hyper::Request<Incoming>| {
        watch.enter(Phase::Busy);
        let answered = serve(from_hyper(request, peer, &afterwards));
        let busy = Busy::new(&watch, &under_way);
        async move { Ok::<_, Infallible>(to_hyper(answered.await, busy)) }
    });
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&watch), refuse));
    let connection =
        http1::Builder::new().max_header_size(limit).serve_connection(io, service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            ended = connection.as_mut() => match ended {
                Ok(()) => break,
                Err(error) => return tracing::debug!(%error, %peer, "a client's connection ended with an error"),
            },
            () = watch.kicked.notified() => match watch.kick.load(Ordering::Relaxed) {
                kick if kick == Kick::Abort as u8 => return,
                kick if kick == Kick::Graceful as u8 => connection.as_mut().graceful_shutdown(),
                _ => {}
            }
        }
    }
    let upgraded = afterwards.borrow_mut().take();
    if let Some(upgraded) = upgraded {
        watch.enter(Phase::Busy);
        tokio::select! {
            () = upgraded => {}
            () = watch.aborted() => {}
        }
    }
}

/// Marks the connection idle again when the answer is written or given up.
struct Busy {
    watch: Arc<Watch>,
    under_way: Rc<Cell<u32>>,
}

impl Busy {
    fn new(watch: &Arc<Watch>, under_way: &Rc<Cell<u32>>) -> Self {
        under_way.set(under_way.get() + 1);
        Self { watch: Arc::clone(watch), under_way: Rc::clone(under_way) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.watch.enter(Phase::Idle);
        }
    }
}

/// An answer's body together with the mark that a request is under way.
struct Tracked {
    body: AnswerBody,
    _busy: Busy,
}

impl hyper::body::Body for Tracked {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, hyper::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

fn from_hyper(mut request: hyper::Request<Incoming>, peer: IpAddr, afterwards: &Afterwards) -> Request {
    let upgrade = Upgrade::asked(&mut request, afterwards);
    let (parts, body) = request.into_parts();
    let head = Head {
        method: parts.method,
        target: parts.uri,
        headers: parts.headers,
        http10: parts.version == http::Version::HTTP_10,
    };
    Request { head, body: Arriving::new(body), peer, upgrade }
}

fn to_hyper(answer: Answer, busy: Busy) -> hyper::Response<Tracked> {
    let mut response = hyper::Response::new(Tracked { body: answer.body, _busy: busy });
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}
