//! Workflows of several steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get as on_get, post as on_post};
use bulkhead_cell_runtime::{CellConfig, Config};
use bulkhead_crds::template::{Service, Step};

use crate::harness::{Pod, post, send, service, start_ready, with};

/// A service of several paths, and how often each was called.
struct Steps {
    pod: Pod,
    calls: Arc<AtomicU32>,
}

async fn steps() -> Steps {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let counted = axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
        count.fetch_add(1, Ordering::SeqCst);
        next.run(request)
    });
    let append = async |headers: HeaderMap, body: String| {
        let kind =
            headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or("none").to_owned();
        let id = headers.get("bulkhead-transaction").and_then(|id| id.to_str().ok()).unwrap_or("none");
        ([("content-type", "text/step")], format!("{body}+{id}:{kind}"))
    };
    let routes = axum::Router::new()
        .route("/append", on_post(append))
        .route("/refuse", on_post(async || (StatusCode::UNPROCESSABLE_ENTITY, "no such card")))
        .route("/break", on_post(async || StatusCode::INTERNAL_SERVER_ERROR.into_response()))
        .route("/hang", on_post(std::future::pending::<()>))
        .layer(counted)
        .route("/readyz", on_get(async || ""));
    Steps { pod: Pod::routes(routes).await, calls }
}

fn config(steps: &Steps, paths: &[&str]) -> Config {
    let step = |path: &&str| Step {
        service: Some("flow".to_owned()),
        path: Some((*path).to_owned()),
        destination: None,
        timeout: bulkhead_crds::Duration::from_millis(if *path == "/hang" { 100 } else { 20_000 }),
    };
    let cell = CellConfig {
        cell: "a".to_owned(),
        services: vec![service("flow")],
        steps: paths.iter().map(step).collect(),
        ..CellConfig::default()
    };
    with(cell, BTreeMap::from([("flow".to_owned(), vec![steps.pod.address])]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_each_answer_is_the_body_of_the_next_call() {
    let steps = steps().await;
    let runtime = start_ready(config(&steps, &["/append", "/append", "/append"])).await;
    let request = post("/pay").header("bulkhead-transaction", "id").header("content-type", "text/client");
    let answer = send(runtime.addresses.traffic, request, "body").await.expect("is answered");
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body, "body+id:text/client+id:text/step+id:text/step");
    assert_eq!(answer.field("content-type"), Some("text/step"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_gives_the_transaction_back_and_ends_it() {
    let steps = steps().await;
    let runtime = start_ready(config(&steps, &["/append", "/break", "/append"])).await;
    let answer = send(runtime.addresses.traffic, post("/"), "x").await.expect("is answered");
    assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")));
    assert_eq!(steps.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_step_was_done_no_refusal_says_that_nothing_happened() {
    let steps = steps().await;
    let mut config = config(&steps, &["/append", "/append"]);
    config.cell.services.push(Service { required: false, ..service("ledger") });
    config.cell.steps[1].service = Some("ledger".to_owned());
    let runtime = start_ready(config).await;
    let answer = send(runtime.addresses.traffic, post("/"), "x").await.expect("is answered");
    assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")));
    assert_eq!(steps.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_hangs_is_given_up_at_its_time_out() {
    let steps = steps().await;
    let runtime = start_ready(config(&steps, &["/hang", "/append"])).await;
    let answer = send(runtime.addresses.traffic, post("/"), "x").await.expect("is answered");
    assert_eq!(answer.refusal(), (502, Some("ServiceFailed"), Some("restart")));
    // None where the time was over before the call arrived.
    assert!(steps.calls.load(Ordering::SeqCst) <= 1, "the next step was not called");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_refuses_the_request_answers_for_all() {
    let steps = steps().await;
    let runtime = start_ready(config(&steps, &["/refuse", "/append"])).await;
    let answer = send(runtime.addresses.traffic, post("/"), "x").await.expect("is answered");
    assert_eq!((answer.status, &answer.body[..]), (StatusCode::UNPROCESSABLE_ENTITY, &b"no such card"[..]));
    assert_eq!(answer.field("bulkhead-outcome"), None);
    assert_eq!(steps.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_past_the_limit_is_refused_before_any_step() {
    let steps = steps().await;
    let runtime = start_ready(Config { body_limit: 1_000, ..config(&steps, &["/append"]) }).await;
    let answer = send(runtime.addresses.traffic, post("/"), vec![b'x'; 1_001]).await.expect("is answered");
    assert_eq!(answer.refusal(), (413, Some("BodyTooLarge"), None));
    assert_eq!(steps.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_deadline_bounds_all_steps_together() {
    let steps = steps().await;
    let mut config = config(&steps, &["/append", "/hang"]);
    config.cell.steps[1].timeout = bulkhead_crds::Duration::from_secs(600);
    let runtime = start_ready(config).await;
    let request = post("/").header("bulkhead-deadline", Duration::from_millis(200).as_millis().to_string());
    let answer = send(runtime.addresses.traffic, request, "x").await.expect("is answered");
    assert_eq!(answer.refusal(), (504, Some("Timeout"), Some("restart")));
}
