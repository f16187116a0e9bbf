//! Entries that speak the protocol themselves, and what means nothing from those that do not.

use bulkhead_cell_runtime::Config;
use bulkhead_crds::template::{Entry, EntryProtocol};
use bulkhead_protocol::egress::MAX_BODY;
use bulkhead_protocol::{Continue, EgressStatus, Reason};

use crate::harness::{Stream, start_ready};
use crate::script::{Service, back, bring, bring_answer, flow, left, of_version, pay};

const EGRESS: [(&str, &str); 5] = [
    ("bulkhead-outcome", "egress"),
    ("bulkhead-egress", "1"),
    ("bulkhead-destination", "visa"),
    ("bulkhead-context-length", "3"),
    ("bulkhead-context-version", "v1"),
];

fn of(service: &Service, protocol: EntryProtocol) -> Config {
    let mut config = flow(&[service], &[]);
    config.cell.entry = Some(entry(service.name, protocol));
    config
}

fn entry(name: &str, protocol: EntryProtocol) -> Entry {
    let versions: &[&str] = if protocol == EntryProtocol::Bulkhead { &["v1", "v0"] } else { &[] };
    let context_versions = versions.iter().map(|version| (*version).to_owned()).collect();
    Entry { service: name.to_owned(), protocol, context_versions }
}

/// [`EGRESS`] with another value, or without that field.
fn with(name: &str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let fields = EGRESS.into_iter().map(|field| if field.0 == name { (field.0, value) } else { field });
    fields.filter(|(_, value)| !value.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_leaves_for_a_destination_and_gets_back_what_it_left() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Bulkhead)).await;
    let verdict = Stream::open(runtime.addresses.health).await.until("ready", |verdict| verdict.ready).await;
    assert_eq!(verdict.context_versions, ["v1", "v0"]);

    let fields =
        [&EGRESS[..], &[("bulkhead-egress-path", "/authorise"), ("content-type", "text/issuer")]].concat();
    web.answers_with(&fields, "ctxmessage");
    let left = left(pay(&runtime, "pay").await);
    assert_eq!((&left.context[..], &left.message[..]), (&b"ctx"[..], &b"message"[..]));
    assert_eq!(
        (left.head.path.as_deref(), left.content_type.as_deref()),
        (Some("/authorise"), Some("text/issuer"))
    );

    web.answers_with(&[("bulkhead-destination", "means nothing without an outcome")], "paid");
    let answer = bring_answer(&runtime, &left, "approved").await;
    assert_eq!((answer.refusal(), &answer.body[..]), ((200, None, None), &b"paid"[..]));
    assert_eq!(answer.field("bulkhead-destination"), None);
    let call = &web.calls()[1];
    assert_eq!(call.body, "ctxapproved");
    for (name, value) in [
        ("bulkhead-outcome", "continue"),
        ("bulkhead-transaction", "id"),
        ("bulkhead-egress", "1"),
        ("bulkhead-egress-status", "answered"),
        ("bulkhead-destination-status", "200"),
        ("bulkhead-context-length", "3"),
        ("bulkhead-context-version", "v1"),
    ] {
        assert_eq!(call.field(name), Some(value), "{name}");
    }

    // What became of an egress without answer is for the entry to say.
    let unknown = back(&left, EgressStatus::Unknown);
    assert_eq!(bring(&runtime, &unknown, &left.context, "").await.body, "paid");
    assert_eq!(web.calls()[2].field("bulkhead-egress-status"), Some("unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_that_the_entry_does_not_know_is_not_brought_to_it() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Bulkhead)).await;
    web.answers_with(&EGRESS, "ctxmessage");
    let left = left(pay(&runtime, "pay").await);
    let later = Continue { context: Some(of_version(&left, "v2")), ..back(&left, EgressStatus::Answered) };
    assert_eq!(bring(&runtime, &later, b"ctx", "approved").await.refusal(), (421, Some("WrongCell"), None));
    assert_eq!(web.calls().len(), 1);

    let none = start_ready(of(&web, EntryProtocol::Http1)).await;
    assert_eq!(bring_answer(&none, &left, "approved").await.refusal(), (421, Some("WrongCell"), None));
    assert_eq!(web.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_gives_a_transaction_back_in_its_own_words() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Bulkhead)).await;
    web.answers(
        503,
        &[("bulkhead-outcome", "restart"), ("bulkhead-reason", "Capacity"), ("bulkhead-new", "1")],
    );
    let answer = pay(&runtime, "pay").await;
    assert_eq!(answer.refusal(), (503, Some("Capacity"), Some("restart")));
    assert_eq!(answer.field("bulkhead-new"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_that_is_none_is_the_failure_of_the_entry() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Bulkhead)).await;
    let check = async |fields: &[(&'static str, &'static str)], body: Vec<u8>, told: &str| {
        web.answers_with(fields, body);
        let answer = pay(&runtime, "pay").await;
        assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")), "{fields:?}");
        assert!(String::from_utf8_lossy(&answer.body).contains(told), "{answer:?}");
    };
    let body = || b"ctxmessage".to_vec();
    check(&with("bulkhead-outcome", "continue"), body(), "neither restart nor egress").await;
    check(&with("bulkhead-egress", "0"), body(), "a number from 1 to 32").await;
    check(&with("bulkhead-egress", ""), body(), "bulkhead-egress is missing").await;
    check(&with("bulkhead-destination", "Visa"), body(), "bulkhead-destination is not a Destination's name")
        .await;
    check(&with("bulkhead-context-length", "11"), body(), "less than the 11 of its context").await;
    check(&EGRESS, vec![b'x'; MAX_BODY + 1], "is longer than the 1048576 bytes").await;
    web.answers(201, &EGRESS);
    assert_eq!(pay(&runtime, "pay").await.refusal(), (502, Some("ServiceFailed"), Some("restart")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_may_name_any_destination_and_hears_from_the_router_that_it_may_not_reach_it() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Bulkhead)).await;
    web.answers_with(&with("bulkhead-destination", "elsewhere"), "ctxmessage");
    let left = left(pay(&runtime, "pay").await);
    assert_eq!(left.head.destination, "elsewhere");
    web.answers(403, &[]);
    let reason = Some(Reason::DestinationForbidden);
    let back = Continue { reason, committed: false, ..back(&left, EgressStatus::NotSent) };
    assert_eq!(bring(&runtime, &back, b"ctx", "").await.refusal(), (403, None, None));
    assert_eq!(web.calls()[1].field("bulkhead-reason"), Some("DestinationForbidden"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_http1_cannot_leave_its_cell() {
    let web = Service::start("web").await;
    let runtime = start_ready(of(&web, EntryProtocol::Http1)).await;
    web.answers_with(&EGRESS, "ctxmessage");
    let answer = pay(&runtime, "pay").await;
    assert_eq!((answer.refusal(), &answer.body[..]), ((200, None, None), &b"ctxmessage"[..]));
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("bulkhead-")), "{answer:?}");
}
