//! The upstream side of the edge: one HTTP/1.1 connection to a pod or a destination, and what can go wrong on it, told apart
//! by whether anything was sent.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bulkhead_http1::{
    AnswerReader, Chunk, Decoder, Fields, Framing, Known, LAST_CHUNK, Piece, field, length, number_field,
    request_line,
};
use bulkhead_process::Connector;
use bulkhead_process::connect::Stream;
use http::{Method, StatusCode};

use super::outgoing::Outgoing;
use super::sending::{AttemptError, UpstreamHead};
use super::upgrade::UpgradedCell;
use super::upstream::{Source, UpstreamBody};
use super::wire::{Out, Wire};
use super::{buffers, h2};

/// Bytes of an answer's head.
const MOST_HEAD: usize = 64 * 1024;
const CHUNKED: &[u8] = b"transfer-encoding: chunked\r\n";

/// A connection to one pod. Whoever reads an answer's body has a part in it.
pub(crate) struct Connection(Rc<Upstream>);

/// What is sent on a connection: a request's line and fields but for those that say how its body ends.
pub(crate) struct Message {
    pub(crate) method: Method,
    head: Vec<u8>,
    pub(crate) asks_upgrade: bool,
    /// What was checked before it goes may not get old.
    pub(crate) goes_at_once: bool,
    /// Where it goes in HTTP/2, in the place of the lines.
    pub(super) http2: Option<Box<h2::Head>>,
}

impl Message {
    pub(crate) fn new(method: &Method, target: &str) -> Self {
        let mut head = buffers::out();
        request_line(&mut head, method, target);
        Self { method: method.clone(), head, asks_upgrade: false, goes_at_once: false, http2: None }
    }

    /// One that goes over HTTP/2.
    pub(crate) fn over_http2(method: &Method, target: &str) -> Self {
        let http2 = Some(Box::new(h2::Head::new(method, target)));
        Self { method: method.clone(), head: Vec::new(), asks_upgrade: false, goes_at_once: false, http2 }
    }

    pub(crate) fn is_over_http2(&self) -> bool {
        self.http2.is_some()
    }

    pub(crate) fn field(&mut self, name: &str, value: &[u8]) {
        if let Some(http2) = &mut self.http2 {
            return http2.field(name, value);
        }
        field(&mut self.head, name.as_bytes(), value);
    }

    pub(crate) fn number(&mut self, name: &str, number: u64) {
        if let Some(http2) = &mut self.http2 {
            return http2.field(name, number.to_string().as_bytes());
        }
        number_field(&mut self.head, name.as_bytes(), number);
    }

    /// Fields as they came, in their order, without what the message has of its own: the host, and its body's length.
    pub(crate) fn fields(&mut self, fields: &Fields) {
        if let Some(http2) = &mut self.http2 {
            return http2.fields(fields);
        }
        let Self { head, asks_upgrade, .. } = self;
        fields.write(head, |known, _, _| {
            *asks_upgrade |= known == Known::Upgrade;
            !matches!(known, Known::Host | Known::ContentLength | Known::TransferEncoding)
        });
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        buffers::give_out(std::mem::take(&mut self.head));
    }
}

pub(super) struct Upstream {
    wire: Rc<RefCell<Wire<Stream>>>,
    exchange: RefCell<Exchange>,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Takes another request.
    Idle,
    /// A request is on its way, or its answer.
    Busy,
    /// Of no more use.
    Over,
}

/// One request and its answer.
struct Exchange {
    /// The request is on its way, or to go out with the turn.
    is_tried: bool,
    /// What of the body is sent, until it is.
    body: Option<Outgoing>,
    chunked: bool,
    goes_at_once: bool,
    /// Writing failed, which the answer may have the reason for.
    failed: Option<io::Error>,
    reader: AnswerReader,
    decoder: Decoder,
    lasts: bool,
}

impl Connection {
    /// # Errors
    /// What the kernel said. Nothing of any request was sent.
    pub(crate) async fn open(
        connector: &Connector,
        address: SocketAddr,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = connector.connect(address, timeout).await?;
        Ok(Self(Rc::new(Upstream {
            wire: Wire::new(stream),
            exchange: RefCell::new(Exchange::new()),
            phase: Cell::new(Phase::Idle),
        })))
    }

    /// Whether nothing is on its way, and the connection may be used again.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.phase.get() == Phase::Idle
    }

    /// Whether the connection takes another request. It notices a close by the other side that has arrived here.
    pub(crate) fn is_usable(&self) -> bool {
        // Bytes that nobody asked for are as bad as an end.
        let hears = || self.0.wire.borrow_mut().poll_fill(&mut Context::from_waker(Waker::noop()));
        self.is_idle() && hears().is_pending()
    }

    /// As [`Self::is_usable`], of one that is not used for now: it needs no buffer.
    pub(crate) fn rests(&self) -> bool {
        let usable = self.is_usable();
        if usable {
            self.0.wire.borrow_mut().rest();
        }
        usable
    }

    /// Sends a request; what is given waits for the head of the answer, and is the connection's last use until then.
    ///
    /// # Errors
    /// Only [`AttemptError::Stale`] says that nothing was sent; it gives the body back.
    pub(crate) fn send(&self, message: &Message, body: Outgoing) -> Http1Sending {
        self.0.phase.set(Phase::Busy);
        self.0.exchange.borrow_mut().begin(&mut self.0.wire.borrow_mut().out, message, body);
        Http1Sending { upstream: Rc::clone(&self.0), method: message.method.clone(), over: false }
    }
}

/// A request on its way to an answer's head. It outlives whoever gives it up; dropped before, it closes the connection.
pub(crate) struct Http1Sending {
    upstream: Rc<Upstream>,
    method: Method,
    over: bool,
}

impl Http1Sending {
    /// Whether the whole request is on its way.
    pub(crate) fn is_sent(&self) -> bool {
        let reads_on = matches!(self.upstream.exchange.borrow().body, Some(Outgoing::Rest { .. }));
        !reads_on && self.upstream.wire.borrow().out.is_empty()
    }
}

impl Future for Http1Sending {
    type Output = Result<UpstreamHead, AttemptError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = ready!(self.upstream.poll_head(&self.method, context));
        self.over = true;
        if polled.is_err() {
            self.upstream.end();
        }
        Poll::Ready(polled)
    }
}

impl Drop for Http1Sending {
    fn drop(&mut self) {
        if !self.over {
            self.upstream.end();
        }
    }
}

impl Upstream {
    /// The connection is of no more use.
    pub(super) fn end(&self) {
        self.phase.set(Phase::Over);
        self.exchange.borrow_mut().body = None;
        self.wire.borrow_mut().out = Out::default();
    }

    fn poll_head(
        self: &Rc<Self>,
        method: &Method,
        context: &mut Context<'_>,
    ) -> Poll<Result<UpstreamHead, AttemptError>> {
        let (wire, exchange) = (&mut *self.wire.borrow_mut(), &mut *self.exchange.borrow_mut());
        let mut closed = false;
        if !exchange.is_tried {
            exchange.is_tried = true;
            // What the other side has closed by now takes nothing more; a write would not say so.
            closed = wire.poll_fill(context).is_ready();
            let may_wait = !exchange.goes_at_once && matches!(exchange.body, Some(Outgoing::Whole(_)));
            if !closed && may_wait && wire.post(&self.wire, context) {
                return Poll::Pending;
            }
        }
        let sent = if closed {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        } else {
            exchange.poll_send(wire, context)
        };
        if let Poll::Ready(Err(error)) = sent {
            if !wire.out.is_begun
                && let Some(body) = exchange.body.take()
            {
                return Poll::Ready(Err(AttemptError::Stale { body }));
            }
            exchange.fail(wire, error);
        }
        let answer = loop {
            match exchange.reader.read(&mut wire.inbound, method, MOST_HEAD) {
                Err(error) => return Poll::Ready(Err(AttemptError::Protocol(error))),
                Ok(Some(answer)) if is_interim(answer.status) => continue,
                Ok(Some(answer)) => break answer,
                Ok(None) => {}
            }
            let ended = match ready!(wire.poll_fill(context)) {
                Ok(0) => io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => continue,
                Err(error) => error,
            };
            return Poll::Ready(Err(AttemptError::Reset(exchange.failed.take().unwrap_or(ended))));
        };
        (exchange.decoder, exchange.lasts) = (Decoder::new(answer.framing), answer.keeps_alive);
        let upgrade = (answer.status == StatusCode::SWITCHING_PROTOCOLS)
            .then(|| UpgradedCell::new(Rc::clone(&self.wire)));
        exchange.lasts &= upgrade.is_none();
        self.settle(wire, exchange);
        let body = UpstreamBody::new(Source::Http1(Rc::clone(self)));
        Poll::Ready(Ok(UpstreamHead { status: answer.status, fields: answer.fields, body, upgrade }))
    }

    /// What comes next of the answer's body.
    pub(super) fn poll_piece(&self, context: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        let (wire, exchange) = (&mut *self.wire.borrow_mut(), &mut *self.exchange.borrow_mut());
        // The answer may come before all of the request is sent.
        if let Poll::Ready(Err(error)) = exchange.poll_send(wire, context) {
            exchange.fail(wire, error);
        }
        let piece = loop {
            if let Some(piece) = exchange.decoder.read(&mut wire.inbound).map_err(io::Error::other)? {
                break piece;
            }
            if ready!(wire.poll_fill(context))? == 0 {
                if exchange.decoder.close() {
                    break Piece::End(None);
                }
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        };
        self.settle(wire, exchange);
        Poll::Ready(Ok(piece))
    }

    /// Whether all of the answer's body was read.
    pub(super) fn is_read(&self) -> bool {
        self.exchange.borrow().decoder.is_done()
    }

    /// Bytes of the answer's body that will come, where the other side said so.
    pub(super) fn left(&self) -> Option<u64> {
        self.exchange.borrow().decoder.left()
    }

    /// Takes the connection for idle once the answer is read, where it can be used again.
    fn settle(&self, wire: &mut Wire<Stream>, exchange: &mut Exchange) {
        if !exchange.decoder.is_done() || self.phase.get() != Phase::Busy {
            return;
        }
        let is_sent = exchange.body.is_none() && wire.out.is_empty();
        let is_clean = wire.inbound.is_empty() && is_sent && exchange.failed.is_none();
        self.phase.set(if exchange.lasts && is_clean { Phase::Idle } else { Phase::Over });
        exchange.body = None;
    }
}

/// 100, 103 and the like come before the answer, and are not passed on.
fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

impl Exchange {
    fn new() -> Self {
        Self {
            is_tried: false,
            body: None,
            chunked: false,
            goes_at_once: false,
            failed: None,
            reader: AnswerReader::default(),
            decoder: Decoder::new(Framing::NONE),
            lasts: true,
        }
    }

    fn begin(&mut self, out: &mut Out, message: &Message, body: Outgoing) {
        *out = Out::new();
        out.small.extend_from_slice(&message.head);
        let known = body.length();
        match known {
            // A request without a body says nothing of its length, unless its method has one by its nature.
            Some(0) if !has_body(&message.method) => {}
            Some(bytes) => length(&mut out.small, bytes),
            None => out.small.extend_from_slice(CHUNKED),
        }
        out.small.extend_from_slice(b"\r\n");
        let begin = body.begin();
        match known {
            Some(_) => out.push(begin, b""),
            None if begin.is_empty() => {}
            None => {
                out.small.extend_from_slice(Chunk::of(begin.len()).as_bytes());
                out.push(begin, b"\r\n");
            }
        }
        *self = Self {
            body: Some(body),
            chunked: known.is_none(),
            goes_at_once: message.goes_at_once,
            ..Self::new()
        };
    }

    fn fail(&mut self, wire: &mut Wire<Stream>, error: io::Error) {
        self.failed = Some(error);
        (wire.out, self.body) = (Out::default(), None);
    }

    /// Sends what can be sent of the request.
    fn poll_send(&mut self, wire: &mut Wire<Stream>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if wire.is_posted {
                return Poll::Pending;
            }
            ready!(wire.poll_flush(context))?;
            match &mut self.body {
                None => return Poll::Ready(Ok(())),
                Some(Outgoing::Whole(_)) => self.body = None,
                Some(Outgoing::Rest { rest, .. }) => {
                    let next = ready!(rest.poll_next(context));
                    match (next.transpose().map_err(io::Error::other)?, self.chunked) {
                        (Some(data), true) => {
                            wire.out.small.extend_from_slice(Chunk::of(data.len()).as_bytes());
                            wire.out.push(&data, b"\r\n");
                        }
                        (Some(data), false) => wire.out.push(&data, b""),
                        (None, chunked) => {
                            self.body = None;
                            if chunked {
                                wire.out.small.extend_from_slice(LAST_CHUNK);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Methods whose requests say a length though it is 0 (RFC 9110, section 8.6).
fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}
