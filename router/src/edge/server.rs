//! One connection of a client from its first byte to its last: requests are read one after the other, each is answered before
//! the next, and what ends the connection ends it here. Limits and time-outs of connections are kept here, requests' are not.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bulkhead_http1::{Error, RequestReader};
use bulkhead_process::clock;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::answering::{Asked, Writing};
use super::arriving::{ClientSide, Read};
use super::h2::{self, Beginning};
use super::request_body::Arriving;
use super::upgrade::{self, Afterwards, Upgrade};
use super::watch::{Kick, Phase, Watch};
use super::wire::{Tap, discard};
use crate::front::Stream;
use crate::message::{Answer, Head, Request};

/// Bytes of a body that nobody wanted, which are read so that the connection can be used again or the client gets to see why
/// not, and for how long: closing on unread bytes would reset the connection, and the answer with it.
pub(super) const LINGER_BYTES: usize = 1024 * 1024;
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Serves one connection until either side ends it, whether in HTTP or after it has left it. `refuse` says what a client
/// is told whose request cannot be read. Gives back one in the clear that begins with HTTP/2.
pub(crate) async fn serve_connection<F, Fut>(
    stream: Stream,
    peer: IpAddr,
    header_bytes: u32,
    watch: Rc<Watch>,
    refuse: impl Fn(Error) -> Answer,
    serve: F,
) -> Option<Beginning>
where
    F: Fn(Request) -> Fut,
    Fut: Future<Output = Answer>,
{
    let limit = usize::try_from(header_bytes).unwrap_or(usize::MAX);
    let talk = Conversation {
        side: Rc::new(ClientSide::new(stream)),
        peer,
        limit,
        watch: &watch,
        begins_http2: Cell::new(false),
        refuse,
        serve,
    };
    let mut talking = pin!(talk.run());
    poll_fn(|context| {
        watch.attend(context);
        match watch.kicked() {
            Kick::Abort => Poll::Ready(()),
            Kick::None | Kick::Graceful => clock::one_moment(|| talking.as_mut().poll(context)),
        }
    })
    .await;
    talk.begins_http2.get().then(|| Beginning(Rc::clone(&talk.side.wire)))
}

struct Conversation<'a, R, F> {
    side: Rc<ClientSide>,
    peer: IpAddr,
    /// Bytes of a head.
    limit: usize,
    watch: &'a Watch,
    begins_http2: Cell<bool>,
    refuse: R,
    serve: F,
}

impl<R, F, Fut> Conversation<'_, R, F>
where
    R: Fn(Error) -> Answer,
    F: Fn(Request) -> Fut,
    Fut: Future<Output = Answer>,
{
    async fn run(&self) {
        let mut reader = RequestReader::default();
        let afterwards = Afterwards::default();
        let mut is_first = true;
        loop {
            let request = match poll_fn(|context| self.poll_request(&mut reader, context)).await {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(_) if is_first && self.has_preface() => return self.begins_http2.set(true),
                Err(error) => {
                    tracing::debug!(%error, peer = %self.peer, "a client's connection ended with an error");
                    let _ = self.answer((self.refuse)(error), Asked::UNREADABLE, true).await;
                    return self.linger(false).await;
                }
            };
            self.watch.enter(Phase::Busy);
            let asked = Asked::of(&request);
            // In a place of its own, so that quiet connections do not carry its room about.
            let serving = Box::pin((self.serve)(self.taken(request, &afterwards)));
            let Some(answer) = self.unless_gone(serving).await else {
                return;
            };
            // A client that was never told to send its body may send it or not, so that nobody knows what comes next.
            let ends = matches!(self.side.read(), Read::Unasked | Read::Broken);
            let Ok(lasts) = self.answer(answer, asked, ends).await else { return };
            let upgraded = afterwards.borrow_mut().take();
            if let Some(upgraded) = upgraded {
                return upgraded.await;
            }
            if !lasts || (self.side.read() == Read::Part && !self.drained().await) {
                return self.linger(self.side.read() == Read::Whole).await;
            }
            self.watch.enter(Phase::Idle);
            is_first = false;
        }
    }

    /// Whether the client knows that HTTP/2 is spoken here without having asked (RFC 9113, section 3.3). Over TLS it asks.
    fn has_preface(&self) -> bool {
        let wire = self.side.wire.borrow();
        matches!(wire.stream, Stream::Plain(_)) && h2::is_preface(&wire.inbound)
    }

    /// The next request; none when the connection is over.
    fn poll_request(
        &self,
        reader: &mut RequestReader,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<bulkhead_http1::Request>, Error>> {
        let wire = &mut *self.side.wire.borrow_mut();
        let mut is_over = false;
        loop {
            let hears = !wire.inbound.is_empty();
            is_over |= self.watch.kicked() == Kick::Graceful && !hears;
            if hears || is_over || !wire.is_posted {
                // The answer before goes first.
                let flushed = wire.poll_flush(context);
                self.watch.wrote(&flushed);
                is_over |= ready!(flushed).is_err();
            }
            if is_over {
                return Poll::Ready(Ok(None));
            }
            if hears {
                self.watch.bytes_arrived();
                if let Some(request) = reader.read(&mut wire.inbound, self.limit)? {
                    return Poll::Ready(Ok(Some(request)));
                }
            }
            let filled = wire.poll_fill(context);
            if filled.is_pending() {
                wire.rest();
            }
            is_over = !matches!(ready!(filled), Ok(1..));
        }
    }

    fn taken(&self, request: bulkhead_http1::Request, afterwards: &Afterwards) -> Request {
        let upgrade = upgrade::is_asked(&request).then(|| Upgrade::new(&self.side.wire, afterwards));
        let body = Arriving::Http1(self.side.begin(request.framing, request.expects_continue));
        let bulkhead_http1::Request { method, target, fields, http10, .. } = request;
        Request { head: Head { method, target, fields, http10, grpc: false }, body, upgrade }
    }

    /// None where the client leaves before there is an answer.
    async fn unless_gone(&self, mut serving: Pin<Box<Fut>>) -> Option<Answer> {
        poll_fn(|context| match serving.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => self.side.poll_gone(context).map(|()| None),
        })
        .await
    }

    /// Whether the connection can be used again.
    async fn answer(&self, answer: Answer, asked: Asked, ends: bool) -> std::io::Result<bool> {
        let ends = ends || self.watch.kicked() != Kick::None;
        let mut writing = Writing::begin(&mut self.side.wire.borrow_mut().out, answer, asked, ends);
        let written = poll_fn(|context| writing.poll(&self.side, self.watch, context)).await;
        if let Err(error) = &written {
            tracing::debug!(%error, peer = %self.peer, "an answer was not written to its end");
        }
        written
    }

    /// Reads what is left of a body that nobody wanted. Whether it came to its end.
    async fn drained(&self) -> bool {
        let mut left = LINGER_BYTES;
        let mut body = self.side.resume();
        let read = timeout(LINGER, async {
            while let Some(Ok(piece)) = body.next().await {
                left = left.saturating_sub(piece.len());
                if left == 0 {
                    return;
                }
            }
        });
        read.await.is_ok() && self.side.read() == Read::Whole
    }

    /// Ends the connection so that the client gets to see the last answer.
    async fn linger(&self, is_read: bool) {
        let mut tap = Tap(Rc::clone(&self.side.wire));
        let _ = timeout(LINGER, async {
            if tap.shutdown().await.is_ok() && !is_read {
                discard(&self.side.wire, LINGER_BYTES).await;
            }
        })
        .await;
    }
}
