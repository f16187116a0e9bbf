//! What a decision may read of a request. Where the request comes from, and its codec, are the caller's.

use std::borrow::Cow;

use bulkhead_protocol::Reason;

use crate::condition::Source;
use crate::decide::Refusal;
use crate::json::{Found, Pointers};

/// The parts of a request that rules can name. Everything is as the client sent it; decoding is this crate's.
pub trait RequestView {
    fn method(&self) -> &str;
    /// The path as sent, without the query.
    fn path(&self) -> &str;
    /// What follows `?`, as sent.
    fn query(&self) -> Option<&str>;
    /// The authority or `Host` field as sent, with its port.
    fn host(&self) -> Option<&str>;
    /// First value of that field; the name is given in small letters.
    fn header(&self, lower_case_name: &str) -> Option<&[u8]>;
    /// The whole body. It is asked for only where a rule whose head matches looks into it, or takes its key from it, so
    /// that who asks in vain knows that it is needed.
    fn body(&self) -> &[u8];
}

/// A request in owned parts, for those who have no connection: `bulkhead explain`, the operator, tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestParts {
    pub method: String,
    pub path: String,
    pub query: Option<String>,
    pub host: Option<String>,
    /// Names in small letters.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl RequestView for RequestParts {
    fn method(&self) -> &str {
        &self.method
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(name, _)| name == lower_case_name).map(|(_, value)| value.as_slice())
    }

    fn body(&self) -> &[u8] {
        &self.body
    }
}

/// The value of that part of the request's head; none when it has no such part, or when the part is in the body.
pub(crate) fn read_head<'r>(source: &Source, view: &'r impl RequestView) -> Option<Cow<'r, [u8]>> {
    match source {
        Source::Method => Some(view.method().as_bytes().into()),
        Source::Path => Some(view.path().as_bytes().into()),
        Source::Host => view.host().map(host),
        Source::Header(name) => view.header(name).map(Cow::Borrowed),
        Source::Query(name) => view.query().and_then(|query| parameter(query, name)),
        Source::Pointer(_) => None,
    }
}

/// The values of those pointers in the request's body.
///
/// # Errors
/// `Malformed` when the body is no JSON.
pub(crate) fn read_body<'r>(pointers: &Pointers, view: &'r impl RequestView) -> Result<Found<'r>, Refusal> {
    pointers.find(view.body()).map_err(|error| Refusal::new(Reason::Malformed, error.to_string()))
}

/// In small letters and without a port.
fn host(authority: &str) -> Cow<'_, [u8]> {
    let port = authority.rfind(':').filter(|place| !authority[*place..].contains(']'));
    let host = &authority[..port.unwrap_or(authority.len())];
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase().into_bytes())
    } else {
        Cow::Borrowed(host.as_bytes())
    }
}

/// The first parameter of that name, decoded as forms are (`+` is a space). What is no legal escape stays as it is.
fn parameter<'q>(query: &'q str, name: &str) -> Option<Cow<'q, [u8]>> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*decoded(key) == *name.as_bytes()).then(|| decoded(value))
    })
}

fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        bytes.push(match (first, after) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            (other, _) => *other,
        });
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(request: &RequestParts, source: &Source, expected: Option<&str>) {
        let value = read_head(source, request);
        assert_eq!(value.as_deref(), expected.map(str::as_bytes), "{source} of {request:?}");
    }

    #[test]
    fn hosts_lose_port_and_capitals() {
        for (sent, expected) in [
            ("Pay.Example.COM:8080", "pay.example.com"),
            ("pay.example.com", "pay.example.com"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[::1]:8080", "[::1]"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
        ] {
            let request = RequestParts { host: Some(sent.to_owned()), ..RequestParts::default() };
            check(&request, &Source::Host, Some(expected));
        }
        check(&RequestParts::default(), &Source::Host, None);
    }

    #[test]
    fn query_parameters_are_decoded_and_the_first_of_a_name_counts() {
        let query = "a=1&a=2&%62=x%2Fy+z%zz%4&empty=&flag&c%3Dd=e=f";
        let request = RequestParts { query: Some(query.to_owned()), ..RequestParts::default() };
        for (name, expected) in [
            ("a", Some("1")),
            ("b", Some("x/y z%zz%4")),
            ("empty", Some("")),
            ("flag", Some("")),
            ("c=d", Some("e=f")),
            ("A", None),
            ("zz", None),
        ] {
            check(&request, &Source::Query(name.to_owned()), expected);
        }
    }

    #[test]
    fn the_rest_is_as_it_was_sent() {
        let request = RequestParts {
            method: "POST".to_owned(),
            path: "/a%2Fb/C".to_owned(),
            headers: vec![("x-a".to_owned(), b"V".to_vec()), ("x-a".to_owned(), b"w".to_vec())],
            ..RequestParts::default()
        };
        check(&request, &Source::Method, Some("POST"));
        check(&request, &Source::Path, Some("/a%2Fb/C"));
        check(&request, &Source::Header("x-a".to_owned()), Some("V"));
        check(&request, &Source::Header("x-b".to_owned()), None);
    }
}
