//! Header fields that end where they arrive: those of one connection (RFC 9110, section 7.6.1), and ours. Pure; the order of
//! the others is kept.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::fields::PREFIX;

/// Beside those that `connection` names.
const OF_ONE_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes what speaks of one connection only. A peer that takes trailers takes them over the next hop too.
pub fn end_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    // A length beside it says nothing of the body (RFC 9112, section 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let trailers =
        headers.get(header::TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes our own fields: a client, a service and whoever writes trailers say nothing by them.
pub fn drop_ours(headers: &mut HeaderMap) {
    let is_ours = |name: &&HeaderName| name.as_str().starts_with(PREFIX);
    let ours: Vec<HeaderName> = headers.keys().filter(is_ours).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            let name = HeaderName::try_from(*name).expect("a legal name");
            (name, HeaderValue::try_from(*value).expect("a legal value"))
        };
        fields.iter().map(field).collect()
    }

    #[track_caller]
    fn check(change: fn(&mut HeaderMap), before: &[(&str, &str)], after: &[(&str, &str)]) {
        let mut headers = map(before);
        change(&mut headers);
        assert_eq!(headers, map(after));
    }

    #[test]
    fn fields_of_one_connection_end_with_it() {
        check(
            end_hop,
            &[
                ("host", "shop"),
                ("connection", "keep-alive, X-Private"),
                ("x-private", "1"),
                ("keep-alive", "5"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
                ("upgrade", "h2c"),
                ("x-account", "7"),
            ],
            &[("host", "shop"), ("x-account", "7")],
        );
    }

    #[test]
    fn connection_cannot_take_off_the_host_or_the_length() {
        let whole = [("host", "shop"), ("content-length", "3")];
        check(end_hop, &[whole[0], whole[1], ("connection", "host, content-length")], &whole);
    }

    #[test]
    fn a_length_beside_an_encoding_for_one_connection_goes_with_it() {
        check(end_hop, &[("content-length", "3"), ("transfer-encoding", "chunked")], &[]);
    }

    #[test]
    fn of_what_a_peer_accepts_trailers_alone_pass_the_hop() {
        check(end_hop, &[("te", "Trailers")], &[("te", "trailers")]);
        check(end_hop, &[("te", "gzip")], &[]);
    }

    #[test]
    fn nobody_speaks_for_us() {
        check(
            drop_ours,
            &[("bulkhead-outcome", "restart"), ("Bulkhead-New", "x"), ("x-bulkhead", "kept")],
            &[("x-bulkhead", "kept")],
        );
    }
}
