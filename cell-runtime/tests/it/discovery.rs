//! Pods by EndpointSlices, from an API server that is a few routes of the test's own and can go away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get as on_get;
use bulkhead_cell_runtime::{Config, Discovery};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::harness::{Pod, Stream, ask, config, eventually, get, start};

/// Lists `slices`, and sends what is changed later to every watch. Answers 500 while `away`.
#[derive(Clone)]
struct Api {
    slices: Arc<Mutex<Vec<Value>>>,
    events: broadcast::Sender<String>,
    away: Arc<Mutex<bool>>,
}

impl Api {
    fn new(slices: Vec<Value>) -> Self {
        Self { slices: Arc::new(Mutex::new(slices)), events: broadcast::channel(16).0, away: Arc::default() }
    }

    fn discovery(&self) -> Discovery {
        let path = "/apis/discovery.k8s.io/v1/namespaces/cell-a/endpointslices";
        let routes = axum::Router::new().route(path, on_get(answer)).with_state(self.clone());
        let client = kube::Client::new(routes, "cell-a");
        Discovery::Kubernetes { client, namespace: "cell-a".to_owned() }
    }

    fn apply(&self, slice: Value) {
        let event = json!({"type": "MODIFIED", "object": slice}).to_string() + "\n";
        *self.slices.lock().expect("not poisoned") = vec![slice];
        let _ = self.events.send(event);
    }

    /// Cuts the watches and refuses new ones.
    fn leave(&self) {
        *self.away.lock().expect("not poisoned") = true;
        let _ = self.events.send(String::new());
    }
}

async fn answer(State(api): State<Api>, Query(query): Query<HashMap<String, String>>) -> Response {
    if *api.away.lock().expect("not poisoned") {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if !query.contains_key("watch") {
        let items = api.slices.lock().expect("not poisoned").clone();
        return axum::Json(json!({
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": items,
        }))
        .into_response();
    }
    let lines = futures::stream::unfold(api.events.subscribe(), async |mut events| {
        let line = events.recv().await.ok().filter(|line| !line.is_empty())?;
        Some((Ok::<_, std::io::Error>(Bytes::from(line)), events))
    });
    Body::from_stream(lines).into_response()
}

fn slice(pods: &[&Pod], version: &str) -> Value {
    let endpoints: Vec<Value> =
        pods.iter().map(|_| json!({"addresses": ["127.0.0.1"], "conditions": {"ready": false}})).collect();
    let port = pods.first().map_or(1, |pod| pod.address.port());
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1", "namespace": "cell-a", "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4", "ports": [{"port": port}], "endpoints": endpoints,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_come_from_slices_whatever_their_ready_says_and_follow_changes() {
    let (one, two) = (Pod::start("web").await, Pod::start("web").await);
    let api = Api::new(vec![slice(&[&one], "1")]);
    let runtime = start(Config { discovery: api.discovery(), ..config(&[]) }).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    assert_eq!(ask(runtime.addresses.traffic, get("/")).await.status, StatusCode::OK);

    let mut version = 1;
    eventually("the other pod is found", async || {
        // The watch may not be open yet when the first change is made.
        version += 1;
        api.apply(slice(&[&two], &version.to_string()));
        ask(runtime.addresses.traffic, get("/")).await;
        two.controls.requests() > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_api_server_the_last_pods_stay_and_probes_decide() {
    let web = Pod::start("web").await;
    let api = Api::new(vec![slice(&[&web], "1")]);
    let runtime = start(Config { discovery: api.discovery(), ..config(&[]) }).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    api.leave();
    web.controls.set_ready(false);
    stream.until("not ready", |verdict| !verdict.ready).await;
    web.controls.set_ready(true);
    stream.until("ready again", |verdict| verdict.ready).await;
    assert_eq!(ask(runtime.addresses.traffic, get("/")).await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_list_the_verdict_says_what_is_missing() {
    let api = Api::new(Vec::new());
    api.leave();
    let runtime = start(Config { discovery: api.discovery(), ..config(&[]) }).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("unknown endpoints", |verdict| verdict.reason == "EndpointsUnknown").await;
}
