//! The sample service: answers any path with JSON about the request, or does one step of a payment, and can be told to
//! be slow, failing or not ready. It knows nothing of cells but the name that it is given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use bulkhead_process::Shutdown;
use bulkhead_process::clock::now_unix_millis;
use clap::Args;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use crate::payment::{self, Role};

/// Names the cell in an answer, for readers that do not parse its body.
pub const CELL_HEADER: &str = "x-cell";
/// When the request arrived here, in milliseconds since 1970.
pub const RECEIVED_HEADER: &str = "x-received-unix-ms";
/// The id of the transaction that a step belongs to.
const TRANSACTION_HEADER: &str = "bulkhead-transaction";
/// What a step wants later ones to know.
const STATE_HEADER: &str = "bulkhead-state";
/// Where the cell-runtime is to send the answer of a step that chooses a Destination.
const DESTINATION_HEADER: &str = "bulkhead-destination";
/// Bytes of the largest body that a step reads.
const LARGEST_STEP: usize = 1024 * 1024;
/// How long requests under way may take after the shutdown.
const DRAIN: Duration = Duration::from_secs(25);

#[derive(Args, Clone, Debug, Default)]
pub struct Config {
    /// What the service calls itself.
    #[arg(long, default_value = "sample")]
    pub name: String,
    /// The cell that it says it is in.
    #[arg(long, env = "BULKHEAD_CELL", default_value = "")]
    pub cell: String,
    /// The pod that it says it is.
    #[arg(long, env = "HOSTNAME", default_value = "")]
    pub pod: String,
    /// How long each answer takes, such as `20ms`.
    #[arg(long, default_value = "0ms", value_parser = crate::load::parse_duration)]
    pub delay: Duration,
    /// Which step of the payment flow it does.
    #[arg(long, value_enum, default_value_t)]
    pub role: Role,
}

/// What can be changed while the service runs; also over HTTP, under `/control/`.
#[derive(Debug, Default)]
pub struct Controls {
    not_ready: AtomicBool,
    delay_ms: AtomicU64,
    /// 0 answers 200.
    fail_status: AtomicU16,
    requests: AtomicU64,
    last_received: AtomicU64,
}

impl Controls {
    pub fn set_ready(&self, ready: bool) {
        self.not_ready.store(!ready, Ordering::SeqCst);
    }

    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Answers every request with that status; 0 ends it.
    pub fn set_fail_status(&self, status: u16) {
        self.fail_status.store(status, Ordering::SeqCst);
    }

    /// Requests so far, those under `/control/` and to `/readyz` not among them.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// One instance of the service.
#[derive(Clone)]
pub struct Workload {
    config: Arc<Config>,
    controls: Arc<Controls>,
}

/// The answer to any path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub service: String,
    pub cell: String,
    pub pod: String,
    pub method: String,
    pub path: String,
    pub body_length: u64,
    pub body_sha256: String,
    /// Requests to this instance so far, this one included.
    pub requests: u64,
    pub received_unix_ms: u64,
    /// Header fields of the request, those that are text.
    pub headers: BTreeMap<String, String>,
}

impl Workload {
    pub fn new(config: Config) -> Self {
        let controls = Controls::default();
        controls.set_delay(config.delay);
        Self { config: Arc::new(config), controls: Arc::new(controls) }
    }

    pub fn controls(&self) -> Arc<Controls> {
        Arc::clone(&self.controls)
    }

    /// Serves until the shutdown, then until what is under way is answered, at most 25 s.
    ///
    /// # Errors
    /// When the listener fails for good.
    pub async fn serve(self, listener: TcpListener, shutdown: Shutdown) -> std::io::Result<()> {
        let controls = self.controls();
        let asked = shutdown.requested();
        let stop = async move {
            asked.await;
            controls.set_ready(false);
        };
        let late = async move {
            shutdown.requested().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = axum::serve(listener, self.router()).with_graceful_shutdown(stop) => served,
            () = late => Ok(()),
        }
    }

    fn router(self) -> Router {
        let fallback = if self.config.role == Role::Whole { any(answer) } else { post(step) };
        Router::new()
            .route("/readyz", get(ready))
            .route("/control/ready", post(control_ready))
            .route("/control/delay", post(control_delay))
            .route("/control/fail", post(control_fail))
            .route("/control/requests", get(control_requests))
            .route("/echo", any(echo))
            .fallback_service(fallback.with_state(self.clone()))
            .with_state(self)
    }

    /// Counts a request and does what the controls say; the answer is theirs where they say fail.
    async fn arrive(&self) -> Result<(u64, u64), Response<Body>> {
        let now = now_unix_millis();
        let number = self.controls.requests.fetch_add(1, Ordering::SeqCst) + 1;
        self.controls.last_received.fetch_max(now, Ordering::SeqCst);
        let delay = self.controls.delay_ms.load(Ordering::SeqCst);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        match StatusCode::from_u16(self.controls.fail_status.load(Ordering::SeqCst)) {
            Ok(status) => Err((status, "told to fail\n").into_response()),
            Err(_) => Ok((number, now)),
        }
    }
}

async fn ready(State(workload): State<Workload>) -> (StatusCode, &'static str) {
    if workload.controls.not_ready.load(Ordering::SeqCst) {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

#[derive(Deserialize)]
struct Ready {
    value: bool,
}

async fn control_ready(State(workload): State<Workload>, Query(query): Query<Ready>) {
    workload.controls.set_ready(query.value);
}

#[derive(Deserialize)]
struct Delay {
    ms: u64,
}

async fn control_delay(State(workload): State<Workload>, Query(query): Query<Delay>) {
    workload.controls.set_delay(Duration::from_millis(query.ms));
}

#[derive(Deserialize)]
struct Fail {
    status: u16,
}

async fn control_fail(State(workload): State<Workload>, Query(query): Query<Fail>) {
    workload.controls.set_fail_status(query.status);
}

async fn control_requests(State(workload): State<Workload>) -> axum::Json<serde_json::Value> {
    let controls = &workload.controls;
    axum::Json(serde_json::json!({
        "requests": controls.requests(),
        "lastReceivedUnixMs": controls.last_received.load(Ordering::SeqCst),
    }))
}

/// The request's body, as it comes.
async fn echo(State(workload): State<Workload>, request: Request<Body>) -> Response<Body> {
    if let Err(answer) = workload.arrive().await {
        return answer;
    }
    let kind = request.headers().get(header::CONTENT_TYPE).cloned();
    let mut response = Response::new(request.into_body());
    if let Some(kind) = kind {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    response
}

async fn answer(State(workload): State<Workload>, request: Request<Body>) -> Response<Body> {
    let (parts, mut body) = request.into_parts();
    let (mut length, mut hash) = (0, Sha256::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return (StatusCode::BAD_REQUEST, "the body broke off\n").into_response();
        };
        if let Some(data) = frame.data_ref() {
            length += data.len() as u64;
            hash.update(data);
        }
    }
    let (requests, received) = match workload.arrive().await {
        Ok(arrived) => arrived,
        Err(answer) => return answer,
    };
    let config = &workload.config;
    let answer = Answer {
        service: config.name.clone(),
        cell: config.cell.clone(),
        pod: config.pod.clone(),
        method: parts.method.as_str().to_owned(),
        path: parts.uri.path_and_query().map_or("", |path| path.as_str()).to_owned(),
        body_length: length,
        body_sha256: format!("{:x}", hash.finalize()),
        requests,
        received_unix_ms: received,
        headers: text_fields(&parts.headers),
    };
    let fields = [(CELL_HEADER, config.cell.clone()), (RECEIVED_HEADER, received.to_string())];
    (fields, axum::Json(answer)).into_response()
}

/// One step of a payment: JSON in, JSON out, and the Destination where the step chooses it.
async fn step(State(workload): State<Workload>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, LARGEST_STEP).await else {
        return (StatusCode::BAD_REQUEST, "the body broke off, or is longer than 1 MiB\n").into_response();
    };
    if let Err(answer) = workload.arrive().await {
        return answer;
    }
    let config = &workload.config;
    let text = |field| parts.headers.get(field).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let asked = payment::Asked {
        transaction: text(TRANSACTION_HEADER),
        state: text(STATE_HEADER),
        cell: &config.cell,
        path: parts.uri.path(),
    };
    match payment::run(config.role, asked, &body) {
        Ok(reply) => {
            let mut response = Response::new(Body::from(reply.body));
            let fields = response.headers_mut();
            fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Some(destination) = reply.destination {
                fields.insert(DESTINATION_HEADER, HeaderValue::from_static(destination));
            }
            if let Some(Ok(state)) = reply.state.map(HeaderValue::try_from) {
                fields.insert(STATE_HEADER, state);
            }
            response
        }
        Err(refusal) => {
            let problem = serde_json::json!({"title": "Not processed", "detail": refusal.to_string()});
            let kind = [(header::CONTENT_TYPE, "application/problem+json")];
            (StatusCode::UNPROCESSABLE_ENTITY, kind, problem.to_string()).into_response()
        }
    }
}

fn text_fields(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, Method};
    use serde_json::{Value, json};

    use super::*;
    use crate::caller::Caller;
    use crate::payment::Payment;

    async fn start(role: Role) -> Caller {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let caller = Caller::new(listener.local_addr().expect("is bound"));
        let config = Config { role, ..Config::default() };
        tokio::spawn(Workload::new(config).serve(listener, Shutdown::new()));
        caller
    }

    async fn post(caller: &Caller, path: &str, body: &Value) -> (StatusCode, Value) {
        let transaction = [(HeaderName::from_static(TRANSACTION_HEADER), "t-1")];
        let body = body.to_string().into();
        let (status, body) = caller.call(Method::POST, path, &transaction, body).await.expect("is answered");
        (status, serde_json::from_slice(&body).expect("is JSON"))
    }

    #[tokio::test]
    async fn a_service_of_one_role_does_its_step_at_any_path() {
        let caller = start(Role::Validate).await;
        let payment = json!(Payment::sample("order-1"));
        assert_eq!(post(&caller, "/v1/pay", &payment).await, (StatusCode::OK, payment));
        let (status, problem) = post(&caller, "/", &json!({"card": 1})).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("malformed")), "{problem}");
    }

    #[tokio::test]
    async fn one_service_does_the_steps_that_paths_name() {
        let (caller, mut body) = (start(Role::ByPath).await, json!(Payment::sample("order-1")));
        for path in ["/validate", "/enrich", "/transform", "/choose-issuer"] {
            let (status, answer) = post(&caller, path, &body).await;
            assert_eq!(status, StatusCode::OK, "{path}: {answer}");
            body = answer;
        }
        assert_eq!(body["category"], "5411");
    }
}
