//! The way out: messages to a destination, the point of no return, and how a transaction is finished past it.

use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_samples::issuer::Answer as Issues;

use crate::client::{get, post};
use crate::fake::{Ask, Behaviour, Then};
use crate::payments::{Props, SCORE, Scene, text};
use crate::world::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_out_once_and_what_came_of_it_back_to_the_pod_that_asked() {
    let scene = Scene::start().await;
    let answer = scene.pay("7").await;
    assert!(text(&answer).starts_with("42 answered {"), "{answer:?}");
    assert_eq!((answer.cell(), scene.world.hits(), scene.executed()), ("a", vec![2, 0], 1));
    let id = answer.header("bulkhead-transaction").to_owned();
    let executions = scene.issuer.issuer.book().executions();
    assert_eq!(executions.keys().collect::<Vec<_>>(), [&format!("{id}/1")]);
    assert_eq!(scene.standings().await, ["decided"]);
    assert_eq!(scene.pay("7").await.problem(), (409, "Decided".to_owned()));
    assert_eq!((scene.executed(), scene.world.hits()), (1, vec![2, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_one_transaction_are_numbered_and_each_goes_out_once() {
    let scene = Scene::start().await;
    scene.asks(0, Ask { times: 3, ..Ask::of("visa") });
    let answer = scene.pay("7").await;
    assert_eq!((answer.cell(), scene.executed(), scene.received()), ("a", 3, 3));
}

/// What is past the point of no return and fails in a is finished by b from the context, and never begun there.
async fn finished_elsewhere(then: Then) {
    let scene = Scene::start().await;
    scene.asks(0, Ask { then, ..Ask::of("visa") });
    let answer = scene.pay("7").await;
    assert!(text(&answer).starts_with("42 answered {"), "{answer:?}");
    assert_eq!((answer.cell(), scene.executed(), scene.received()), ("b", 1, 1));
    let seen = scene.world.cells[1].seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].headers["bulkhead-outcome"], "continue");
    assert_eq!(seen[0].headers["bulkhead-stage"], "committed");
    assert_eq!(scene.standings().await, ["decided"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_killed_after_the_message_went_out_is_replaced_by_another_from_the_context() {
    finished_elsewhere(Then::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cell_gives_back_after_the_message_went_out_is_finished_by_another() {
    finished_elsewhere(Then::GiveBack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_asks_for_the_same_message_twice_has_it_sent_once() {
    finished_elsewhere(Then::AskAgain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nobody_left_to_finish_the_caller_is_told_that_it_is_not_known() {
    let scene = Scene::start().await;
    (0..2).for_each(|cell| scene.asks(cell, Ask { then: Then::Reset, ..Ask::of("visa") }));
    assert_eq!(scene.pay("7").await.problem(), (500, "OutcomeUnknown".to_owned()));
    assert_eq!(scene.executed(), 1);
    assert_eq!(scene.pay("7").await.problem(), (409, "Decided".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_wherever_it_is_finished_comes_to_an_end_and_leaves_no_count_behind() {
    let scene = Scene::start().await;
    (0..2).for_each(|cell| scene.asks(cell, Ask { then: Then::AskPlain("score"), ..Ask::of("visa") }));
    assert_eq!(scene.pay("7").await.problem(), (500, "OutcomeUnknown".to_owned()));
    let visa = scene.issuer.issuer.book().executions().keys().filter(|key| key.ends_with("/1")).count();
    assert_eq!(visa, 1);
    let serving = scene.world.serving().await;
    assert_eq!((serving.cells["a"].in_flight, serving.cells["b"].in_flight), (0, 0));
    scene.world.cells[0].behave(Behaviour::Echo);
    assert_eq!(scene.world.client().await.send(post("/", "x")).await.cell(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_let_in_finds_room_for_its_message_however_full_the_memory_is() {
    let props = Props { limits: "{bufferTotal: 64Ki}", ..Props::default() };
    let scene = props.start().await;
    let mut request = post("/pay", vec![b'4'; 64 * 1024]);
    request.headers_mut().insert("idempotency-key", "7".parse().expect("a legal value"));
    let answer = scene.world.client().await.send(request).await;
    assert_eq!((answer.status.as_u16(), answer.cell(), scene.executed()), (200, "a", 1), "{answer:?}");
    let metrics = scene.world.metrics().await;
    assert!(metrics.contains("bulkhead_router_buffer_bytes 0"), "all of it is given back");
}

/// Asks for something that breaks the rules, in both cells: nothing is sent.
async fn never_sent(ask: Ask) {
    let scene = Scene::start().await;
    (0..2).for_each(|cell| scene.asks(cell, ask));
    let answer = scene.pay("7").await;
    assert_eq!(answer.problem(), (502, "UpstreamProtocol".to_owned()));
    assert_eq!((scene.received(), scene.standings().await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_out_of_order_is_never_sent() {
    never_sent(Ask { number: 2, ..Ask::of("visa") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_effects_and_without_a_context_is_never_sent() {
    never_sent(Ask { context: false, ..Ask::of("visa") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_reaches_no_destination_but_its_own_and_that_is_told() {
    let scene = Scene::start().await;
    scene.asks(0, Ask::of("amex"));
    assert_eq!(text(&scene.pay("7").await), "42 not-sent DestinationForbidden ");
    assert_eq!(scene.world.serving().await.forbidden["a/amex"], 1);
    assert_eq!(scene.received(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_this_router_has_no_way_to_is_told_to_the_operator() {
    let reachable = Scene::start().await;
    assert!(reachable.world.serving().await.unavailable.is_empty(), "the control");
    let spec = "http: {}, tls: {caSecret: ca}, duplicateCheck: {type: Header, header: idempotency-key}";
    let scene = Props { spec, ..Props::default() }.start().await;
    let unavailable = scene.world.serving().await.unavailable;
    assert!(unavailable["visa"].contains("--tls-dir"), "{unavailable:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_down_leaves_nothing_behind() {
    let scene = Scene::start().await;
    scene.issuer.behave(|issuing| issuing.answer = Issues::Refuse);
    let down = async || text(&scene.pay("7").await) == "42 not-sent DestinationUnavailable ";
    eventually("the issuer is down", down).await;
    scene.issuer.behave(|issuing| issuing.answer = Issues::Approve);
    // Nothing happened, so that the key may be used again.
    let up = async || text(&scene.pay("7").await).starts_with("42 answered");
    eventually("the issuer is up", up).await;
    assert_eq!(scene.executed(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_closes_without_a_word_leaves_the_outcome_unknown() {
    let scene = Scene::start().await;
    scene.issuer.behave(|issuing| issuing.answer = Issues::Close);
    assert_eq!(text(&scene.pay("7").await), "42 unknown UpstreamReset ");
    assert_eq!((scene.executed(), scene.standings().await), (1, vec!["unknown".to_owned()]));
    assert_eq!(scene.pay("7").await.problem(), (409, "DecidedUnknown".to_owned()));
    assert_eq!(scene.received(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_destination_is_waited_for_as_long_as_it_says() {
    let props = Props {
        spec: "http: {path: /authorise}, timeout: 300ms, duplicateCheck: {type: Header, header: idempotency-key}",
        ..Props::default()
    };
    let scene = props.start().await;
    scene.issuer.behave(|issuing| issuing.answer = Issues::Silent);
    let clock = Monotonic::start();
    assert_eq!(text(&scene.pay("7").await), "42 unknown Timeout ");
    assert!(clock.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_effects_are_no_point_of_no_return() {
    let scene = Props { spec: SCORE, ..Props::default() }.start().await;
    scene.asks(0, Ask { then: Then::Reset, ..Ask::of("visa") });
    let answer = scene.pay("7").await;
    assert_eq!(answer.cell(), "b");
    assert_eq!(scene.world.cells[0].seen()[1].headers["bulkhead-stage"], "restartable");
    let seen = scene.world.cells[1].seen();
    assert_eq!((seen.len(), &seen[0].body[..]), (2, &b"42"[..]), "b began from the original bytes");
    assert_eq!((scene.received(), scene.standings().await), (2, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_asked_for_by_a_cell_is_no_egress() {
    let scene = Scene::start().await;
    scene.world.cells[0].behave(Behaviour::Echo);
    let mut request = get("/");
    for (name, value) in [("bulkhead-outcome", "continue"), ("bulkhead-egress", "1")] {
        request.headers_mut().insert(name, value.parse().expect("legal"));
    }
    scene.world.client().await.send(request).await;
    assert!(!scene.world.cells[0].seen()[0].headers.contains_key("bulkhead-outcome"));
}
