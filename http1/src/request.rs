//! Heads of requests.

use bytes::BytesMut;
use http::uri::Authority;
use http::{Method, Uri};

use crate::error::Error;
use crate::fields::{Fields, has_token};
use crate::framing::{Framing, keeps_alive};
use crate::head::{self, Progress, Slots};
use crate::name::Known;

/// A request without its body.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    /// As sent, in any of the four forms.
    pub target: Uri,
    pub fields: Fields,
    pub http10: bool,
    pub framing: Framing,
    /// The client keeps the connection.
    pub keeps_alive: bool,
    /// The client waits for `100 Continue` before it sends its body (RFC 9110, section 10.1.1).
    pub expects_continue: bool,
}

/// Reads heads off a buffer that grows.
#[derive(Debug, Default)]
pub struct RequestReader(Progress);

impl RequestReader {
    /// Takes one head of at most `limit` bytes off the buffer; none while it is not whole.
    ///
    /// # Errors
    /// What of it is no HTTP. There is no telling then where the next begins.
    pub fn read(&mut self, buffer: &mut BytesMut, limit: usize) -> Result<Option<Request>, Error> {
        if buffer.is_empty() || !self.0.is_due(buffer, limit) {
            return Ok(None);
        }
        let arrived = head::within(buffer, limit);
        let empty = head::empty_lines(arrived);
        let bytes = &arrived[empty..];
        if bytes.starts_with(b"\n") || (bytes.starts_with(b"\r") && bytes.len() > 1) {
            return Err(Error::LineEnd);
        }
        let mut slots: Slots<'_> = [const { std::mem::MaybeUninit::uninit() }; head::MOST_FIELDS];
        let mut parsed = httparse::Request::new(&mut []);
        let config = httparse::ParserConfig::default();
        let status = config.parse_request_with_uninit_headers(&mut parsed, bytes, &mut slots);
        let length = match status.map_err(|error| head::error(error, request_line(bytes)))? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return head::partial(arrived, limit),
        };
        let mut fields = head::fields(&bytes[..length], parsed.headers)?;
        let method = Method::from_bytes(parsed.method.unwrap_or_default().as_bytes());
        let method = method.map_err(|_| Error::RequestLine)?;
        let path = parsed.path.unwrap_or_default();
        let at = path.as_ptr() as usize - bytes.as_ptr() as usize;
        let (target, http10) = (at..at + path.len(), parsed.version == Some(0));
        let _ = buffer.split_to(empty);
        self.0.reset();
        let bytes = head::take(buffer, length, &mut fields);
        // A fragment is no part of any form, and would be dropped without a word.
        if bytes[target.clone()].contains(&b'#') {
            return Err(Error::Target);
        }
        let target = Uri::from_maybe_shared(bytes.slice(target)).map_err(|_| Error::Target)?;
        whole(method, target, fields, http10).map(Some)
    }
}

fn whole(method: Method, target: Uri, fields: Fields, http10: bool) -> Result<Request, Error> {
    check_target(&method, &target)?;
    let framing = Framing::of_request(&fields, http10)?;
    let keeps_alive = keeps_alive(&fields, http10);
    let expects_continue =
        !http10 && framing != Framing::NONE && has_token(fields.all_known(Known::Expect), "100-continue");
    Ok(Request { method, target, fields, http10, framing, keeps_alive, expects_continue })
}

/// What was wrong with a first line, which `httparse` does not say. The first byte that no target has tells, so that it
/// does not matter how many have arrived behind it.
fn request_line(bytes: &[u8]) -> Error {
    let method = bytes.iter().take_while(|byte| is_of_token(byte)).count();
    let Some(target) = bytes[method..].strip_prefix(b" ").filter(|_| method > 0) else {
        return Error::RequestLine;
    };
    match target.iter().position(|byte| *byte <= b' ' || *byte == 127) {
        Some(0) | None => Error::RequestLine,
        // The line ends where a version should be.
        Some(at) if matches!(target[at], b'\r' | b'\n') => Error::RequestLine,
        Some(_) => Error::Target,
    }
}

/// Characters of a method (RFC 9110, section 5.6.2).
fn is_of_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// `host:port` is CONNECT's alone, and `*` OPTIONS' (RFC 9112, section 3.2).
fn check_target(method: &Method, target: &Uri) -> Result<(), Error> {
    let connects = *method == Method::CONNECT;
    let is_right = match (target.scheme(), target.authority()) {
        (Some(_), Some(authority)) => !connects && is_authority(authority),
        (None, Some(authority)) => connects && authority.port().is_some() && is_authority(authority),
        (None, None) if target.path() == "*" => *method == Method::OPTIONS,
        (None, None) => target.path().starts_with('/') && !connects,
        (Some(_), None) => false,
    };
    if is_right { Ok(()) } else { Err(Error::Target) }
}

/// A host that is not empty, perhaps with a port, and nobody's name before it (RFC 9110, sections 4.2.1 and 4.2.4).
fn is_authority(authority: &Authority) -> bool {
    !authority.as_str().is_empty() && is_host(authority.as_str().as_bytes())
}

/// Whether a request that could be read says once to whom it goes.
///
/// # Errors
/// [`Error::Host`].
pub fn check_host(fields: &Fields, http10: bool) -> Result<(), Error> {
    let mut hosts = fields.all_known(Known::Host);
    match (hosts.next(), hosts.next()) {
        (None, _) if http10 => Ok(()),
        (Some(host), None) if is_host(host) => Ok(()),
        _ => Err(Error::Host),
    }
}

/// A name or an address, perhaps with its port (RFC 3986, sections 3.2.2 and 3.2.3), or nothing at all, which is said where a
/// target has no authority (RFC 9112, section 3.2).
pub(crate) fn is_host(text: &[u8]) -> bool {
    let is_colon = |byte: &u8| *byte == b':';
    let literal = text.strip_prefix(b"[");
    let (host, port) = match literal {
        Some(rest) => {
            let Some(end) = memchr::memchr(b']', rest) else { return false };
            (&rest[..end], &rest[end + 1..])
        }
        None => text.split_at(text.iter().position(is_colon).unwrap_or(text.len())),
    };
    let is_of_host = |byte: &u8| is_of_name(byte) || (literal.is_some() && is_colon(byte));
    let is_port = port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit));
    text.is_empty() || (!host.is_empty() && host.iter().all(is_of_host) && is_port)
}

fn is_of_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Request>, Error> {
        RequestReader::default().read(&mut BytesMut::from(text), 1024)
    }

    #[track_caller]
    fn check(text: &str, expected: Error) {
        assert_eq!(read(text).expect_err(text), expected, "{text:?}");
    }

    #[test]
    fn a_head_is_taken_off_and_what_follows_stays() {
        let text = "\r\nPOST /pay?x=1 HTTP/1.1\r\nHost: shop\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nhiGET";
        let mut buffer = BytesMut::from(text);
        let request = RequestReader::default().read(&mut buffer, 1024).expect("is HTTP").expect("is whole");
        assert_eq!((request.method, request.target.to_string()), (Method::POST, "/pay?x=1".to_owned()));
        assert_eq!(request.framing, Framing::Length(2));
        assert!(request.keeps_alive && !request.http10 && !request.expects_continue);
        let expected = [("Host", "shop"), ("X-Empty", ""), ("Content-Length", "2")];
        assert_eq!(request.fields, expected.into_iter().collect());
        assert_eq!(&buffer[..], b"hiGET");
    }

    #[test]
    fn a_head_that_is_not_whole_is_waited_for_up_to_the_limit() {
        let mut reader = RequestReader::default();
        let mut buffer = BytesMut::from("GET / HTTP/1.1\r\nhost: a\r\n\r");
        assert!(matches!(reader.read(&mut buffer, 1024), Ok(None)));
        buffer.extend_from_slice(b"\n");
        assert!(matches!(reader.read(&mut buffer, 1024), Ok(Some(_))));
        let long = format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(1024));
        check(&long, Error::HeadTooLarge);
        check(&format!("{long}\r\n\r\n"), Error::HeadTooLarge);
    }

    #[test]
    fn lines_end_in_crlf_and_in_nothing_else() {
        for text in [
            "GET / HTTP/1.1\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\n\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET / HTTP/1.1\n\r\n",
            "\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\rGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        ] {
            check(text, Error::LineEnd);
        }
        check("GET / HTTP/1.1\r\nhost: a\rb: c\r\n\r\n", Error::FieldValue);
        check("GET / HTTP/1.1\r\nhost: a\r\nb: c\0\r\n\r\n", Error::FieldValue);
    }

    #[test]
    fn a_field_is_one_line_with_a_token_before_its_colon() {
        check("GET / HTTP/1.1\r\nhost: a\r\n b: c\r\n\r\n", Error::FieldName);
        check("GET / HTTP/1.1\r\nhost : a\r\n\r\n", Error::FieldName);
        check("GET / HTTP/1.1\r\nhost: a\r\n: c\r\n\r\n", Error::FieldName);
        check("GET / HTTP/1.1\r\n host: a\r\n\r\n", Error::FieldName);
        let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
        let mut buffer = BytesMut::from(format!("GET / HTTP/1.1\r\n{many}\r\n").as_str());
        let error = RequestReader::default().read(&mut buffer, 65_536).expect_err("has too many");
        assert_eq!(error, Error::TooManyFields);
    }

    #[test]
    fn first_lines_are_by_the_letter() {
        check("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", Error::RequestLine);
        check("G\u{1}T / HTTP/1.1\r\nhost: a\r\n\r\n", Error::RequestLine);
        check("GET / HTTP/1.1 \r\nhost: a\r\n\r\n", Error::LineEnd);
        check("GET / HTTP/2.0\r\nhost: a\r\n\r\n", Error::Version);
        check("GET /\r\n\r\n", Error::RequestLine);
        check("\u{16}\u{3}\u{1}", Error::RequestLine);
    }

    #[test]
    fn targets_have_the_form_of_their_method() {
        let check_ok = |text: &str| assert!(matches!(read(text), Ok(Some(_))), "{text:?}");
        check_ok("GET http://shop/x HTTP/1.1\r\nhost: a\r\n\r\n");
        check_ok("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n");
        check_ok("CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n");
        for text in ["GET * HTTP/1.1", "GET a:443 HTTP/1.1", "CONNECT / HTTP/1.1", "GET http://u@a/ HTTP/1.1"]
        {
            check(&format!("{text}\r\nhost: a\r\n\r\n"), Error::Target);
        }
    }

    #[test]
    fn a_request_names_one_host() {
        let check = |hosts: &[&str], new, old| {
            let fields = hosts.iter().map(|host| ("host", host)).collect();
            let checked = [false, true].map(|http10| check_host(&fields, http10).is_ok());
            assert_eq!(checked, [new, old], "{hosts:?}");
        };
        check(&["a"], true, true);
        check(&["[::1]:80"], true, true);
        check(&[""], true, true);
        check(&[], false, true);
        check(&["[::1]"], true, true);
        check(&["a-b.c:"], true, true);
        for wrong in [&["a", "a"][..], &["a/b"], &["a b"], &["a, b"], &["u@a"]] {
            check(wrong, false, false);
        }
        for wrong in ["a:b", "a:80:80", "a:-1", ":80", "::1", "[::1", "[]", "[::1]a", "[a]:b", "a[b]", "]"] {
            check(&[wrong], false, false);
        }
    }
}
