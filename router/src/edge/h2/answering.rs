//! Answers as they go out on a stream: the head, then the body as the client has room for it.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use bulkhead_http1::{Fields, Known, Piece};
use bulkhead_process::clock;
use bytes::Bytes;
use h2::{Reason, SendStream};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::{Sleep, sleep};

use super::arriving::Respond;
use super::io::Gauge;
use crate::edge::answering::{Asked, Form, form};
use crate::edge::date;
use crate::edge::upstream::UpstreamBody;
use crate::message::{Answer, AnswerBody, Holds};

/// Why an answer did not get to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsent {
    #[error("the client is gone, or took its request back")]
    Gone,
    #[error("the client took none of the answer for longer than limits.idleTimeout")]
    NotTaken,
    #[error("the answer broke off: {0}")]
    Broken(#[from] io::Error),
}

impl From<h2::Error> for Unsent {
    fn from(_: h2::Error) -> Self {
        Self::Gone
    }
}

/// Sends an answer. What the request holds is given back where it may be held until the bytes are written.
///
/// # Errors
/// Why it did not get to its end. The stream was reset then, if it was not by the client.
pub(super) async fn send(
    respond: &Respond,
    answer: Answer,
    head_alone: bool,
    gauge: &Gauge,
    patience: Duration,
) -> Result<Option<Holds>, Unsent> {
    let Answer { status, fields, body, .. } = answer;
    let (form, length) = form(status, &fields, &body, Asked::over_http2(head_alone));
    let ends = match &body {
        AnswerBody::Whole { data, trailers, .. } => data.is_empty() && trailers.is_none(),
        AnswerBody::Stream { begun, rest } => begun.is_empty() && rest.is_over(),
    };
    let ends = ends || form == Form::Nothing;
    let stream = respond.borrow_mut().send_response(head(status, &fields, length), ends)?;
    let mut outward = Outward { stream, gauge, patience };
    match body {
        AnswerBody::Whole { holds, .. } if ends => Ok(holds),
        AnswerBody::Stream { .. } if ends => Ok(None),
        AnswerBody::Whole { data, trailers, holds } => {
            outward.data(data, trailers.is_none(), None).await?;
            if let Some(trailers) = trailers {
                outward.stream.send_trailers(map(&trailers))?;
            }
            Ok(holds)
        }
        AnswerBody::Stream { begun, rest } => outward.stream(begun, rest).await.map(|()| None),
    }
}

fn head(status: StatusCode, fields: &Fields, length: Option<u64>) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    *headers = map(fields);
    if !headers.contains_key(header::DATE) {
        headers.insert(header::DATE, date::value(clock::now_unix_millis()));
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Without what speaks of one connection, or of a body's length (RFC 9113, section 8.2.2).
fn map(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len() + 2);
    for (known, name, value) in fields.iter_known() {
        if !matches!(known, Known::Other | Known::Trailer) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

/// A stream that an answer goes out on. Dropped before its end, it is reset.
struct Outward<'a> {
    stream: SendStream<Bytes>,
    gauge: &'a Gauge,
    patience: Duration,
}

impl Outward<'_> {
    /// Sends bytes as there is room for them on their way to the client.
    async fn data(
        &mut self,
        mut data: Bytes,
        ends: bool,
        mut rest: Option<&mut UpstreamBody>,
    ) -> Result<(), Unsent> {
        while !data.is_empty() {
            self.stream.reserve_capacity(data.len());
            let room = self.room(rest.as_deref_mut()).await?;
            let piece = data.split_to(room.min(data.len()));
            self.gauge.meter.borrow_mut().sends(piece.len());
            self.stream.send_data(piece, ends && data.is_empty())?;
        }
        Ok(())
    }

    /// Bytes that may go out now: at least one. The request goes on meanwhile, since who takes none of the answer may yet
    /// have more to say.
    async fn room(&mut self, mut rest: Option<&mut UpstreamBody>) -> Result<usize, Unsent> {
        let mut late = None;
        poll_fn(|context| {
            if let Some(rest) = &mut rest {
                rest.poll_send(context);
            }
            let room = self.stream.capacity();
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            match self.stream.poll_capacity(context) {
                Poll::Ready(Some(Ok(room))) if room > 0 => return Poll::Ready(Ok(room)),
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Err(Unsent::Gone)),
                Poll::Pending => {}
            }
            if let Some(rest) = &mut rest
                && let Poll::Ready(cut) = rest.poll_cut(context)
            {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                return Poll::Ready(Err(cut.into()));
            }
            // Nearly always there is room at once, or soon.
            let late: &mut std::pin::Pin<Box<Sleep>> =
                late.get_or_insert_with(|| Box::pin(sleep(self.patience)));
            if late.as_mut().poll(context).is_ready() {
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Err(Unsent::NotTaken));
            }
            Poll::Pending
        })
        .await
    }

    async fn stream(&mut self, begun: Bytes, mut rest: UpstreamBody) -> Result<(), Unsent> {
        self.data(begun, false, Some(&mut rest)).await?;
        loop {
            let piece = poll_fn(|context| match rest.poll_piece(context) {
                Poll::Pending => match rest.poll_cut(context) {
                    Poll::Ready(cut) => Poll::Ready(Err(cut.into())),
                    Poll::Pending => self.stream.poll_reset(context).map(|_| Err(Unsent::Gone)),
                },
                Poll::Ready(piece) => Poll::Ready(piece.map_err(Unsent::from)),
            });
            match piece.await {
                Ok(Piece::Data(data)) => self.data(data, false, Some(&mut rest)).await?,
                Ok(Piece::End(trailers)) => {
                    match trailers.filter(|trailers| !trailers.is_empty()) {
                        None => self.stream.send_data(Bytes::new(), true)?,
                        Some(trailers) => self.stream.send_trailers(map(&trailers))?,
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Err(error);
                }
            }
        }
    }
}
