//! Which header fields go on within the cell, with a body and without. Pure.

use bulkhead_protocol::fields;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, TRAILER,
};

pub(crate) const DEADLINE: HeaderName = HeaderName::from_static(fields::DEADLINE);
pub(crate) const CELL: HeaderName = HeaderName::from_static(fields::CELL);
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static(fields::OUTCOME);
pub(crate) const REASON: HeaderName = HeaderName::from_static(fields::REASON);
pub(crate) const EGRESS: HeaderName = HeaderName::from_static(fields::EGRESS);
pub(crate) const DESTINATION_STATUS: HeaderName = HeaderName::from_static(fields::DESTINATION_STATUS);
pub(crate) const STATE: HeaderName = HeaderName::from_static(fields::STATE);

/// What a reader of the body has to know of it, which goes wherever the body goes.
pub(crate) fn of_body(headers: &HeaderMap) -> HeaderMap {
    let mut of_body = HeaderMap::new();
    for name in [CONTENT_TYPE, CONTENT_ENCODING] {
        for value in headers.get_all(&name) {
            of_body.append(&name, value.clone());
        }
    }
    of_body
}

/// Leaves what may go with another body than the one that the fields came with, and to another reader of the answer: which
/// encodings the caller takes says nothing of the next service, which reads what this one answers.
pub(crate) fn end_body(headers: &mut HeaderMap) {
    for name in [ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRAILER] {
        headers.remove(name);
    }
}

/// Milliseconds that the router waits for the answer; `None` when nobody says.
///
/// # Errors
/// The value, when it is no number.
pub(crate) fn deadline(headers: &HeaderMap) -> Result<Option<u64>, String> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    text.parse().map(Some).map_err(|_| text.into_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| {
                let name: HeaderName = name.parse().expect("a name");
                (name, HeaderValue::from_str(value).expect("a value"))
            })
            .collect()
    }

    #[test]
    fn what_speaks_of_a_body_goes_with_it_and_not_with_another() {
        let mut message = headers(&[
            ("accept-encoding", "gzip"),
            ("content-encoding", "gzip"),
            ("content-length", "3"),
            ("content-type", "text/plain"),
            ("x-account", "7"),
        ]);
        message.append(CONTENT_ENCODING, HeaderValue::from_static("br"));
        let mut encoded = headers(&[("content-encoding", "gzip"), ("content-type", "text/plain")]);
        encoded.append(CONTENT_ENCODING, HeaderValue::from_static("br"));
        assert_eq!(of_body(&message), encoded);
        end_body(&mut message);
        assert_eq!(message, headers(&[("x-account", "7")]));
    }

    #[test]
    fn a_deadline_is_a_number_or_an_error() {
        assert_eq!(deadline(&headers(&[])), Ok(None));
        assert_eq!(deadline(&headers(&[("bulkhead-deadline", "250")])), Ok(Some(250)));
        assert_eq!(deadline(&headers(&[("bulkhead-deadline", "soon")])), Err("soon".to_owned()));
    }
}
