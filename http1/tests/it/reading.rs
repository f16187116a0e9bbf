//! What the codec reads off a connection that gives its bytes in some pieces.

use std::fmt;

use bulkhead_http1::{
    Answer, AnswerReader, Decoder, Error, Fields, Framing, Piece, Request, RequestReader, check_host,
};
use bytes::BytesMut;
use http::Method;

/// Bytes of a head.
pub(crate) const LIMIT: usize = 512;

/// One message, as far as it could be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    /// Method and target, or the status.
    pub(crate) line: String,
    pub(crate) fields: Fields,
    pub(crate) framing: Framing,
    pub(crate) http10: bool,
    pub(crate) keeps_alive: bool,
    pub(crate) expects: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Fields>,
    pub(crate) whole: bool,
}

/// Everything that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) messages: Vec<Message>,
    pub(crate) error: Option<Error>,
    /// Bytes that are not of any message, or not yet.
    pub(crate) left: Vec<u8>,
    /// The last message was the connection's.
    pub(crate) over: bool,
}

/// Requests, one after the other.
pub(crate) fn requests(parts: &[&[u8]]) -> Reading {
    requests_within(parts, LIMIT)
}

/// As [`requests`], with so many bytes for a head.
pub(crate) fn requests_within(parts: &[&[u8]], limit: usize) -> Reading {
    let mut reader = RequestReader::default();
    read(parts, |buffer| {
        let Some(request) = reader.read(buffer, limit)? else { return Ok(None) };
        check_host(&request.fields, request.http10)?;
        Ok(Some(of_request(request)))
    })
}

/// Answers to requests of that method.
pub(crate) fn answers(parts: &[&[u8]], method: &Method) -> Reading {
    let mut reader = AnswerReader::default();
    let mut reading = read(parts, |buffer| Ok(reader.read(buffer, method, LIMIT)?.map(of_answer)));
    if let Some(last) = reading.messages.last_mut() {
        // The end of the connection is the end of such a body.
        last.whole |= reading.error.is_none() && last.framing == Framing::UntilClose;
    }
    reading
}

fn read(parts: &[&[u8]], mut head: impl FnMut(&mut BytesMut) -> Result<Option<Message>, Error>) -> Reading {
    let (mut reading, mut body, mut buffer) = (Reading::default(), None, BytesMut::new());
    for part in parts {
        buffer.extend_from_slice(part);
        while reading.error.is_none() && !reading.over {
            match step(&mut reading, &mut body, &mut buffer, &mut head) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => reading.error = Some(error),
            }
        }
    }
    reading.left = buffer.to_vec();
    reading
}

/// Takes what comes next. Whether there was anything.
fn step(
    reading: &mut Reading,
    body: &mut Option<Decoder>,
    buffer: &mut BytesMut,
    head: &mut impl FnMut(&mut BytesMut) -> Result<Option<Message>, Error>,
) -> Result<bool, Error> {
    let Some(decoder) = body else {
        let Some(message) = head(buffer)? else { return Ok(false) };
        *body = Some(Decoder::new(message.framing));
        reading.messages.push(message);
        return Ok(true);
    };
    let message = reading.messages.last_mut().expect("a body belongs to a message");
    match decoder.read(buffer)? {
        None => return Ok(false),
        Some(Piece::Data(data)) => {
            assert!(!data.is_empty(), "a piece has bytes");
            message.body.extend_from_slice(&data);
        }
        Some(Piece::End(trailers)) => {
            assert!(decoder.is_done() && decoder.left() == Some(0));
            message.trailers = trailers;
            (message.whole, *body) = (true, None);
            reading.over = !message.keeps_alive;
        }
    }
    Ok(true)
}

fn of_request(request: Request) -> Message {
    Message {
        line: format!("{} {}", request.method, request.target),
        fields: request.fields,
        framing: request.framing,
        http10: request.http10,
        keeps_alive: request.keeps_alive,
        expects: request.expects_continue,
        body: Vec::new(),
        trailers: None,
        whole: false,
    }
}

fn of_answer(answer: Answer) -> Message {
    Message {
        line: answer.status.as_str().to_owned(),
        fields: answer.fields,
        framing: answer.framing,
        http10: false,
        keeps_alive: answer.keeps_alive,
        expects: false,
        body: Vec::new(),
        trailers: None,
        whole: false,
    }
}

/// Asserts that bytes are read alike whole and in pieces, the error and its place included. Nonsense that might still
/// become a head may be waited on.
pub(crate) fn check_cuts(bytes: &[u8], cuts: &[usize], read: impl Fn(&[&[u8]]) -> Reading) {
    let (whole, parts) = (read(&[bytes]), read(&pieces(bytes, cuts)));
    let waits = parts.error.is_none() && whole.error.is_some();
    let same = match waits {
        true => parts.messages == whole.messages && parts.left == whole.left,
        false => parts == whole,
    };
    assert!(same, "cut at {cuts:?}:\n{parts}\nrather than\n{whole}\n{parts:?}\n{whole:?}");
    // With more behind it than a head may have, nothing is left to wait for.
    let padded = [bytes, &[b'a'; LIMIT]].concat();
    let (whole, parts) = (read(&[&padded]), read(&pieces(&padded, cuts)));
    assert_eq!(whole, parts, "cut at {cuts:?}:\n{parts}\nrather than\n{whole}");
}

fn pieces<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut ends: Vec<_> = cuts.iter().map(|cut| (*cut).min(bytes.len())).chain([bytes.len()]).collect();
    ends.sort_unstable();
    let begins = std::iter::once(0).chain(ends.clone());
    begins.zip(ends).map(|(begin, end)| &bytes[begin..end]).collect()
}

/// `POST /pay close <body; X-Sum: 7> | GET / | ! Lengths`: messages, with `<` and `>` around a body, `...` for what has not
/// arrived, and why reading ended.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = |place: usize| if place > 0 { " | " } else { "" };
        for (place, message) in self.messages.iter().enumerate() {
            write!(f, "{}{message}", between(place))?;
        }
        let within = self.messages.last().is_some_and(|last| !last.whole);
        let before = if within { "" } else { between(self.messages.len()) };
        match self.error {
            Some(error) => write!(f, "{before}! {error:?}"),
            None if within => f.write_str("..."),
            None if self.over || self.left.is_empty() => Ok(()),
            None => write!(f, "{before}..."),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)?;
        for (is_said, word) in [(!self.keeps_alive, " close"), (self.expects, " expects")] {
            f.write_str(if is_said { word } else { "" })?;
        }
        if self.framing == Framing::NONE {
            return Ok(());
        }
        write!(f, " <{}", String::from_utf8_lossy(&self.body))?;
        for (name, value) in self.trailers.iter().flat_map(Fields::iter) {
            write!(f, "; {}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))?;
        }
        f.write_str(if self.whole { ">" } else { "" })
    }
}
