//! Header fields on their way through: what is taken off, what is put on. Pure; the order of fields that are passed on
//! is kept.

use std::fmt::Write as _;
use std::net::IpAddr;

use bulkhead_protocol::{TransactionId, fields, hop};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

use crate::message::Head;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const TRANSACTION: HeaderName = HeaderName::from_static(fields::TRANSACTION);
const ATTEMPT: HeaderName = HeaderName::from_static(fields::ATTEMPT);
const CELL: HeaderName = HeaderName::from_static(fields::CELL);
const DEADLINE: HeaderName = HeaderName::from_static(fields::DEADLINE);
const RULE: HeaderName = HeaderName::from_static(fields::RULE);
const ATTEMPTS: HeaderName = HeaderName::from_static(fields::ATTEMPTS);

/// Takes off what a client may not say: our own fields and those of its connection. An upgrade stays asked for where
/// `keep_upgrade`.
pub(crate) fn clean_request(headers: &mut HeaderMap, keep_upgrade: bool) {
    let upgrade = keep_upgrade.then(|| headers.get(header::UPGRADE).cloned()).flatten();
    clean(headers);
    // What a client sends behind its body is not passed on, but what a cell does is, to whom wants it.
    headers.remove(header::TRAILER);
    // The edge has said 100-continue itself, or says it when the body is read.
    headers.remove(header::EXPECT);
    if let Some(protocol) = upgrade {
        headers.insert(header::UPGRADE, protocol);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Takes off what a cell says to the router alone.
pub(crate) fn clean_answer(headers: &mut HeaderMap, keep_upgrade: bool) {
    let upgrade = keep_upgrade.then(|| headers.get(header::UPGRADE).cloned()).flatten();
    clean(headers);
    // Only a request says what its sender takes.
    headers.remove(header::TE);
    if let Some(protocol) = upgrade {
        headers.insert(header::UPGRADE, protocol);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

fn clean(headers: &mut HeaderMap) {
    hop::end_hop(headers);
    hop::drop_ours(headers);
}

/// Says for whom the router speaks: the client's address is appended; protocol and host are the first router's to say.
pub(crate) fn forwarded(head: &mut Head, peer: IpAddr) {
    let host = host(head);
    let headers = &mut head.headers;
    let mut path = String::new();
    for value in headers.get_all(&FORWARDED_FOR) {
        if let Ok(value) = value.to_str() {
            path.push_str(value);
            path.push_str(", ");
        }
    }
    // Writing to a String does not fail.
    let _ = write!(path, "{peer}");
    if let Ok(value) = HeaderValue::try_from(path) {
        headers.insert(FORWARDED_FOR, value);
    }
    if !headers.contains_key(&FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !host.is_empty() && !headers.contains_key(&FORWARDED_HOST) {
        headers.insert(FORWARDED_HOST, host);
    }
}

/// `host` as it goes to the cell: the authority of an absolute target if there was one, else what the client said. It
/// may be empty (HTTP/1.0), but is always there.
pub(crate) fn host(head: &Head) -> HeaderValue {
    head.authority()
        .and_then(|host| HeaderValue::try_from(host).ok())
        .unwrap_or_else(|| HeaderValue::from_static(""))
}

/// One attempt, as the cell is told of it.
pub(crate) struct AttemptFields<'a> {
    pub(crate) transaction: &'a HeaderValue,
    pub(crate) attempt: u32,
    pub(crate) cell: &'a HeaderValue,
    pub(crate) deadline_ms: u64,
}

pub(crate) fn of_attempt(headers: &mut HeaderMap, attempt: &AttemptFields<'_>) {
    headers.insert(TRANSACTION, attempt.transaction.clone());
    headers.insert(ATTEMPT, HeaderValue::from(attempt.attempt));
    headers.insert(CELL, attempt.cell.clone());
    headers.insert(DEADLINE, HeaderValue::from(attempt.deadline_ms));
}

/// What a listener with `explain` tells the client.
pub(crate) struct Explained<'a> {
    pub(crate) cell: Option<&'a str>,
    pub(crate) rule: Option<&'a str>,
    pub(crate) attempts: u32,
}

pub(crate) fn of_answer(
    headers: &mut HeaderMap,
    transaction: &HeaderValue,
    explained: Option<&Explained<'_>>,
) {
    headers.insert(TRANSACTION, transaction.clone());
    let Some(explained) = explained else { return };
    for (name, text) in [(CELL, explained.cell), (RULE, explained.rule)] {
        if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(name, value);
        }
    }
    headers.insert(ATTEMPTS, HeaderValue::from(explained.attempts));
}

/// The id as a header's value.
pub(crate) fn transaction(id: &TransactionId) -> HeaderValue {
    // A UUID is hexadecimal digits and hyphens, which every header takes.
    HeaderValue::try_from(id.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::try_from(*name).expect("a legal name"),
                HeaderValue::try_from(*value).expect("a legal value"),
            );
        }
        headers
    }

    fn check(before: &[(&str, &str)], keep_upgrade: bool, after: &[(&str, &str)]) {
        let mut headers = map(before);
        clean_request(&mut headers, keep_upgrade);
        assert_eq!(headers, map(after));
    }

    #[test]
    fn fields_of_the_connection_and_ours_are_taken_off() {
        check(
            &[
                ("host", "shop"),
                ("connection", "keep-alive, x-private"),
                ("x-private", "1"),
                ("transfer-encoding", "chunked"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
                ("bulkhead-cell", "b"),
                ("Bulkhead-Anything", "1"),
                ("expect", "100-continue"),
                ("x-partner", "acme"),
                ("x-partner", "beta"),
            ],
            false,
            &[("host", "shop"), ("x-partner", "acme"), ("x-partner", "beta")],
        );
    }

    #[test]
    fn trailers_reach_whoever_wants_them_and_no_client_sends_any() {
        let host = ("host", "shop");
        check(&[host, ("te", "trailers"), ("trailer", "x-sum")], false, &[host, ("te", "trailers")]);
    }

    #[test]
    fn an_answer_keeps_its_trailers_name_and_says_nothing_of_what_its_sender_takes() {
        let mut headers = map(&[("te", "trailers"), ("trailer", "x-sum"), ("bulkhead-outcome", "restart")]);
        clean_answer(&mut headers, false);
        assert_eq!(headers, map(&[("trailer", "x-sum")]));
    }

    #[test]
    fn an_upgrade_stays_only_where_it_is_passed_through() {
        let asked = [("connection", "Upgrade"), ("upgrade", "websocket")];
        check(&asked, false, &[]);
        check(&asked, true, &[("upgrade", "websocket"), ("connection", "upgrade")]);
    }

    #[test]
    fn the_client_is_appended_to_those_before_it() {
        let mut head = Head {
            method: http::Method::GET,
            target: http::Uri::from_static("/"),
            headers: map(&[
                ("host", "shop:8080"),
                ("x-forwarded-for", "203.0.113.9"),
                ("x-forwarded-proto", "https"),
            ]),
            http10: false,
        };
        forwarded(&mut head, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(
            head.headers,
            map(&[
                ("host", "shop:8080"),
                ("x-forwarded-for", "203.0.113.9, 127.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "shop:8080")
            ])
        );
    }
}
