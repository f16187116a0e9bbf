//! Holds docs/protocol.md against the code: the fields that it names, its limits, and the messages that it shows.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::egress::{self, MAX_BODY, MAX_CONTEXT, MAX_DESTINATION, MAX_EGRESSES, MAX_PATH, MAX_VERSION};
use crate::fields::{self, MAX_STATE, PREFIX};
use crate::{Continue, Egress};

const PAGE: &str = include_str!("../../docs/protocol.md");
const FIELDS: &str = include_str!("fields.rs");

/// Every field of ours that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let end = |rest: &str| rest.find(|c: char| c != '-' && !c.is_ascii_lowercase()).unwrap_or(rest.len());
    let fields = text.match_indices(PREFIX).map(|(start, _)| &text[start..start + end(&text[start..])]);
    fields.filter(|name| *name != PREFIX).collect()
}

/// The messages of the page: start line, fields and body.
fn messages() -> Vec<(&'static str, HeaderMap, Bytes)> {
    let blocks =
        PAGE.split("```http\n").skip(1).map(|rest| rest.split_once("\n```").expect("a block ends").0);
    blocks.map(message).collect()
}

fn message(block: &'static str) -> (&'static str, HeaderMap, Bytes) {
    let (head, body) = block.split_once("\n\n").expect("a body follows the head");
    let (start, lines) = head.split_once('\n').expect("fields follow the start");
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a field");
        (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
    };
    (start, lines.lines().map(field).collect(), Bytes::from_static(body.as_bytes()))
}

#[test]
fn the_page_explains_every_field_and_names_no_other() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let explained = rows.filter(|(name, _)| name.starts_with(PREFIX)).map(|(name, _)| name).collect();
    assert_eq!(named(FIELDS), explained);
    assert_eq!(named(FIELDS), named(PAGE));
}

#[test]
fn the_page_gives_every_limit() {
    for (what, limit) in [
        ("context and message together", format!("{MAX_BODY} bytes")),
        ("context", format!("{MAX_CONTEXT} bytes")),
        ("`bulkhead-context-version`", format!("{MAX_VERSION} bytes")),
        ("`bulkhead-destination`", format!("{MAX_DESTINATION} bytes of a-z, 0-9, - and .")),
        ("`bulkhead-egress-path`", format!("{MAX_PATH} bytes")),
        ("egresses of one transaction", MAX_EGRESSES.to_string()),
        ("`bulkhead-state`", format!("{MAX_STATE} bytes")),
    ] {
        let row = format!("| {what} | {limit} |");
        assert!(PAGE.lines().any(|line| line == row), "missing: {row}");
    }
}

#[test]
fn the_messages_of_the_page_are_what_they_are_said_to_be() {
    let messages = messages();
    let [begin, left, back, end] = &messages[..] else { panic!("{} messages", messages.len()) };
    for (start, headers, body) in &messages {
        assert_eq!(headers["content-length"], body.len().to_string(), "{start}");
    }
    for (_, headers, _) in [begin, end] {
        assert!(!headers.contains_key(fields::OUTCOME));
    }
    let egress = Egress::read(&left.1).expect("an egress");
    let again = Continue::read(&back.1).expect("a continuation");
    assert_eq!((again.number, &again.context), (egress.number, &egress.context));
    let (written, message) = egress::split(left.2.clone(), egress.context.as_ref()).expect("splits");
    let (read, answer) = egress::split(back.2.clone(), again.context.as_ref()).expect("splits");
    assert_eq!(written, read);
    assert!(message.starts_with(b"{\"authorise\"") && answer.starts_with(b"{\"approved\""));
    assert_eq!(begin.1[fields::TRANSACTION], back.1[fields::TRANSACTION]);
}
