//! Answers as they go out to a client: the head, with what this connection says of itself, then the body as it comes.

use std::io;
use std::task::{Context, Poll, ready};

use bulkhead_http1::{
    Chunk, Fields, Known, LAST_CHUNK, Piece, Request, answer_line, field, has_token, length, trailers,
};
use bulkhead_process::clock;
use bytes::Bytes;
use http::{Method, StatusCode};

use super::arriving::ClientSide;
use super::date;
use super::upstream::UpstreamBody;
use super::watch::{Kick, Watch};
use super::wire::Out;
use crate::message::{Answer, AnswerBody};

/// What of a request its answer's form depends on.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    head_alone: bool,
    http10: bool,
    keeps_alive: bool,
    takes_trailers: bool,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            head_alone: request.method == Method::HEAD,
            http10: request.http10,
            // What follows a CONNECT is meant for whoever it asked for, and nobody is connected.
            keeps_alive: request.keeps_alive && request.method != Method::CONNECT,
            takes_trailers: !request.http10 && has_token(request.fields.all_known(Known::Te), "trailers"),
        }
    }

    /// In HTTP/2 streams have an end, and trailers, by themselves.
    pub(super) fn over_http2(head_alone: bool) -> Self {
        Self { head_alone, http10: false, keeps_alive: true, takes_trailers: true }
    }

    /// A request that could not be read, and after which there is no other.
    pub(super) const UNREADABLE: Self =
        Self { head_alone: false, http10: false, keeps_alive: false, takes_trailers: false };
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Nothing,
    Plain,
    Chunked,
}

/// An answer on its way out. What the request holds is held until it is written.
pub(super) struct Writing {
    rest: Option<UpstreamBody>,
    form: Form,
    takes_trailers: bool,
    lasts: bool,
    leaves_http: bool,
}

impl Writing {
    /// With `ends` the connection ends with it.
    pub(super) fn begin(out: &mut Out, answer: Answer, asked: Asked, ends: bool) -> Self {
        let Answer { status, fields, body, close } = answer;
        let mut lasts = asked.keeps_alive && !close && !ends;
        *out = Out::new();
        let (form, known) = form(status, &fields, &body, asked);
        // Of unknown length and in one piece, its end is the connection's.
        lasts &= (form, known) != (Form::Plain, None);
        head(&mut out.small, status, &fields, (form, known));
        connection(&mut out.small, status, asked.http10, lasts);
        let leaves_http = status == StatusCode::SWITCHING_PROTOCOLS;
        let mut writing = Self { rest: None, form, takes_trailers: asked.takes_trailers, lasts, leaves_http };
        match body {
            AnswerBody::Whole { data, trailers, holds } => {
                out.holds = holds;
                writing.put(out, &data);
                writing.end(out, trailers.as_ref());
            }
            AnswerBody::Stream { begun, rest } => {
                writing.put(out, &begun);
                writing.rest = Some(rest).filter(|_| form != Form::Nothing);
            }
        }
        writing
    }

    /// Whether the connection can be used again, once all of it is written or will be at the end of the turn.
    pub(super) fn poll(
        &mut self,
        side: &ClientSide,
        watch: &Watch,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        let polled = self.poll_write(side, watch, context);
        match &mut self.rest {
            Some(rest) if polled.is_pending() => rest.poll_cut(context).map(Err),
            _ => polled,
        }
    }

    fn poll_write(
        &mut self,
        side: &ClientSide,
        watch: &Watch,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        loop {
            let mut wire = side.wire.borrow_mut();
            let waits = self.gather(&mut wire.out, context)?.is_pending();
            let lasts = self.lasts && watch.kicked() == Kick::None;
            if wire.out.is_empty() {
                if !waits {
                    wire.out.rest();
                    return Poll::Ready(Ok(lasts));
                }
                drop(wire);
                ready!(side.poll_gone(context));
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let has_all = !waits && self.rest.is_none();
            if has_all && lasts && !self.leaves_http && wire.post(&side.wire, context) {
                return Poll::Ready(Ok(true));
            }
            let polled = wire.poll_flush(context);
            watch.wrote(&polled);
            ready!(polled)?;
        }
    }

    /// Takes what there is of the body, as much as is written at once. Pending where more is waited for.
    fn gather(&mut self, out: &mut Out, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !out.is_full() {
            let Some(rest) = &mut self.rest else { break };
            match ready!(rest.poll_piece(context))? {
                Piece::Data(data) => self.put(out, &data),
                Piece::End(trailers) => {
                    self.rest = None;
                    self.end(out, trailers.as_ref());
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn put(&self, out: &mut Out, data: &Bytes) {
        match self.form {
            Form::Nothing => {}
            _ if data.is_empty() => {}
            Form::Plain => out.push(data, b""),
            Form::Chunked => {
                out.small.extend_from_slice(Chunk::of(data.len()).as_bytes());
                out.push(data, b"\r\n");
            }
        }
    }

    fn end(&self, out: &mut Out, with: Option<&Fields>) {
        if self.form == Form::Chunked {
            match with.filter(|with| self.takes_trailers && !with.is_empty()) {
                Some(with) => out.push(&trailer_section(with), b""),
                None => out.push(&Bytes::from_static(LAST_CHUNK), b""),
            }
        }
    }
}

fn trailer_section(with: &Fields) -> Bytes {
    let mut section = Vec::new();
    trailers(&mut section, with);
    section.into()
}

/// How the body is written, and the length that the head says.
pub(super) fn form(
    status: StatusCode,
    fields: &Fields,
    body: &AnswerBody,
    asked: Asked,
) -> (Form, Option<u64>) {
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        return (Form::Nothing, None);
    }
    let (known, has_trailers) = match body {
        AnswerBody::Whole { data, trailers, .. } => (Some(data.len() as u64), trailers.is_some()),
        AnswerBody::Stream { begun, rest } => (rest.declared().map(|left| begun.len() as u64 + left), false),
    };
    if asked.head_alone || status == StatusCode::NOT_MODIFIED {
        // The length that there would be, as the cell says.
        let said = fields.get_known(Known::ContentLength).and_then(|value| std::str::from_utf8(value).ok());
        let said = said.and_then(|said| said.parse().ok());
        let ours = known.filter(|length| *length > 0);
        return (Form::Nothing, said.or(ours));
    }
    match known {
        Some(_) if has_trailers && asked.takes_trailers => (Form::Chunked, None),
        Some(length) => (Form::Plain, Some(length)),
        None if asked.http10 => (Form::Plain, None),
        None => (Form::Chunked, None),
    }
}

fn head(out: &mut Vec<u8>, status: StatusCode, fields: &Fields, (form, known): (Form, Option<u64>)) {
    answer_line(out, status);
    let mut has_date = false;
    fields.write(out, |known, name, _| {
        has_date |= name.eq_ignore_ascii_case(b"date");
        !matches!(known, Known::ContentLength | Known::TransferEncoding | Known::Connection)
    });
    if !has_date {
        date::field(out, clock::now_unix_millis());
    }
    match known {
        Some(bytes) => length(out, bytes),
        None if form == Form::Chunked => field(out, b"transfer-encoding", b"chunked"),
        None => {}
    }
}

/// What the answer says of its connection, and the end of the head.
fn connection(out: &mut Vec<u8>, status: StatusCode, http10: bool, lasts: bool) {
    let says: &[u8] = match (status, lasts) {
        (StatusCode::SWITCHING_PROTOCOLS, _) => b"connection: upgrade\r\n",
        (_, false) => b"connection: close\r\n",
        (_, true) if http10 => b"connection: keep-alive\r\n",
        (_, true) => b"",
    };
    out.extend_from_slice(says);
    out.extend_from_slice(b"\r\n");
}

/// An answer of ours as bytes, for a connection that ends with it.
pub(crate) fn last_answer(answer: Answer) -> Vec<u8> {
    let mut out = Out::default();
    Writing::begin(&mut out, answer, Asked::UNREADABLE, true);
    [&out.small[..], &out.large].concat()
}
