//! Services that answer as a test tells them and remember what they were asked, a workflow of them, and the router's part
//! of an egress.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::response::IntoResponse;
use bulkhead_cell_runtime::{CellConfig, Config};
use bulkhead_crds::template::Step;
use bulkhead_protocol::egress::{ContextHead, split};
use bulkhead_protocol::{Continue, Egress, EgressStatus};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::sync::Notify;

use crate::harness::{Answer, PATIENCE, Pod, Runtime, post, send, service, with};

/// A service of one pod. Unless told otherwise it answers with what it got, and its name behind.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) pod: Pod,
    script: Arc<Script>,
}

#[derive(Default)]
struct Script {
    calls: Mutex<Vec<Call>>,
    answer: Mutex<Option<Told>>,
    held: Mutex<bool>,
    released: Notify,
    not_ready: Mutex<bool>,
}

#[derive(Clone, Default)]
struct Told {
    status: StatusCode,
    fields: HeaderMap,
    body: Option<Bytes>,
}

/// What it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Call {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Service {
    pub(crate) async fn start(name: &'static str) -> Self {
        let script = Arc::new(Script::default());
        let (asked, readiness) = (Arc::clone(&script), Arc::clone(&script));
        let ready = move || {
            let not_ready = *readiness.not_ready.lock().expect("not poisoned");
            let status = if not_ready { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
            std::future::ready(status)
        };
        let routes = axum::Router::new()
            .route("/readyz", axum::routing::get(ready))
            .fallback(move |headers, body| answer(Arc::clone(&asked), name, headers, body));
        Self { name, pod: Pod::routes(routes).await, script }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.script.calls.lock().expect("not poisoned").clone()
    }

    /// From now on.
    pub(crate) fn answers(&self, status: u16, fields: &[(&'static str, &str)]) {
        let fields = fields.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        });
        let status = StatusCode::from_u16(status).expect("a status");
        let told = Told { status, fields: fields.collect(), body: None };
        *self.script.answer.lock().expect("not poisoned") = Some(told);
    }

    /// With this body in the place of what it got.
    pub(crate) fn answers_with(&self, fields: &[(&'static str, &str)], body: impl Into<Bytes>) {
        self.answers(200, fields);
        if let Some(told) = &mut *self.script.answer.lock().expect("not poisoned") {
            told.body = Some(body.into());
        }
    }

    /// Answers nothing until it is released.
    pub(crate) fn hold(&self) {
        *self.script.held.lock().expect("not poisoned") = true;
    }

    pub(crate) fn release(&self) {
        *self.script.held.lock().expect("not poisoned") = false;
        self.script.released.notify_waiters();
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        *self.script.not_ready.lock().expect("not poisoned") = !ready;
    }
}

async fn answer(
    script: Arc<Script>,
    name: &'static str,
    headers: HeaderMap,
    body: String,
) -> axum::response::Response {
    let released = script.released.notified();
    script.calls.lock().expect("not poisoned").push(Call { headers, body: body.clone() });
    let held = *script.held.lock().expect("not poisoned");
    if held {
        released.await;
    }
    let told = script.answer.lock().expect("not poisoned").clone().unwrap_or_default();
    let body = told.body.unwrap_or_else(|| format!("{body}>{name}").into());
    (told.status, told.fields, body).into_response()
}

/// A cell named `a` of these services, with steps as `--step` takes them.
pub(crate) fn flow(services: &[&Service], steps: &[&str]) -> Config {
    let step = |text: &&str| match text.split_once(':').expect("a step") {
        ("destination", name) => Step { destination: Some(name.to_owned()), ..Step::default() },
        (service, path) => Step {
            service: Some(service.to_owned()),
            path: Some(path.to_owned()),
            timeout: bulkhead_crds::Duration::from_secs(600),
            ..Step::default()
        },
    };
    let cell = CellConfig {
        cell: "a".to_owned(),
        services: services.iter().map(|its| service(its.name)).collect(),
        steps: steps.iter().map(step).collect(),
        destinations: vec!["visa".to_owned(), "amex".to_owned()],
        ..CellConfig::default()
    };
    let pods: BTreeMap<String, Vec<SocketAddr>> =
        services.iter().map(|its| (its.name.to_owned(), vec![its.pod.address])).collect();
    with(cell, pods)
}

/// What a cell handed to the router.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) head: Egress,
    pub(crate) content_type: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) context: Bytes,
    pub(crate) message: Bytes,
}

impl Left {
    pub(crate) fn version(&self) -> &str {
        &self.head.context.as_ref().expect("has a context").version
    }
}

/// Begins a transaction.
pub(crate) async fn pay(runtime: &Runtime, body: impl Into<Bytes>) -> Answer {
    let request = post("/pay")
        .header("bulkhead-transaction", "id")
        .header("bulkhead-attempt", "1")
        .header("x-account", "7")
        .header("content-type", "text/client");
    let answer = send(runtime.addresses.traffic, request, body);
    tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("is answered")
}

/// The answer as the router takes it, which must be an egress.
#[track_caller]
pub(crate) fn left(answer: Answer) -> Left {
    assert_eq!(
        (answer.status, answer.field("bulkhead-outcome")),
        (StatusCode::OK, Some("egress")),
        "{answer:?}"
    );
    let head = Egress::read(&answer.headers).expect("an egress");
    let [content_type, content_encoding] =
        ["content-type", "content-encoding"].map(|name| answer.field(name).map(str::to_owned));
    let (context, message) = split(answer.body, head.context.as_ref()).expect("splits");
    Left { head, content_type, content_encoding, context, message }
}

/// The router's head of what comes back from a destination with effects.
pub(crate) fn back(left: &Left, status: EgressStatus) -> Continue {
    let answer = (status == EgressStatus::Answered).then_some(200);
    let context = left.head.context.clone();
    Continue { number: left.head.number, context, status, answer, reason: None, committed: true }
}

/// Brings a cell what came of an egress.
pub(crate) async fn bring(runtime: &Runtime, back: &Continue, context: &[u8], answer: &str) -> Answer {
    let mut request = post("/pay")
        .header("bulkhead-transaction", "id")
        .header("bulkhead-attempt", "2")
        .header("content-type", "text/issuer");
    back.write(request.headers_mut().expect("is well-formed"));
    let body = [context, answer.as_bytes()].concat();
    send(runtime.addresses.traffic, request, body).await.expect("is answered")
}

/// Brings it the answer of the destination.
pub(crate) async fn bring_answer(runtime: &Runtime, left: &Left, answer: &str) -> Answer {
    bring(runtime, &back(left, EgressStatus::Answered), &left.context, answer).await
}

/// The context's head with another version.
pub(crate) fn of_version(left: &Left, version: &str) -> ContextHead {
    ContextHead { length: left.context.len(), version: version.to_owned() }
}
