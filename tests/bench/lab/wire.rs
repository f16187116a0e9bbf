//! HTTP/1.1 as benches need it: requests as ready bytes, and messages that say how long they are (RFC 9112, section 6.3).
//! Without a library, so that what is measured is not the load generator; with no more of HTTP than both ends here speak.

use std::fmt;
use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Longest head that is read, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Longest body that is copied behind its head, in bytes: one write costs less than two.
const SHORT: usize = 4 * 1024;

/// A request of which many are sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: &'static str,
    path: &'static str,
    keyed: bool,
    /// Whole lines.
    fields: &'static str,
    body: Bytes,
}

impl Request {
    pub(crate) const fn get(path: &'static str) -> Self {
        Self { method: "GET", path, keyed: false, fields: "", body: Bytes::new() }
    }

    pub(crate) fn post(path: &'static str, length: usize) -> Self {
        Self { method: "POST", path, keyed: false, fields: "", body: vec![b'b'; length].into() }
    }

    /// The same with more fields, each a line with its end.
    pub(crate) fn with(self, fields: &'static str) -> Self {
        Self { fields, ..self }
    }

    /// The same with an idempotency key for each.
    pub(crate) fn keyed(self, keyed: bool) -> Self {
        Self { keyed, ..self }
    }

    /// The head of the one of that number.
    fn head(&self, number: u64) -> String {
        let Self { method, path, keyed, fields, body } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n{fields}");
        if *keyed {
            head += &format!("idempotency-key: bench-{number:020}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-type: application/octet-stream\r\ncontent-length: {}\r\n", body.len());
        }
        head + "\r\n"
    }

    /// The one of that number: in one piece where it is short, else head and body, which all of them share.
    pub(crate) fn pieces(&self, number: u64) -> (Bytes, Bytes) {
        let head = self.head(number);
        if self.body.len() > SHORT {
            return (head.into(), self.body.clone());
        }
        ([head.as_bytes(), &self.body].concat().into(), Bytes::new())
    }
}

/// A message that arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
}

impl Message {
    /// Of an answer.
    pub(crate) fn status(&self) -> Option<u16> {
        status(&self.head)
    }

    /// The value of the first field of that name, which is in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Whether its sender closes the connection after it.
    pub(crate) fn closes(&self) -> bool {
        self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        write!(f, "{} {}", String::from_utf8_lossy(first), String::from_utf8_lossy(&self.body).trim_end())
    }
}

/// Reads the next message. None where the other side closed before its first byte.
///
/// # Errors
/// `UnexpectedEof` where it breaks off, `InvalidData` where it does not say how long it is, or what the kernel said.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> io::Result<Option<Message>> {
    let mut known = None;
    loop {
        if known.is_none() {
            known = Head::read(buffer)?;
        }
        if let Some(Head { length, body, .. }) = known {
            if buffer.len() >= length + body {
                let head = buffer.split_to(length).freeze();
                return Ok(Some(Message { head, body: buffer.split_to(body).freeze() }));
            }
            buffer.reserve(length + body - buffer.len());
        }
        if stream.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
}

/// What a receiver needs to know of a message's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes up to the body.
    pub(crate) length: usize,
    /// Bytes of the body. A request that does not say has none, and every answer here says.
    pub(crate) body: usize,
    /// Of an answer.
    pub(crate) status: Option<u16>,
    /// Whether its sender closes the connection after it, or wants it closed.
    pub(crate) closes: bool,
}

impl Head {
    /// The one at the start, once it is whole. One pass, since the ends of a bench do this for every message.
    ///
    /// # Errors
    /// `InvalidData` where it does not say how long the message is.
    pub(crate) fn read(bytes: &[u8]) -> io::Result<Option<Self>> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let (mut head, mut at) = (Self { status: status(bytes), ..Self::default() }, 0);
        loop {
            let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') else {
                return if bytes.len() > MAX_HEAD { Err(wrong("the head has no end")) } else { Ok(None) };
            };
            let line = &bytes[at..at + end];
            at += end + 1;
            match line.first().map(u8::to_ascii_lowercase) {
                None | Some(b'\r') => return Ok(Some(Self { length: at, ..head })),
                Some(b'c') => {
                    if let Some(length) = value(line, "content-length") {
                        head.body = length.parse().map_err(|_| wrong("content-length is no number"))?;
                    } else if let Some(connection) = value(line, "connection") {
                        head.closes = connection.eq_ignore_ascii_case("close");
                    }
                }
                Some(b't') if value(line, "transfer-encoding").is_some() => {
                    return Err(wrong("a message in chunks does not say how long it is"));
                }
                Some(_) => {}
            }
        }
    }
}

/// Of an answer's first line.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.strip_prefix(b"HTTP/1.1 ")?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

/// What the line says, where its field has that name, which is in lower case.
fn value<'l>(line: &'l [u8], name: &str) -> Option<&'l str> {
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    let value = found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)?;
    std::str::from_utf8(value).ok().map(str::trim)
}

/// The value of the first field of that name, which is in lower case.
fn field<'h>(head: &'h [u8], name: &str) -> Option<&'h str> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| value(line, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &str) -> io::Result<Vec<Message>> {
        let (mut stream, mut buffer, mut messages) = (text.as_bytes(), BytesMut::new(), Vec::new());
        while let Some(message) = read(&mut stream, &mut buffer).await? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[tokio::test]
    async fn messages_are_read_one_after_the_other_by_the_length_that_they_say() {
        let first = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\none";
        let second = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n";
        let messages = all(&format!("{first}{second}")).await.expect("both are whole");
        assert_eq!(messages.iter().map(Message::status).collect::<Vec<_>>(), [Some(200), Some(503)]);
        assert_eq!(messages.iter().map(Message::closes).collect::<Vec<_>>(), [false, true]);
        assert_eq!(messages[0].to_string(), "HTTP/1.1 200 OK one");
        assert_eq!(messages[1].body, "");
    }

    #[tokio::test]
    async fn what_breaks_off_or_does_not_say_how_long_it_is_is_an_error() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\none", io::ErrorKind::UnexpectedEof),
            ("HTTP/1.1 200 OK\r\ncontent-le", io::ErrorKind::UnexpectedEof),
            ("HTTP/1.1 200 OK\r\ncontent-length: four\r\n\r\n", io::ErrorKind::InvalidData),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", io::ErrorKind::InvalidData),
            (&"x".repeat(MAX_HEAD + 1), io::ErrorKind::InvalidData),
        ] {
            assert_eq!(all(text).await.expect_err(text).kind(), expected, "{text}");
        }
        assert!(all("").await.expect("nothing is no message").is_empty());
    }

    #[tokio::test]
    async fn a_request_is_read_back_as_it_was_written_and_each_has_a_key_of_its_own() {
        for length in [512, SHORT + 1] {
            let request = Request::post("/pay", length).keyed(true);
            let [one, two] = [1, 2].map(|number| {
                let (first, rest) = request.pieces(number);
                [first, rest].concat()
            });
            assert!(one.len() == two.len() && one != two);
            let message = all(std::str::from_utf8(&one).expect("is text")).await.expect("is whole").remove(0);
            assert!(message.head.starts_with(b"POST /pay HTTP/1.1\r\n"));
            assert_eq!(field(&message.head, "idempotency-key"), Some("bench-00000000000000000001"));
            assert_eq!(message.body, request.body);
        }
        let (whole, rest) = Request::get("/").pieces(1);
        assert_eq!((&whole[..], &rest[..]), (&b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n"[..], &b""[..]));
    }
}
