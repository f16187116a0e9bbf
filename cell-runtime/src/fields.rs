//! Which header fields go on and which end here (RFC 9110, section 7.6.1). Pure.

use bulkhead_protocol::fields;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap,
    HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static(fields::DEADLINE);
pub(crate) const CELL: HeaderName = HeaderName::from_static(fields::CELL);
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static(fields::OUTCOME);
pub(crate) const REASON: HeaderName = HeaderName::from_static(fields::REASON);
pub(crate) const EGRESS: HeaderName = HeaderName::from_static(fields::EGRESS);
pub(crate) const DESTINATION_STATUS: HeaderName = HeaderName::from_static(fields::DESTINATION_STATUS);
pub(crate) const STATE: HeaderName = HeaderName::from_static(fields::STATE);

/// Removes what concerns one connection only: the fixed list, and what `connection` names.
pub(crate) fn end_hop(headers: &mut HeaderMap) {
    // A length beside it says nothing of the body (RFC 9112, section 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    // A peer that takes trailers takes them over this hop too.
    let trailers = headers.get(TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes fields of ours from a service's answer: to routers, only the cell-runtime speaks them.
pub(crate) fn drop_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(fields::PREFIX)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

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

    fn check(change: fn(&mut HeaderMap), before: &[(&str, &str)], after: &[(&str, &str)]) {
        let mut map = headers(before);
        change(&mut map);
        assert_eq!(map, headers(after));
    }

    #[test]
    fn fields_of_one_connection_end_with_it() {
        check(
            end_hop,
            &[
                ("connection", "close, X-Private"),
                ("x-private", "1"),
                ("keep-alive", "5"),
                ("x-account", "7"),
            ],
            &[("x-account", "7")],
        );
        check(
            end_hop,
            &[
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("content-length", "3"),
                ("upgrade", "h2c"),
            ],
            &[("te", "trailers")],
        );
        check(end_hop, &[("te", "gzip")], &[]);
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
    fn a_service_cannot_speak_for_the_cell_runtime() {
        check(
            drop_ours,
            &[("bulkhead-outcome", "restart"), ("bulkhead-new", "x"), ("x-bulkhead", "kept")],
            &[("x-bulkhead", "kept")],
        );
    }

    #[test]
    fn a_deadline_is_a_number_or_an_error() {
        assert_eq!(deadline(&headers(&[])), Ok(None));
        assert_eq!(deadline(&headers(&[("bulkhead-deadline", "250")])), Ok(Some(250)));
        assert_eq!(deadline(&headers(&[("bulkhead-deadline", "soon")])), Err("soon".to_owned()));
    }
}
