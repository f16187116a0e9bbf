//! Header fields on their way through: what is taken off, what is put on. Pure; the order of fields that are passed on
//! is kept.

use bulkhead_http1::{Fields, Known};
use bulkhead_protocol::{TransactionId, fields as names};

use crate::edge::Message;

/// Takes off what a client may not say: our own fields and those of its connection. An upgrade stays asked for where
/// `keep_upgrade`.
pub(crate) fn clean_request(fields: &mut Fields, keep_upgrade: bool) {
    clean(fields, |known, value| match known {
        // What a client sends behind its body is not passed on, but what a cell does is, to whom wants it.
        Known::Te => value.eq_ignore_ascii_case(b"trailers"),
        Known::Upgrade => keep_upgrade,
        // The edge has said 100-continue itself, or says it when the body is read.
        Known::Expect | Known::Trailer => false,
        _ => true,
    });
    if keep_upgrade {
        fields.push("connection", b"upgrade");
    }
}

/// Takes off what a cell says to the router alone.
pub(crate) fn clean_answer(fields: &mut Fields, keep_upgrade: bool) {
    clean(fields, |known, _| match known {
        // Only a request says what its sender takes.
        Known::Te => false,
        Known::Upgrade => keep_upgrade,
        _ => true,
    });
}

/// Takes off what speaks of one connection only (RFC 9110, section 7.6.1), what is ours, and what does not stay.
fn clean(fields: &mut Fields, stays: impl Fn(Known, &[u8]) -> bool) {
    let named = named_by_connection(fields);
    fields.retain(|known, name, value| {
        let ends_here = matches!(
            known,
            Known::Connection
                | Known::Http2Settings
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::TransferEncoding
        );
        !ends_here
            && !is_ours(name)
            && stays(known, value)
            && !named.iter().any(|named| name.eq_ignore_ascii_case(named))
    });
}

/// Fields of one connection by its own word, beside those that always are.
fn named_by_connection(fields: &Fields) -> Vec<Vec<u8>> {
    const EVERYDAY: [&str; 6] = ["", "keep-alive", "close", "upgrade", "te", "content-length"];
    let values = fields.all_known(Known::Connection).flat_map(|value| value.split(|byte| *byte == b','));
    let names = values.map(<[u8]>::trim_ascii);
    let is_other = |name: &&[u8]| !EVERYDAY.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    // Without its host a request goes nowhere.
    names.filter(is_other).filter(|name| !name.eq_ignore_ascii_case(b"host")).map(<[u8]>::to_vec).collect()
}

/// A client, a service and whoever writes trailers say nothing by these.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    let prefix = names::PREFIX.as_bytes();
    let begins = name.first().is_some_and(|first| first.eq_ignore_ascii_case(&prefix[0]));
    begins && name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
}

/// One attempt, as the cell is told of it.
pub(crate) struct AttemptFields<'a> {
    pub(crate) transaction: TransactionId,
    pub(crate) attempt: u32,
    pub(crate) cell: &'a str,
    /// None where nobody says how long it may take.
    pub(crate) deadline_ms: Option<u64>,
}

/// `host` as it goes to the cell is the authority of an absolute target if there was one, else what the client said. It may
/// be empty (HTTP/1.0), but is always there.
pub(crate) fn of_attempt(message: &mut Message, attempt: &AttemptFields<'_>) {
    message.field(names::TRANSACTION, attempt.transaction.text(&mut [0; 36]).as_bytes());
    message.number(names::ATTEMPT, attempt.attempt.into());
    message.field(names::CELL, attempt.cell.as_bytes());
    if let Some(left) = attempt.deadline_ms {
        message.number(names::DEADLINE, left);
    }
}

/// What a listener with `explain` tells the client.
pub(crate) struct Explained<'a> {
    pub(crate) cell: Option<&'a str>,
    pub(crate) rule: Option<&'a str>,
    pub(crate) attempts: u32,
}

pub(crate) fn of_answer(fields: &mut Fields, transaction: &TransactionId, explained: Option<&Explained<'_>>) {
    fields.push(names::TRANSACTION, transaction.text(&mut [0; 36]).as_bytes());
    let Some(explained) = explained else { return };
    for (name, text) in [(names::CELL, explained.cell), (names::RULE, explained.rule)] {
        if let Some(text) = text {
            fields.push(name, text.as_bytes());
        }
    }
    fields.push(names::ATTEMPTS, explained.attempts.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &[(&str, &str)], keep_upgrade: bool, after: &[(&str, &str)]) {
        let mut fields = before.iter().copied().collect();
        clean_request(&mut fields, keep_upgrade);
        assert_eq!(fields, after.iter().copied().collect());
    }

    #[test]
    fn fields_of_the_connection_and_ours_are_taken_off() {
        check(
            &[
                ("host", "shop"),
                ("connection", "keep-alive, X-Private"),
                ("x-private", "1"),
                ("transfer-encoding", "chunked"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
                ("bulkhead-cell", "b"),
                ("Bulkhead-Anything", "1"),
                ("expect", "100-continue"),
                ("X-Partner", "acme"),
                ("x-partner", "beta"),
            ],
            false,
            &[("host", "shop"), ("X-Partner", "acme"), ("x-partner", "beta")],
        );
    }

    #[test]
    fn connection_cannot_take_off_the_host_or_the_length() {
        let whole = [("host", "shop"), ("content-length", "3")];
        check(&[whole[0], whole[1], ("connection", "Host, content-length")], false, &whole);
    }

    #[test]
    fn trailers_reach_whoever_wants_them_and_no_client_sends_any() {
        let host = ("host", "shop");
        check(&[host, ("te", "Trailers"), ("trailer", "x-sum")], false, &[host, ("te", "Trailers")]);
        check(&[host, ("te", "gzip")], false, &[host]);
    }

    #[test]
    fn an_answer_keeps_its_trailers_name_and_says_nothing_of_what_its_sender_takes() {
        let answer = [("te", "trailers"), ("trailer", "x-sum"), ("bulkhead-outcome", "restart")];
        let mut fields = answer.into_iter().collect();
        clean_answer(&mut fields, false);
        assert_eq!(fields, [("trailer", "x-sum")].into_iter().collect());
    }

    #[test]
    fn an_upgrade_stays_only_where_it_is_passed_through() {
        let asked = [("connection", "Upgrade"), ("upgrade", "websocket")];
        check(&asked, false, &[]);
        check(&asked, true, &[("upgrade", "websocket"), ("connection", "upgrade")]);
    }
}
