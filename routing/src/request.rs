//! What a decision may read of a request. Where the request comes from, and its codec, are the caller's.

use std::borrow::Cow;

use bulkhead_protocol::Reason;

use crate::condition::Source;
use crate::decide::Refusal;

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
    /// The whole body; read only where [`crate::Table::needs_body`] said so, or the chosen rule's key is taken from it.
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

/// The value of that part of the request; none when the request has no such part.
///
/// # Errors
/// `Malformed` when the part is in a body that is no JSON.
pub(crate) fn read<'r>(
    source: &Source,
    view: &'r impl RequestView,
) -> Result<Option<Cow<'r, [u8]>>, Refusal> {
    Ok(match source {
        Source::Method => Some(view.method().as_bytes().into()),
        Source::Path => Some(view.path().as_bytes().into()),
        Source::Host => view.host().map(host),
        Source::Header(name) => view.header(name).map(Cow::Borrowed),
        Source::Query(name) => view.query().and_then(|query| parameter(query, name)),
        Source::Pointer(pointer) => pointed(view.body(), pointer)?,
    })
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

/// Stands in until the scanner takes its place.
fn pointed<'r>(body: &'r [u8], pointer: &str) -> Result<Option<Cow<'r, [u8]>>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    let value: serde_json::Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::new(Reason::Malformed, format!("the body is no JSON: {error}")))?;
    Ok(match value.pointer(pointer) {
        Some(serde_json::Value::String(text)) => Some(Cow::Owned(text.clone().into_bytes())),
        Some(serde_json::Value::Number(number)) => Some(Cow::Owned(number.to_string().into_bytes())),
        Some(serde_json::Value::Bool(value)) => Some(Cow::Owned(value.to_string().into_bytes())),
        _ => None,
    })
}
