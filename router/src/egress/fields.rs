//! Header fields between a cell and a destination: what is passed on, what is taken off, what is put on. Pure.

use bulkhead_protocol::{TransactionId, hop};
use bulkhead_routing::table::{Destination, DestinationKind};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};

/// Fields of an answer that say nothing in a request, or that hyper writes itself.
const OF_ANSWERS: [HeaderName; 4] =
    [header::DATE, header::SERVER, header::SET_COOKIE, header::CONTENT_LENGTH];

/// The fields of the message for a destination, from those of the cell's answer that asks for it. `host` is left to the
/// endpoint where the Destination names none, and the duplicate check's field is ours whatever the cell says in it.
pub(crate) fn to_destination(
    mut fields: HeaderMap,
    destination: &Destination,
    id: &TransactionId,
    number: u32,
) -> HeaderMap {
    clean(&mut fields);
    fields.remove(header::TRAILER);
    fields.remove(header::EXPECT);
    for name in &OF_ANSWERS {
        fields.remove(name);
    }
    fields.remove(header::HOST);
    // The table holds no Destination whose names and values no header takes.
    if let DestinationKind::Http { host: Some(host), .. } = &destination.kind
        && let Ok(host) = HeaderValue::try_from(host)
    {
        fields.insert(header::HOST, host);
    }
    if let Some(name) = &destination.duplicate_header
        && let (Ok(name), Ok(value)) =
            (HeaderName::try_from(name), HeaderValue::try_from(format!("{id}/{number}")))
    {
        fields.insert(name, value);
    }
    fields
}

/// The fields of a destination's answer that go back to the cell: the end-to-end ones, without any of ours and without the
/// length, which changes where a context precedes the body.
pub(crate) fn from_destination(mut fields: HeaderMap) -> HeaderMap {
    clean(&mut fields);
    fields.remove(header::TE);
    fields.remove(header::CONTENT_LENGTH);
    fields.remove(header::TRAILER);
    fields
}

/// What ends with its connection, and what is ours.
fn clean(fields: &mut HeaderMap) {
    hop::end_hop(fields);
    hop::drop_ours(fields);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::fixture;

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::try_from(text).expect("a legal value");
        fields.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    #[track_caller]
    fn check(spec: &str, before: &[(&'static str, &str)], after: &[(&'static str, &str)]) {
        let id = TransactionId::from_bytes([7; 16]);
        let destination = fixture::destination(spec);
        assert_eq!(to_destination(map(before), &destination, &id, 3), map(after));
    }

    const NO_EFFECTS: &str = "{http: {}, pointOfNoReturn: false, endpoints: ['issuer:80']}";

    #[test]
    fn a_cells_own_fields_are_passed_on_and_those_of_the_answer_are_not() {
        check(
            NO_EFFECTS,
            &[
                ("content-type", "application/json"),
                ("x-trace", "1"),
                ("authorization", "Basic x"),
                ("date", "Mon, 30 Nov 2026 14:03:19 GMT"),
                ("server", "cell"),
                ("set-cookie", "a=b"),
                ("content-length", "12"),
                ("host", "elsewhere"),
                ("expect", "100-continue"),
                ("connection", "close, x-hop"),
                ("x-hop", "1"),
                ("transfer-encoding", "chunked"),
                ("bulkhead-outcome", "egress"),
                ("bulkhead-egress", "3"),
                ("bulkhead-whatever", "1"),
            ],
            &[("content-type", "application/json"), ("x-trace", "1"), ("authorization", "Basic x")],
        );
    }

    #[test]
    fn the_duplicate_check_gets_id_and_number_whatever_the_cell_wrote() {
        let spec = "{http: {host: issuer.example}, endpoints: ['issuer:80'],
            duplicateCheck: {type: Header, header: Idempotency-Key}}";
        let key = "07070707-0707-0707-0707-070707070707/3";
        check(
            spec,
            &[("idempotency-key", "mine"), ("idempotency-key", "and mine")],
            &[("host", "issuer.example"), ("idempotency-key", key)],
        );
    }

    #[test]
    fn an_answer_goes_back_without_what_belongs_to_its_connection_or_to_us() {
        let answer = map(&[
            ("content-type", "application/json"),
            ("content-length", "7"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("bulkhead-outcome", "restart"),
            ("retry-after", "1"),
        ]);
        let back = map(&[("content-type", "application/json"), ("retry-after", "1")]);
        assert_eq!(from_destination(answer), back);
    }
}
