//! Heads of answers.

use bytes::BytesMut;
use http::{Method, StatusCode};

use crate::error::Error;
use crate::fields::Fields;
use crate::framing::{Framing, keeps_alive, leaves_http};
use crate::head::{self, Progress, Slots};

/// An answer without its body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub fields: Fields,
    pub framing: Framing,
    /// The server keeps the connection, the body's end can be told without closing it, and what follows is HTTP still.
    pub keeps_alive: bool,
}

/// Reads heads off a buffer that grows.
#[derive(Debug, Default)]
pub struct AnswerReader(Progress);

impl AnswerReader {
    /// Takes the head of the answer to a request of that method off the buffer, of at most `limit` bytes; none while it is
    /// not whole. Informational ones (1xx) come like any other.
    ///
    /// # Errors
    /// What of it is no HTTP.
    pub fn read(
        &mut self,
        buffer: &mut BytesMut,
        method: &Method,
        limit: usize,
    ) -> Result<Option<Answer>, Error> {
        if buffer.is_empty() || !self.0.is_due(buffer, limit) {
            return Ok(None);
        }
        let bytes = head::within(buffer, limit);
        if bytes.starts_with(b"\r") || bytes.starts_with(b"\n") {
            return Err(Error::StatusLine);
        }
        let mut slots: Slots<'_> = [const { std::mem::MaybeUninit::uninit() }; head::MOST_FIELDS];
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let status = config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut slots);
        let length = match status.map_err(|error| head::error(error, Error::StatusLine))? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return head::partial(bytes, limit),
        };
        let mut fields = head::fields(&bytes[..length], parsed.headers)?;
        let status = StatusCode::from_u16(parsed.code.unwrap_or_default());
        let status = status.map_err(|_| Error::StatusLine)?;
        let http10 = parsed.version == Some(0);
        self.0.reset();
        head::take(buffer, length, &mut fields);
        let framing = Framing::of_answer(&fields, http10, status, method)?;
        let keeps_alive =
            framing != Framing::UntilClose && !leaves_http(status, method) && keeps_alive(&fields, http10);
        Ok(Some(Answer { status, fields, framing, keeps_alive }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Answer>, Error> {
        AnswerReader::default().read(&mut BytesMut::from(text), &Method::GET, 1024)
    }

    #[test]
    fn an_answer_says_how_its_body_ends_and_whether_its_connection_lasts() {
        let check = |text: &str, framing, keeps_alive| {
            let answer = read(text).expect("is HTTP").expect("is whole");
            assert_eq!((answer.framing, answer.keeps_alive), (framing, keeps_alive), "{text:?}");
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", Framing::Length(2), true);
        check("HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n", Framing::Chunked, true);
        check("HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false);
        check("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n", Framing::Length(2), false);
        check("HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n", Framing::NONE, false);
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let check = |text: &str, expected| assert_eq!(read(text).expect_err(text), expected, "{text:?}");
        check("SSH-2.0-OpenSSH\r\n\r\n", Error::Version);
        check("HTTP/1.1 2000 OK\r\n\r\n", Error::StatusLine);
        check("HTTP/1.1 099 OK\r\n\r\n", Error::StatusLine);
        check("\r\nHTTP/1.1 200 OK\r\n\r\n", Error::StatusLine);
        check("HTTP/1.1 200 OK\ncontent-length: 2\r\n\r\n", Error::LineEnd);
        check("HTTP/1.1 200 OK\r\nx: 1\r\n folded: 2\r\n\r\n", Error::FieldName);
    }
}
