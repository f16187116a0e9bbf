//! Starts services and cell-runtimes, and speaks to them as a router does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cell_runtime::{Addresses, Bound, CellConfig, Config, Discovery, config};
use bulkhead_crds::template::{Entry, Service};
use bulkhead_process::connect::{Connector, http1};
use bulkhead_process::{Monotonic, Shutdown};
use bulkhead_protocol::{HealthLine, Verdict, health};
use bulkhead_samples::workload::{self, Controls, Workload};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use prometheus::TextEncoder;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Long enough for a machine that is busy with other things; what a test is about has a bound of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `true`.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let clock = Monotonic::start();
    while !condition().await {
        assert!(clock.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// One instance of the sample service. It is killed when dropped.
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    pub(crate) controls: Arc<Controls>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Pod {
    /// Has a runtime of its own, so that killing it closes its connections as a dead process would.
    pub(crate) async fn start(name: &str) -> Self {
        let workload = Workload::new(workload::Config { name: name.to_owned(), ..Default::default() });
        let controls = workload.controls();
        Self::serving(controls, async move |listener| {
            let _ = workload.serve(listener, Shutdown::new()).await;
        })
        .await
    }

    /// Serves routes of the test's own.
    pub(crate) async fn routes(routes: axum::Router) -> Self {
        Self::serving(Arc::default(), async move |listener| {
            let _ = axum::serve(listener, routes).await;
        })
        .await
    }

    pub(crate) async fn serving<F>(controls: Arc<Controls>, serve: impl FnOnce(TcpListener) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = {
            let _inside = runtime.enter();
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("binds");
            listener.set_nonblocking(true).expect("is a socket");
            TcpListener::from_std(listener).expect("is a listener")
        };
        let address = listener.local_addr().expect("is bound");
        runtime.spawn(serve(listener));
        Self { address, controls, runtime: Some(runtime) }
    }

    /// Returns once its sockets are closed.
    pub(crate) async fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            let stopped = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE));
            stopped.await.expect("stops");
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A cell named `a` whose entry is the service `web` with these pods.
pub(crate) fn config(pods: &[&Pod]) -> Config {
    let web = Service { min_ready: 1, required: true, ..service("web") };
    let cell = CellConfig {
        cell: "a".to_owned(),
        revision: "r1".to_owned(),
        services: vec![web],
        entry: Some(Entry { service: "web".to_owned(), ..Entry::default() }),
        ..CellConfig::default()
    };
    let addresses = pods.iter().map(|pod| pod.address).collect();
    with(cell, BTreeMap::from([("web".to_owned(), addresses)]))
}

pub(crate) fn service(name: &str) -> Service {
    Service {
        name: name.to_owned(),
        port: 80,
        readiness_path: "/readyz".to_owned(),
        min_ready: 1,
        required: true,
    }
}

pub(crate) fn with(cell: CellConfig, services: BTreeMap<String, Vec<SocketAddr>>) -> Config {
    Config {
        cell,
        pod: "a-0".to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        health_listen: None,
        admin_listen: None,
        discovery: Discovery::Fixed { services, peers: Vec::new() },
        body_limit: config::DEFAULT_BODY_LIMIT,
        drain_timeout: config::DEFAULT_DRAIN_TIMEOUT,
        // A machine that stops for a moment while a probe is under way shall change no verdict.
        probe_timeout: PATIENCE,
        registry: prometheus::Registry::new(),
    }
}

/// A cell-runtime that runs in this process.
pub(crate) struct Runtime {
    pub(crate) addresses: Addresses,
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<anyhow::Result<()>>,
    registry: prometheus::Registry,
}

impl Runtime {
    /// Waits until so many pods of `web` are ready, which a verdict that is ready with fewer does not tell.
    pub(crate) async fn until_pods_are_ready(&self, count: u32) {
        let line = format!("bulkhead_cell_service_pods{{service=\"web\",state=\"ready\"}} {count}");
        eventually(&line, async || {
            let text = TextEncoder::new().encode_to_string(&self.registry.gather()).expect("metrics");
            text.lines().any(|told| told == line)
        })
        .await;
    }
}

pub(crate) async fn start(config: Config) -> Runtime {
    let registry = config.registry.clone();
    let bound = Bound::bind(config).await.expect("binds");
    let (addresses, shutdown) = (bound.addresses(), Shutdown::new());
    assert_eq!(addresses.health.port(), addresses.traffic.port() + 1);
    let task = tokio::spawn(bound.run(shutdown.clone()));
    Runtime { addresses, shutdown, task, registry }
}

/// Starts, and waits until it says ready.
pub(crate) async fn start_ready(config: Config) -> Runtime {
    let runtime = start(config).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    runtime
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Status, `bulkhead-reason` and `bulkhead-outcome`.
    pub(crate) fn refusal(&self) -> (u16, Option<&str>, Option<&str>) {
        (self.status.as_u16(), self.field("bulkhead-reason"), self.field("bulkhead-outcome"))
    }

    pub(crate) fn json(&self) -> workload::Answer {
        serde_json::from_slice(&self.body).expect("the sample's answer")
    }
}

pub(crate) fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "payments.example")
}

pub(crate) fn post(path: &str) -> http::request::Builder {
    Request::post(path).header("host", "payments.example")
}

/// Sends over a connection of its own.
pub(crate) async fn send(
    address: SocketAddr,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> Result<Answer, hyper::Error> {
    let stream = Connector::plain().connect(address, PATIENCE).await.expect("connects");
    let mut sender = http1(stream).await?;
    let request = request.body(Full::new(body.into())).expect("a request");
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Answer { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
}

pub(crate) async fn ask(address: SocketAddr, request: http::request::Builder) -> Answer {
    send(address, request, Bytes::new()).await.expect("is answered")
}

/// One reader of a health stream.
pub(crate) struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Stream {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = Connector::plain().connect(address, PATIENCE).await.expect("connects");
        let mut sender = http1(stream).await.expect("speaks HTTP");
        let request = get(health::PATH).body(Empty::<Bytes>::new()).expect("a request");
        let response = sender.send_request(request).await.expect("is answered");
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next line; `None` at the stream's end.
    pub(crate) async fn next(&mut self) -> Option<HealthLine> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return HealthLine::from_line(&line).expect("a line");
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("a line in time");
            self.buffer.extend_from_slice(&frame?.ok()?.into_data().expect("data"));
        }
    }

    /// The age that the next line tells.
    pub(crate) async fn ready_for_ms(&mut self) -> u64 {
        match self.next().await.expect("the stream goes on") {
            HealthLine::Verdict(verdict) => verdict.ready_for_ms,
            HealthLine::Beat(beat) => beat.ready_for_ms,
        }
    }

    /// Reads on to the first verdict that satisfies the condition.
    pub(crate) async fn until(&mut self, what: &str, condition: impl Fn(&Verdict) -> bool) -> Verdict {
        let clock = Monotonic::start();
        loop {
            match self.next().await {
                Some(HealthLine::Verdict(verdict)) if condition(&verdict) => return verdict,
                Some(_) => assert!(clock.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}"),
                None => panic!("the stream ended before: {what}"),
            }
        }
    }
}
