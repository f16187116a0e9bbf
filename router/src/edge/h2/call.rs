//! One call on a connection to a pod: the request on its way there, and at the same time its answer on the way back.

use std::io;
use std::mem;
use std::task::{Context, Poll, ready};

use bulkhead_http1::{Fields, Known, Piece};
use bulkhead_protocol::Reason;
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::header::{HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri};

use super::channels::Place;
use crate::edge::outgoing::Outgoing;
use crate::edge::sending::{AttemptError, UpstreamHead};
use crate::edge::upstream::{Source, UpstreamBody};

/// What is sent in front of a body.
pub(crate) struct Head {
    method: Method,
    path: Option<PathAndQuery>,
    authority: Option<Authority>,
    headers: HeaderMap,
}

impl Head {
    pub(crate) fn new(method: &Method, target: &str) -> Self {
        let path = target.parse().ok();
        Self { method: method.clone(), path, authority: None, headers: HeaderMap::new() }
    }

    pub(crate) fn field(&mut self, name: &str, value: &[u8]) {
        if name == "host" {
            self.authority = Authority::try_from(value).ok();
        } else if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            self.headers.append(name, value);
        }
    }

    /// Fields as they came, without what says who is asked and how the body ends.
    pub(crate) fn fields(&mut self, fields: &Fields) {
        for (known, name, value) in fields.iter_known() {
            if !matches!(
                known,
                Known::Host | Known::ContentLength | Known::TransferEncoding | Known::Connection
            ) && let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            {
                self.headers.append(name, value);
            }
        }
    }

    fn request(&self, scheme: Scheme) -> Result<Request<()>, http::Error> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(scheme);
        uri.authority.clone_from(&self.authority);
        uri.path_and_query.clone_from(&self.path);
        let mut request =
            Request::builder().method(self.method.clone()).uri(Uri::from_parts(uri)?).body(())?;
        request.headers_mut().clone_from(&self.headers);
        Ok(request)
    }
}

/// A call on its way to its answer's head. Dropped before, it is taken back.
pub(crate) struct Call {
    state: State,
}

enum State {
    Under(Box<Under>),
    /// It could not be sent, for that reason.
    Unsent(AttemptError),
    Over,
}

struct Under {
    place: Place,
    response: ResponseFuture,
    pump: Pump,
    /// The body, where it can be sent again.
    whole: Option<Bytes>,
    /// What the connection had written before.
    before: u64,
}

impl Call {
    pub(crate) fn send(place: Place, head: Option<&Head>, body: Outgoing) -> Self {
        let request = head.map_or_else(|| Ok(Request::default()), |head| head.request(place.scheme()));
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                let error = AttemptError::Reset(io::Error::new(io::ErrorKind::InvalidInput, error));
                return Self { state: State::Unsent(error) };
            }
        };
        let before = place.written();
        let ends = matches!(&body, Outgoing::Whole(bytes) if bytes.is_empty());
        let state = match place.sender().send_request(request, ends) {
            Ok((response, stream)) => {
                let whole = match &body {
                    Outgoing::Whole(bytes) => Some(bytes.clone()),
                    Outgoing::Rest { .. } => None,
                };
                let pump = if ends { Pump::done() } else { Pump::new(stream, body) };
                State::Under(Box::new(Under { place, response, pump, whole, before }))
            }
            // The connection has gone, or goes, since the place on it was taken.
            Err(_) => State::Unsent(AttemptError::Stale { body }),
        };
        Self { state }
    }

    /// Whether the whole request is on its way.
    pub(crate) fn is_sent(&self) -> bool {
        match &self.state {
            State::Under(under) => under.pump.is_done(),
            State::Unsent(_) | State::Over => true,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<UpstreamHead, AttemptError>> {
        let answered = match &mut self.state {
            State::Under(under) => ready!(under.poll_head(context)),
            State::Unsent(_) | State::Over => None,
        };
        match (mem::replace(&mut self.state, State::Over), answered) {
            (State::Under(under), Some(Ok(response))) => Poll::Ready(Ok(under.answered(response))),
            (State::Under(under), Some(Err(error))) => Poll::Ready(Err(under.failed(error))),
            (State::Unsent(error), _) => Poll::Ready(Err(error)),
            (State::Under(_) | State::Over, _) => Poll::Pending,
        }
    }
}

type Answered = Result<http::Response<RecvStream>, h2::Error>;

impl Under {
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Option<Answered>> {
        // The answer may come before all of the request is sent, and says what stopped it.
        let _ = self.pump.poll(context);
        std::pin::Pin::new(&mut self.response).poll(context).map(Some)
    }

    fn answered(self, response: http::Response<RecvStream>) -> UpstreamHead {
        let (head, stream) = response.into_parts();
        let fields = Fields::from(&head.headers);
        let Self { place, pump, .. } = self;
        let returning = Returning { _place: place, stream, pump, ends: false, ended: false };
        let body = UpstreamBody::new(Source::Http2(Box::new(returning)));
        UpstreamHead { status: head.status, fields, body, upgrade: None }
    }

    fn failed(self, error: h2::Error) -> AttemptError {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        match self.whole {
            _ if error.is_remote() && refused => AttemptError::Refused(Reason::Capacity),
            // Told of streams alone that are beyond the last one that the pod looked at (RFC 9113, section 6.8).
            _ if error.is_remote() && error.is_go_away() => AttemptError::Refused(Reason::Draining),
            // Nothing was handed to the kernel since, of this call or any other.
            Some(bytes) if error.is_io() && self.place.written() == self.before => {
                AttemptError::Stale { body: Outgoing::Whole(bytes) }
            }
            _ => AttemptError::Reset(broken(error)),
        }
    }
}

/// A body on its way to a pod.
struct Pump {
    stream: Option<SendStream<Bytes>>,
    pending: Bytes,
    rest: Option<Outgoing>,
}

impl Pump {
    fn done() -> Self {
        Self { stream: None, pending: Bytes::new(), rest: None }
    }

    fn new(stream: SendStream<Bytes>, body: Outgoing) -> Self {
        let pending = body.begin().clone();
        let rest = match body {
            Outgoing::Whole(_) => None,
            rest @ Outgoing::Rest { .. } => Some(rest),
        };
        Self { stream: Some(stream), pending, rest }
    }

    fn is_done(&self) -> bool {
        self.stream.is_none()
    }

    /// Sends what can be sent.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(stream) = &mut self.stream {
            let goes_on = if self.pending.is_empty() {
                ready!(poll_more(stream, &mut self.rest, &mut self.pending, context))
            } else {
                ready!(poll_data(stream, &mut self.pending, self.rest.is_none(), context))
            };
            if !goes_on {
                *self = Self::done();
            }
        }
        Poll::Ready(())
    }
}

/// Takes more of a body that is still arriving. Whether anything is left to send.
fn poll_more(
    stream: &mut SendStream<Bytes>,
    rest: &mut Option<Outgoing>,
    pending: &mut Bytes,
    context: &mut Context<'_>,
) -> Poll<bool> {
    let Some(Outgoing::Rest { rest, .. }) = rest else { return Poll::Ready(false) };
    match ready!(rest.poll_next(context)) {
        Some(Ok(data)) => {
            *pending = data;
            return Poll::Ready(true);
        }
        // A pod that wants no more says why in its answer.
        None => drop(stream.send_data(Bytes::new(), true)),
        // What ends before its end must not pass for whole.
        Some(Err(_)) => stream.send_reset(h2::Reason::CANCEL),
    }
    Poll::Ready(false)
}

/// Sends as much as the pod has room for. Whether anything may be left to send.
fn poll_data(
    stream: &mut SendStream<Bytes>,
    pending: &mut Bytes,
    is_last: bool,
    context: &mut Context<'_>,
) -> Poll<bool> {
    stream.reserve_capacity(pending.len());
    let room = match stream.capacity() {
        0 => ready!(stream.poll_capacity(context)).and_then(Result::ok).unwrap_or(0),
        room => room,
    };
    let piece = pending.split_to(room.min(pending.len()));
    let ends = pending.is_empty() && is_last;
    // Without room the pod takes no more, and says why in its answer.
    Poll::Ready(room > 0 && stream.send_data(piece, ends).is_ok() && !ends)
}

/// An answer that arrives, while its request may still be on its way. Dropped before its end, the call is taken back.
pub(crate) struct Returning {
    _place: Place,
    stream: RecvStream,
    pump: Pump,
    /// All of its data was read.
    ends: bool,
    ended: bool,
}

impl Returning {
    /// Sends what can be sent of the request, whether or not anybody reads the answer now.
    pub(crate) fn poll_send(&mut self, context: &mut Context<'_>) {
        let _ = self.pump.poll(context);
    }

    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Piece>> {
        self.poll_send(context);
        while !self.ends {
            match ready!(self.stream.poll_data(context)).transpose().map_err(broken)? {
                None => self.ends = true,
                Some(data) => {
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    if !data.is_empty() {
                        return Poll::Ready(Ok(Piece::Data(data)));
                    }
                }
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context)).map_err(broken)?;
        self.ended = true;
        Poll::Ready(Ok(Piece::End(trailers.map(|trailers| Fields::from(&trailers)))))
    }

    /// Whether nothing more comes, trailers included.
    pub(crate) fn is_read(&self) -> bool {
        self.ended || self.stream.is_end_stream()
    }
}

fn broken(error: h2::Error) -> io::Error {
    let why = error.to_string();
    error.into_io().unwrap_or_else(|| io::Error::other(why))
}
