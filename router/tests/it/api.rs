//! An API server in this process: lists and watches of the kinds that routers read, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bulkhead_process::Port;
use bytes::Bytes;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::world::PATIENCE;

struct Store {
    version: u64,
    objects: BTreeMap<(String, String), Value>,
    /// Every change with its version and kind.
    log: Vec<(u64, String, Value)>,
    /// Kinds whose lists are not answered for now.
    held: Vec<String>,
}

struct Inner {
    store: Mutex<Store>,
    changed: watch::Sender<()>,
}

/// A running API server.
pub(crate) struct FakeApi {
    pub(crate) address: SocketAddr,
    /// Stays the server's while it is stopped.
    _port: Port,
    inner: Arc<Inner>,
    /// Its own, whose end closes every connection, as the end of a process would.
    runtime: Option<Runtime>,
}

impl FakeApi {
    pub(crate) async fn start() -> Self {
        let store = Store { version: 1, objects: BTreeMap::new(), log: Vec::new(), held: Vec::new() };
        let inner = Arc::new(Inner { store: Mutex::new(store), changed: watch::Sender::new(()) });
        let port = Port::free().expect("a port is free");
        let mut api = Self { address: port.address, _port: port, inner, runtime: None };
        api.start_again().await;
        api
    }

    /// Refuses connections and cuts those that are open.
    pub(crate) async fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let stopped = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(PATIENCE));
            stopped.await.expect("stops");
        }
    }

    pub(crate) async fn start_again(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = self.runtime.insert(runtime.expect("a runtime can be made"));
        let routes = axum::Router::new()
            .route("/apis/{group}/{version}/{plural}", get(answer))
            .with_state(Arc::clone(&self.inner));
        let bound = runtime.spawn(TcpListener::bind(self.address)).await.expect("runs");
        let listener = bound.expect("the port is the server's");
        runtime.spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.inner.store.lock().expect("no test panics here")
    }

    /// Does not answer lists of that kind until they are released.
    pub(crate) fn hold(&self, plural: &str) {
        self.store().held.push(plural.to_owned());
    }

    pub(crate) fn release(&self) {
        self.store().held.clear();
        self.tell();
    }

    fn tell(&self) {
        self.inner.changed.send_replace(());
    }

    /// Applies YAML documents, each as if it had the generation given.
    pub(crate) fn apply(&self, text: &str, generation: i64) {
        for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
            let mut value: Value = serde_yaml::from_str(document).expect("is YAML");
            let kind = value["kind"].as_str().expect("has a kind").to_lowercase();
            let plural = if let Some(stem) = kind.strip_suffix('y') {
                format!("{stem}ies")
            } else {
                format!("{kind}s")
            };
            let name = value["metadata"]["name"].as_str().expect("has a name").to_owned();
            let namespace = value["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            let mut store = self.store();
            store.version += 1;
            let version = store.version;
            value["metadata"]["resourceVersion"] = version.to_string().into();
            value["metadata"]["generation"] = generation.into();
            value["metadata"]["uid"] = format!("{plural}-{namespace}-{name}").into();
            let known = store.objects.insert((plural.clone(), format!("{namespace}/{name}")), value.clone());
            let change = if known.is_some() { "MODIFIED" } else { "ADDED" };
            store.log.push((version, plural, json!({"type": change, "object": value})));
        }
        self.tell();
    }

    /// `name` is NAME or NAMESPACE/NAME.
    pub(crate) fn delete(&self, plural: &str, name: &str) {
        let key = if name.contains('/') { name.to_owned() } else { format!("/{name}") };
        let mut store = self.store();
        store.version += 1;
        let version = store.version;
        let gone = store.objects.remove(&(plural.to_owned(), key)).expect("exists");
        store.log.push((version, plural.to_owned(), json!({"type": "DELETED", "object": gone})));
        drop(store);
        self.tell();
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn answer(
    State(inner): State<Arc<Inner>>,
    Path((_, _, plural)): Path<(String, String, String)>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let mut changed = inner.changed.subscribe();
    if query.contains_key("watch") {
        let from = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        return watching(inner, plural, from);
    }
    while inner.store.lock().expect("no test panics here").held.contains(&plural) {
        if changed.changed().await.is_err() {
            break;
        }
    }
    let store = inner.store.lock().expect("no test panics here");
    let items: Vec<&Value> =
        store.objects.iter().filter(|((kind, _), _)| *kind == plural).map(|(_, value)| value).collect();
    Json(json!({
        "kind": "List",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": store.version.to_string()},
        "items": items,
    }))
    .into_response()
}

fn watching(inner: Arc<Inner>, plural: String, from: u64) -> Response {
    let changed = inner.changed.subscribe();
    let lines = stream::unfold((inner, changed, from), move |(inner, mut changed, from)| {
        let plural = plural.clone();
        async move {
            loop {
                changed.borrow_and_update();
                let next = {
                    let store = inner.store.lock().expect("no test panics here");
                    store.log.iter().find(|(version, kind, _)| *version > from && *kind == plural).cloned()
                };
                match next {
                    Some((version, _, event)) => {
                        let line = Bytes::from(event.to_string() + "\n");
                        return Some((Ok::<_, Infallible>(line), (inner, changed, version)));
                    }
                    None => changed.changed().await.ok()?,
                }
            }
        }
    });
    Body::from_stream(lines).into_response()
}
