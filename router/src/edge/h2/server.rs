//! One connection of a client in HTTP/2: streams are served beside each other, each as a request of its own, until either
//! side ends the connection. What the client may take of this thread is kept to here.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bulkhead_http1::{Downgraded, Malformed, downgrade};
use bulkhead_process::clock;
use bulkhead_protocol::grpc;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use http::Method;
use tokio::time::{Sleep, sleep, timeout};

use super::Beginning;
use super::answering::{self, Unsent};
use super::arriving::Body;
use super::io::{Gauge, Io};
use super::meter::Flood;
use crate::edge::request_body::Arriving;
use crate::edge::server::{LINGER, LINGER_BYTES};
use crate::edge::watch::{Kick, Phase, Watch};
use crate::edge::wire::{Wire, discard};
use crate::front::Stream;
use crate::message::{Answer, Head, Holds, Request};

/// Bytes of one request's body, and of all bodies of one connection, that a client may send before they are read.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// What small frames that were not read yet take beside their bytes: 256 bytes each.
const SMALL_FRAMES: usize = 2 * 1024 * 1024;
/// Bytes of one answer that wait for the socket.
const SEND_BUFFER: usize = 32 * 1024;
/// Streams that are taken back before they are looked at: more than the meter lets through.
const MOST_UNSEEN: usize = 1000;
/// How long a client may take to see that nothing more is taken, once there is nothing more under way.
const FAREWELL: Duration = Duration::from_secs(1);

/// What one connection may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Requests under way.
    pub(crate) streams: u32,
    /// Bytes of a head, counted as RFC 9113 does (section 10.5.1).
    pub(crate) header_bytes: u32,
    /// How long an answer may wait for its client to take any of it.
    pub(crate) idle_timeout: Duration,
}

/// Why the router ended a connection, or a stream, by its client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    RapidReset,
    ControlFlood,
    /// Of what the library keeps count of: CONTINUATION, streams that end in a fault, DATA of a few bytes.
    Excess,
    Malformed,
    SlowReader,
}

impl Fault {
    /// As a label of metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RapidReset => "RapidReset",
            Self::ControlFlood => "ControlFlood",
            Self::Excess => "Excess",
            Self::Malformed => "Malformed",
            Self::SlowReader => "SlowReader",
        }
    }

    fn of(error: &h2::Error) -> Option<Self> {
        match error.reason() {
            _ if !error.is_library() => None,
            Some(h2::Reason::NO_ERROR) => None,
            Some(h2::Reason::ENHANCE_YOUR_CALM) => Some(Self::Excess),
            Some(_) | None => Some(Self::Malformed),
        }
    }
}

impl From<Flood> for Fault {
    fn from(flood: Flood) -> Self {
        match flood {
            Flood::Resets => Self::RapidReset,
            Flood::Control => Self::ControlFlood,
        }
    }
}

/// Serves one connection, which begins with the preface, until either side ends it. `refuse` says what a client is told
/// whose request cannot be read, and `blame` hears of clients' faults.
pub(crate) async fn serve_http2<F, Fut>(
    Beginning(wire): Beginning,
    allowed: Allowed,
    watch: Rc<Watch>,
    refuse: impl Fn(Malformed) -> Answer,
    blame: impl Fn(Fault),
    serve: F,
) where
    F: Fn(Request) -> Fut,
    Fut: Future<Output = Answer>,
{
    let gauge = Gauge::new(&watch);
    let talk = Talk { gauge, allowed, refuse, blame, serve };
    let mut talking = pin!(talk.run(&wire));
    poll_fn(|context| {
        watch.attend(context);
        match watch.kicked() {
            Kick::Abort => Poll::Ready(()),
            Kick::None | Kick::Graceful => clock::one_moment(|| talking.as_mut().poll(context)),
        }
    })
    .await;
}

struct Talk<R, B, F> {
    gauge: Rc<Gauge>,
    allowed: Allowed,
    refuse: R,
    blame: B,
    serve: F,
}

type Served<'a> = FuturesUnordered<LocalBoxFuture<'a, Option<Holds>>>;

impl<R, B, F, Fut> Talk<R, B, F>
where
    R: Fn(Malformed) -> Answer,
    B: Fn(Fault),
    F: Fn(Request) -> Fut,
    Fut: Future<Output = Answer>,
{
    async fn run(&self, wire: &Rc<RefCell<Wire<Stream>>>) {
        self.gauge.watch.enter(Phase::Head);
        let io = Io { wire: Rc::clone(wire), gauge: Rc::clone(&self.gauge) };
        let fault = match self.builder().handshake(io).await {
            Ok(connection) => self.converse(connection).await,
            Err(error) => Fault::of(&error),
        };
        if let Some(fault) = fault {
            (self.blame)(fault);
            // Closing on unread bytes would reset the connection, and the last word with it.
            let _ = timeout(LINGER, discard(wire, LINGER_BYTES)).await;
        }
    }

    fn builder(&self) -> Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(self.allowed.streams)
            .max_header_list_size(self.allowed.header_bytes)
            .data_frame_budget(SMALL_FRAMES)
            .max_send_buffer_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(MOST_UNSEEN);
        builder
    }

    /// Serves streams until the connection is over. Whose fault that is, if it is the client's.
    async fn converse(&self, connection: Connection<Io, Bytes>) -> Option<Fault> {
        let mut lasting = Lasting { connection, ends: false, cut: false, farewell: None };
        let mut served = Served::new();
        // What answered requests hold, until the bytes are written.
        let mut held = Vec::new();
        poll_fn(|context| {
            loop {
                while let Poll::Ready(stream) = lasting.poll_stream(&self.gauge, context) {
                    match stream {
                        Some(Ok((request, respond))) => served.push(Box::pin(self.stream(request, respond))),
                        Some(Err(error)) => return Poll::Ready(self.fault(&error)),
                        None => return Poll::Ready(self.gauge.flood.get().map(Fault::from)),
                    }
                }
                // What it sends goes out when the connection is polled again, which it has itself woken for.
                match served.poll_next_unpin(context) {
                    Poll::Ready(Some(holds)) => held.extend(holds),
                    Poll::Ready(None) | Poll::Pending => break,
                }
            }
            if !self.gauge.is_blocked() {
                held.clear();
            }
            self.settle(served.is_empty());
            lasting.poll_farewell(served.is_empty(), context).map(|()| None)
        })
        .await
    }

    fn fault(&self, error: &h2::Error) -> Option<Fault> {
        tracing::debug!(%error, "a client's connection ended with an error");
        self.gauge.flood.get().map(Fault::from).or_else(|| Fault::of(error))
    }

    /// Tells the worker what the connection is doing.
    fn settle(&self, quiet: bool) {
        let watch = &self.gauge.watch;
        let phase = match quiet {
            _ if self.gauge.meter.borrow().is_in_head() => Phase::Head,
            true => Phase::Idle,
            false => Phase::Busy,
        };
        if watch.phase().0 != phase {
            watch.enter(phase);
        }
    }

    /// Serves one request.
    async fn stream(
        &self,
        request: http::Request<RecvStream>,
        respond: SendResponse<Bytes>,
    ) -> Option<Holds> {
        let respond = Rc::new(RefCell::new(respond));
        let (parts, body) = request.into_parts();
        let head_alone = parts.method == Method::HEAD;
        let answer = match downgrade(&parts) {
            Err(malformed) => Some((self.refuse)(malformed)),
            Ok(Downgraded { method, target, fields, length, expects_continue }) => {
                let waits = expects_continue.then(|| Rc::clone(&respond));
                let body = Arriving::Http2(Box::new(Body::new(body, length, waits)));
                let grpc = grpc::is_grpc(fields.get("content-type"));
                let head = Head { method, target, fields, http10: false, grpc };
                // In a place of its own, as for HTTP/1.1.
                let mut serving = Box::pin((self.serve)(Request { head, body, upgrade: None }));
                poll_fn(|context| unless_gone(&respond, serving.as_mut(), context)).await
            }
        };
        let Allowed { idle_timeout, .. } = self.allowed;
        let sent = answering::send(&respond, answer?, head_alone, &self.gauge, idle_timeout).await;
        if let Err(error) = &sent {
            tracing::debug!(%error, "an answer was not sent to its end");
            if let Unsent::NotTaken = error {
                (self.blame)(Fault::SlowReader);
            }
        }
        let sent = sent.ok()?;
        self.gauge.meter.borrow_mut().answered();
        sent
    }
}

/// None where the client takes its request back, or leaves, before there is an answer.
fn unless_gone<Fut: Future<Output = Answer>>(
    respond: &RefCell<SendResponse<Bytes>>,
    serving: Pin<&mut Fut>,
    context: &mut Context<'_>,
) -> Poll<Option<Answer>> {
    match serving.poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => respond.borrow_mut().poll_reset(context).map(|_| None),
    }
}

/// A connection, and how far it is on the way to its end.
struct Lasting {
    connection: Connection<Io, Bytes>,
    /// The client was told that nothing more is taken.
    ends: bool,
    /// It was told to go.
    cut: bool,
    farewell: Option<Pin<Box<Sleep>>>,
}

type Accepted = Option<Result<(http::Request<RecvStream>, SendResponse<Bytes>), h2::Error>>;

impl Lasting {
    /// The next stream; none when the connection is over.
    fn poll_stream(&mut self, gauge: &Gauge, context: &mut Context<'_>) -> Poll<Accepted> {
        if !self.ends && gauge.watch.kicked() == Kick::Graceful {
            self.connection.graceful_shutdown();
            self.ends = true;
        }
        let polled = self.connection.poll_accept(context);
        if polled.is_pending() && gauge.flood.get().is_some() && !self.cut {
            self.cut = true;
            self.connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
            return self.connection.poll_accept(context);
        }
        polled
    }

    /// Comes when the client was told that nothing more is taken, nothing is under way, and it has had its time to see that.
    fn poll_farewell(&mut self, quiet: bool, context: &mut Context<'_>) -> Poll<()> {
        if !self.ends || !quiet {
            self.farewell = None;
            return Poll::Pending;
        }
        let farewell = self.farewell.get_or_insert_with(|| Box::pin(sleep(FAREWELL)));
        ready!(farewell.as_mut().poll(context));
        Poll::Ready(())
    }
}
