//! Workflows that leave for a destination and come back, here or elsewhere.

use bulkhead_cell_runtime::Config;
use bulkhead_crds::cell::Capacity;
use bulkhead_protocol::egress::MAX_BODY;
use bulkhead_protocol::{Continue, EgressStatus, Reason};

use crate::harness::{Stream, eventually, post, send, start_ready};
use crate::script::{Service, back, bring, bring_answer, flow, left, of_version, pay};

const STEPS: [&str; 4] = ["validate:/", "choose:/", "destination:visa", "check:/"];

/// The services of [`STEPS`].
struct Payment {
    validate: Service,
    choose: Service,
    check: Service,
}

impl Payment {
    async fn start() -> Self {
        let choose = Service::start("choose").await;
        choose.answers(200, &[("content-type", "text/authorisation")]);
        Self { validate: Service::start("validate").await, choose, check: Service::start("check").await }
    }

    fn config(&self) -> Config {
        self.config_of(&STEPS)
    }

    fn config_of(&self, steps: &[&str]) -> Config {
        flow(&[&self.validate, &self.choose, &self.check], steps)
    }

    /// Of validate, choose and check.
    fn calls(&self) -> [usize; 3] {
        [&self.validate, &self.choose, &self.check].map(|service| service.calls().len())
    }
}

/// The same workflow in another cell.
fn elsewhere(mut config: Config) -> Config {
    config.cell.cell = "b".to_owned();
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_leaves_for_its_destination_and_is_finished_in_another_cell() {
    let (here, there) = (Payment::start().await, Payment::start().await);
    let a = start_ready(here.config()).await;
    let b = start_ready(elsewhere(there.config())).await;

    let left = left(pay(&a, "pay").await);
    assert_eq!((left.head.number, left.head.destination.as_str()), (1, "visa"));
    assert_eq!(
        (left.content_type.as_deref(), &left.message[..]),
        (Some("text/authorisation"), &b"pay>validate>choose"[..])
    );
    assert_eq!(here.calls(), [1, 1, 0]);
    let verdict = Stream::open(b.addresses.health).await.until("ready", |verdict| verdict.ready).await;
    assert_eq!(verdict.context_versions, [left.version()]);

    let answer = bring_answer(&b, &left, "approved").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"approved>check"[..]));
    assert_eq!(answer.field("bulkhead-outcome"), None);
    assert_eq!((here.calls(), there.calls()), ([1, 1, 0], [0, 0, 1]));
    let call = &there.check.calls()[0];
    for (name, value) in [
        ("host", "payments.example"),
        ("x-account", "7"),
        ("content-type", "text/issuer"),
        ("bulkhead-transaction", "id"),
        ("bulkhead-attempt", "2"),
        ("bulkhead-egress", "1"),
        ("bulkhead-destination-status", "200"),
    ] {
        assert_eq!(call.field(name), Some(value), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_and_the_attempt_reach_every_service() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config()).await;
    let left = left(pay(&runtime, "pay").await);
    bring_answer(&runtime, &left, "approved").await;
    for (service, attempt, egress) in
        [(&services.validate, "1", None), (&services.choose, "1", None), (&services.check, "2", Some("1"))]
    {
        let call = &service.calls()[0];
        assert_eq!(call.field("bulkhead-transaction"), Some("id"), "{}", service.name);
        assert_eq!(call.field("bulkhead-attempt"), Some(attempt), "{}", service.name);
        assert_eq!(call.field("bulkhead-egress"), egress, "{}", service.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_may_name_any_destination_and_the_router_says_whether_its_cell_may_reach_it() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config()).await;
    services.choose.answers(200, &[("bulkhead-destination", "amex")]);
    assert_eq!(left(pay(&runtime, "pay").await).head.destination, "amex");
    services.choose.answers(200, &[("bulkhead-destination", "elsewhere")]);
    let left = left(pay(&runtime, "pay").await);
    assert_eq!(left.head.destination, "elsewhere");
    let reason = Some(Reason::DestinationForbidden);
    let back = Continue { reason, committed: false, ..back(&left, EgressStatus::NotSent) };
    let answer = bring(&runtime, &back, &left.context, "").await;
    assert_eq!(answer.refusal(), (403, Some("DestinationForbidden"), None));
    assert!(String::from_utf8_lossy(&answer.body).contains("spec.destinations"), "{answer:?}");

    services.choose.answers(200, &[("bulkhead-destination", "No Name")]);
    let answer = pay(&runtime, "pay").await;
    assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")));
    assert!(String::from_utf8_lossy(&answer.body).contains("a Destination's name"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_service_keeps_for_later_steps_reaches_them_wherever_they_run() {
    let (here, there) = (Payment::start().await, Payment::start().await);
    let a = start_ready(here.config()).await;
    let b = start_ready(elsewhere(there.config())).await;
    here.validate.answers(200, &[("bulkhead-state", "of validate")]);
    here.choose.answers(200, &[("bulkhead-state", "key=id/1 amount=5")]);
    let left = left(pay(&a, "pay").await);
    assert_eq!(here.choose.calls()[0].field("bulkhead-state"), Some("of validate"));
    bring_answer(&b, &left, "approved").await;
    assert_eq!(there.check.calls()[0].field("bulkhead-state"), Some("key=id/1 amount=5"));

    here.choose.answers(200, &[("bulkhead-state", &"x".repeat(4_097))]);
    assert_eq!(pay(&a, "pay").await.refusal(), (502, Some("ServiceFailed"), Some("restart")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_read_a_context_says_so_and_touches_nothing() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config()).await;
    let other = start_ready(services.config_of(&["validate:/", "destination:visa", "check:/"])).await;
    let left = left(pay(&runtime, "pay").await);
    let before = services.calls();

    let not_ours = (421, Some("WrongCell"), None);
    assert_eq!(bring_answer(&other, &left, "approved").await.refusal(), not_ours);
    let answered = back(&left, EgressStatus::Answered);
    let later = Continue { context: Some(of_version(&left, "steps2-0")), ..answered.clone() };
    assert_eq!(bring(&runtime, &later, &left.context, "approved").await.refusal(), not_ours);
    let none = Continue { context: None, ..answered.clone() };
    assert_eq!(bring(&runtime, &none, b"", "approved").await.refusal(), not_ours);
    let no_egress = Continue { number: 2, ..answered.clone() };
    assert_eq!(bring(&runtime, &no_egress, &left.context, "approved").await.refusal(), not_ours);
    let garbage = vec![0xff; left.context.len()];
    assert_eq!(bring(&runtime, &answered, &garbage, "approved").await.refusal(), not_ours);

    let short = bring(&runtime, &answered, b"x", "").await;
    assert_eq!(short.refusal(), not_ours);
    let coded = Continue { answer: None, ..answered.clone() };
    assert_eq!(bring(&runtime, &coded, &left.context, "").await.refusal(), not_ours);
    let mut nameless = post("/pay");
    answered.write(nameless.headers_mut().expect("is well-formed"));
    nameless.headers_mut().expect("is well-formed").remove("bulkhead-egress-status");
    let nameless = send(runtime.addresses.traffic, nameless, left.context.clone()).await;
    assert_eq!(nameless.expect("is answered").refusal(), not_ours);
    let mut small = services.config();
    small.body_limit = left.context.len();
    let small = start_ready(small).await;
    assert_eq!(bring_answer(&small, &left, "approved").await.refusal(), not_ours);
    assert_eq!(services.calls(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_without_answer_ends_the_transaction_by_what_is_known() {
    let services = Payment::start().await;
    let steps = ["validate:/", "destination:visa", "choose:/", "destination:amex", "check:/"];
    let runtime = start_ready(services.config_of(&steps)).await;
    let first = left(pay(&runtime, "pay").await);
    let second = left(bring_answer(&runtime, &first, "approved").await);
    let before = services.calls();
    for (left, status, reason, expected) in [
        (&first, EgressStatus::NotSent, None, (503, Some("DestinationUnavailable"), None)),
        (
            &first,
            EgressStatus::NotSent,
            Some(Reason::LedgerUnavailable),
            (503, Some("LedgerUnavailable"), None),
        ),
        (&first, EgressStatus::Unknown, Some(Reason::Timeout), (500, Some("OutcomeUnknown"), None)),
        (&second, EgressStatus::NotSent, None, (500, Some("OutcomeUnknown"), None)),
        (&second, EgressStatus::Unknown, None, (500, Some("OutcomeUnknown"), None)),
    ] {
        let back = Continue { reason, ..back(left, status) };
        let answer = bring(&runtime, &back, &left.context, "").await;
        assert_eq!(answer.refusal(), expected, "{back:?}");
        assert_eq!(answer.field("cache-control"), Some("no-store"));
    }
    assert_eq!(services.calls(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_of_destinations_without_effects_is_never_called_unknown() {
    let services = Payment::start().await;
    let steps = ["validate:/", "destination:visa", "choose:/", "destination:amex", "check:/"];
    let runtime = start_ready(services.config_of(&steps)).await;
    let restartable = |left, status| Continue { committed: false, ..back(left, status) };
    let first = left(pay(&runtime, "pay").await);
    let answered = restartable(&first, EgressStatus::Answered);
    let second = left(bring(&runtime, &answered, &first.context, "approved").await);
    let again = (502, Some("ServiceFailed"), Some("restart"));
    for (left, status, expected) in [
        (&first, EgressStatus::NotSent, (503, Some("DestinationUnavailable"), None)),
        (&second, EgressStatus::NotSent, (503, Some("DestinationUnavailable"), None)),
        (&first, EgressStatus::Unknown, again),
        (&second, EgressStatus::Unknown, again),
    ] {
        let answer = bring(&runtime, &restartable(left, status), &left.context, "").await;
        assert_eq!(answer.refusal(), expected, "{status:?} {}", left.head.number);
    }
    services.check.answers(500, &[]);
    let answered = restartable(&second, EgressStatus::Answered);
    assert_eq!(bring(&runtime, &answered, &second.context, "approved").await.refusal(), again);
    services.choose.answers_with(&[], vec![b'x'; MAX_BODY]);
    let answered = restartable(&first, EgressStatus::Answered);
    let too_long = bring(&runtime, &answered, &first.context, "approved").await;
    assert_eq!(too_long.refusal(), (502, Some("ServiceFailed"), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_behind_an_egress_gives_the_transaction_back_to_be_finished_elsewhere() {
    let (here, there) = (Payment::start().await, Payment::start().await);
    let a = start_ready(here.config()).await;
    let b = start_ready(elsewhere(there.config())).await;
    let left = left(pay(&a, "pay").await);
    here.check.answers(500, &[]);
    let failed = (502, Some("ServiceFailed"), Some("restart"));
    assert_eq!(bring_answer(&a, &left, "approved").await.refusal(), failed);
    // Nobody answers there at all now, and still nothing may say that nothing happened.
    here.check.pod.kill().await;
    assert_eq!(bring_answer(&a, &left, "approved").await.refusal(), failed);
    assert_eq!(bring_answer(&b, &left, "approved").await.body, "approved>check");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_too_late_is_finished_all_the_same() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config()).await;
    let left = left(pay(&runtime, "pay").await);
    let address = runtime.addresses.traffic;
    let late = async |mut request: http::request::Builder, deadline: &str, body: Vec<u8>| {
        request = request.header("bulkhead-deadline", deadline);
        send(address, request, body).await.expect("is answered")
    };
    let begin = async |deadline| late(post("/pay"), deadline, b"pay".to_vec()).await;
    assert_eq!(begin("0").await.refusal(), (504, Some("Timeout"), Some("restart")));
    assert_eq!(begin("soon").await.refusal(), (400, Some("Malformed"), None));
    for deadline in ["0", "soon"] {
        let mut request = post("/pay");
        back(&left, EgressStatus::Answered).write(request.headers_mut().expect("is well-formed"));
        let answer = late(request, deadline, [&left.context[..], b"approved"].concat()).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"approved>check"[..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_destination_that_is_the_last_stop_is_the_callers() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config_of(&["validate:/", "destination:visa"])).await;
    let left = left(pay(&runtime, "pay").await);
    let check = async |status: u16, expected| {
        let back = Continue { answer: Some(status), ..back(&left, EgressStatus::Answered) };
        let answer = bring(&runtime, &back, &left.context, "approved").await;
        assert_eq!(answer.refusal(), expected);
        answer
    };
    let answer = check(201, (201, None, None)).await;
    assert_eq!((answer.field("content-type"), &answer.body[..]), (Some("text/issuer"), &b"approved"[..]));
    assert_eq!(check(422, (422, None, None)).await.body, "approved");
    check(503, (502, Some("ServiceFailed"), None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encoded_body_is_called_so_wherever_it_goes() {
    let services = Payment::start().await;
    let steps = ["validate:/", "choose:/", "destination:visa", "check:/", "destination:amex"];
    let runtime = start_ready(services.config_of(&steps)).await;
    services.validate.answers(200, &[("content-encoding", "br")]);
    services.choose.answers(200, &[("content-encoding", "zstd")]);
    let request = post("/pay").header("content-encoding", "gzip").header("accept-encoding", "gzip");
    let first = left(send(runtime.addresses.traffic, request, "pay").await.expect("is answered"));
    assert_eq!(first.content_encoding.as_deref(), Some("zstd"));
    let mut request = post("/pay").header("content-encoding", "deflate");
    back(&first, EgressStatus::Answered).write(request.headers_mut().expect("is well-formed"));
    let body = [&first.context[..], b"approved"].concat();
    let second = left(send(runtime.addresses.traffic, request, body).await.expect("is answered"));
    assert_eq!(second.content_encoding, None, "check answered as it is");
    for (service, encoding) in
        [(&services.validate, "gzip"), (&services.choose, "br"), (&services.check, "deflate")]
    {
        let call = &service.calls()[0];
        assert_eq!(call.field("content-encoding"), Some(encoding), "{}", service.name);
        assert_eq!(call.field("accept-encoding"), None, "{}", service.name);
    }
    let mut request = post("/pay").header("content-encoding", "gzip");
    back(&second, EgressStatus::Answered).write(request.headers_mut().expect("is well-formed"));
    let body = [&second.context[..], b"booked"].concat();
    let answer = send(runtime.addresses.traffic, request, body).await.expect("is answered");
    assert_eq!((answer.field("content-encoding"), &answer.body[..]), (Some("gzip"), &b"booked"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn egresses_are_numbered_and_the_callers_fields_pass_all_of_them() {
    let services = Payment::start().await;
    let steps = ["destination:amex", "validate:/", "destination:visa", "destination:amex", "check:/"];
    let runtime = start_ready(services.config_of(&steps)).await;
    let first = left(pay(&runtime, "pay").await);
    assert_eq!((first.content_type.as_deref(), &first.message[..]), (Some("text/client"), &b"pay"[..]));
    let second = left(bring_answer(&runtime, &first, "one").await);
    let third = left(bring_answer(&runtime, &second, "two").await);
    let told = [&first, &second, &third].map(|left| (left.head.number, left.head.destination.as_str()));
    assert_eq!(told, [(1, "amex"), (2, "visa"), (3, "amex")]);
    assert_eq!((&second.message[..], &third.message[..]), (&b"one>validate"[..], &b"two"[..]));
    assert_eq!(bring_answer(&runtime, &third, "three").await.body, "three>check");
    let call = &services.check.calls()[0];
    assert_eq!((call.field("bulkhead-egress"), call.field("x-account")), (Some("3"), Some("7")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_egress_longer_than_a_router_takes_ends_the_transaction() {
    let services = Payment::start().await;
    let runtime = start_ready(services.config()).await;
    let ended = (502, Some("ServiceFailed"), None);
    services.choose.answers_with(&[], vec![b'x'; MAX_BODY]);
    let answer = pay(&runtime, "pay").await;
    assert_eq!(answer.refusal(), ended);
    services.choose.answers(200, &[]);
    let request = post("/pay").header("x-long", "x".repeat(65 * 1024));
    let answer = send(runtime.addresses.traffic, request, "pay").await.expect("is answered");
    assert_eq!(answer.refusal(), ended);
    left(pay(&runtime, "pay").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_is_let_in_past_the_capacity() {
    let services = Payment::start().await;
    let mut config = services.config();
    config.cell.capacity = Some(Capacity { in_flight: Some(1), requests_per_second: None });
    let runtime = start_ready(config).await;
    let left = left(pay(&runtime, "pay").await);
    services.validate.hold();
    let (held, answered) = tokio::join!(async { pay(&runtime, "pay").await }, async {
        eventually("one is under way", async || services.calls()[0] == 2).await;
        assert_eq!(pay(&runtime, "pay").await.refusal(), (503, Some("Capacity"), Some("restart")));
        let answered = bring_answer(&runtime, &left, "approved").await;
        services.validate.release();
        answered
    });
    assert_eq!(answered.body, "approved>check");
    assert_eq!(held.field("bulkhead-outcome"), Some("egress"));
}
