//! A cluster for tests: an API server that answers as a test says and remembers what it was sent, and what reconciles
//! use, on top of it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_crds::{Cell, CellSpec, CellStatus, CellTemplate, CellTemplateSpec, CellTemplateStatus, names};
use bulkhead_process::clock::Monotonic;
use bulkhead_protocol::Serving;
use clap::{CommandFactory, FromArgMatches};
use http::{Method, Request, Response};
use kube::api::DynamicObject;
use kube::client::Body;
use kube::core::ApiResource;
use kube::runtime::reflector::Store;
use kube::runtime::{reflector, watcher};
use kube::{Client, Resource};
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cell::desired::Key;
use crate::cell::observe::{NamespaceSeen, Observed};
use crate::cell::{Context, Others};
use crate::config::{Args, Config};
use crate::kinds::{Kinds, resource};
use crate::lease::Leadership;
use crate::revision::{Recipe, Revision};
use crate::routing_status::snapshot::{RouterPod, Snapshot};
use crate::stores::Stores;
use crate::writer::Writer;

/// HTTP status and object.
pub(crate) type Answer = (u16, Value);

/// What the API server was sent: `METHOD /path` and the body, in order.
#[derive(Clone, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<(String, Value)>>>);

impl Requests {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(line, _)| line.clone()).collect()
    }

    /// Everything that would change the cluster, Events left out.
    pub(crate) fn writes(&self) -> Vec<String> {
        let mut all = self.all();
        all.retain(|line| !line.starts_with("GET ") && !line.ends_with("/events"));
        all
    }

    /// The body of the last request of that line.
    #[track_caller]
    pub(crate) fn body(&self, line: &str) -> Value {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().rev().find(|(sent, _)| sent == line);
        found.map(|(_, body)| body.clone()).expect("it was sent")
    }

    /// What was applied in cells' namespaces, as watches show it.
    pub(crate) fn applied(&self) -> Vec<(Key, Arc<DynamicObject>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = Kinds::new(&[]);
        let objects = all.iter().filter(|(line, _)| line.starts_with("PATCH ")).filter_map(|(_, body)| {
            let applied: DynamicObject = serde_json::from_value(body.clone()).ok()?;
            let types = applied.types.as_ref()?;
            let resource = &kinds.find(&types.api_version, &types.kind)?.resource;
            Some((object(resource, applied.metadata.name.as_deref()?).0, Arc::new(applied)))
        });
        objects.collect()
    }

    /// The reasons of the Events, in order.
    pub(crate) fn events(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let events = all.iter().filter(|(line, _)| line.ends_with("/events"));
        events.map(|(_, event)| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// The API server's no.
pub(crate) fn failure(code: u16, message: &str) -> Answer {
    let reason = if code == 404 { "NotFound" } else { "Test" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "message": message, "reason": reason});
    (code, status)
}

/// An API server without objects, which takes every write; where `answer` has something to say, that holds instead.
pub(crate) fn api_server(
    answer: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
) -> (Client, Requests) {
    let requests = Requests::default();
    let (sent, answer) = (requests.clone(), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (sent, answer) = (sent.clone(), Arc::clone(&answer));
        async move {
            let (parts, body) = request.into_parts();
            let line = format!("{} {}", parts.method, parts.uri.path());
            let body = body.collect_bytes().await.expect("is in memory");
            let object: Value = serde_json::from_slice(&body).unwrap_or_default();
            sent.0.lock().unwrap_or_else(PoisonError::into_inner).push((line.clone(), object.clone()));
            let (status, object) = answer(&line).unwrap_or_else(|| match parts.method {
                Method::GET => failure(404, "not found"),
                Method::DELETE => (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
                _ => (200, object),
            });
            Response::builder().status(status).body(Body::from(object.to_string().into_bytes()))
        }
    });
    (Client::new(service, "default"), requests)
}

/// An API server that takes requests and never answers.
pub(crate) fn silent_api_server() -> Client {
    let never = |_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>();
    Client::new(tower::service_fn(never), "default")
}

/// A server that answers one request with these bytes and keeps the connection open until the client closes it.
pub(crate) async fn answering(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut buffer = [0; 1024];
        let _ = stream.read(&mut buffer).await.expect("reads");
        stream.write_all(answer.as_bytes()).await.expect("writes");
        let _ = stream.read(&mut buffer).await;
    });
    address
}

/// A leading operator whose stores are empty and who has asked its routers, of which there are none.
pub(crate) fn context(client: Client) -> Context {
    let clock = Monotonic::start();
    let leadership = Leadership::none(clock);
    leadership.hold_until(clock.millis() + 600_000);
    let writer = Writer::new(client.clone(), leadership, "pod", &Registry::new()).expect("a fresh registry");
    let others = Others {
        stores: Arc::new(Stores::empty()),
        snapshot: watch::channel(Arc::new(Snapshot { asked: true, ..Snapshot::default() })).1,
        voices: watch::channel(Arc::default()).1,
    };
    let failures = IntCounterVec::new(Opts::new("failures", "of this test"), &["reason"]).expect("is legal");
    Context::new(client, config(), Kinds::new(&[]), writer, others, failures)
}

/// The flags' defaults, whatever the environment says: a pod in which the tests run may have a POD_NAMESPACE.
fn config() -> Config {
    let command = Args::command().mut_args(|arg| arg.env(None::<&str>));
    let matches = command.get_matches_from(["bulkhead-operator"]);
    Args::from_arg_matches(&matches).expect("every flag has a default").config
}

/// A store with these objects in it.
pub(crate) fn store<K>(objects: impl IntoIterator<Item = K>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let mut writer = reflector::store::Writer::default();
    for object in objects {
        writer.apply_watcher_event(&watcher::Event::Apply(object));
    }
    writer.as_reader()
}

/// A pod of Router `r` that answered like this.
pub(crate) fn router_pod(name: &str, serving: Serving) -> RouterPod {
    RouterPod {
        pod: name.to_owned(),
        router: "r".to_owned(),
        serving: Some(Arc::new(serving)),
        silent: false,
        gone: false,
        transient: false,
    }
}

/// Cell `a` of template `t`, seen by the operator before.
pub(crate) fn cell() -> Cell {
    let mut cell = Cell::new("a", CellSpec { template: Some("t".to_owned()), ..CellSpec::default() });
    cell.metadata.uid = Some("cell-uid".to_owned());
    cell.metadata.resource_version = Some("1".to_owned());
    cell.metadata.finalizers = Some(vec![names::FINALIZER_DRAIN.to_owned()]);
    cell
}

/// The namespace that was made for that Cell.
pub(crate) fn namespace(cell: &Cell) -> NamespaceSeen {
    let uid = cell.metadata.uid.clone().unwrap_or_default();
    NamespaceSeen {
        uid: "namespace-uid".to_owned(),
        resource_version: "1".to_owned(),
        annotations: [(names::ANNOTATION_CELL_UID.to_owned(), uid)].into(),
        ..NamespaceSeen::default()
    }
}

/// An object that the operator made for cell `a`, with nothing in it.
pub(crate) fn object(resource: &ApiResource, name: &str) -> (Key, Arc<DynamicObject>) {
    let mut object = DynamicObject::new(name, resource);
    let labels = [(names::LABEL_CELL, "a"), (names::LABEL_MANAGED_BY, names::MANAGER)];
    object.metadata.labels = Some(labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into());
    (Key::new(resource, name), Arc::new(object))
}

/// A Cell whose template is accepted and whose namespace exists with something in it.
pub(crate) fn running() -> (Cell, Observed) {
    let revision = Revision::new("t", Recipe::default(), 1);
    let mut cell = cell();
    cell.status = Some(CellStatus { current_revision: Some(revision.name.clone()), ..CellStatus::default() });
    let template = latest(CellTemplate::new("t", CellTemplateSpec::default()), &revision);
    let account = resource("", "v1", "ServiceAccount", "serviceaccounts");
    let observed = Observed {
        namespace: Some(namespace(&cell)),
        objects: [object(&account, names::CELL_RUNTIME)].into(),
        template: Some(template),
        revisions: vec![revision],
        siblings: vec![cell.clone()],
        ..Observed::default()
    };
    (cell, observed)
}

/// The template with that revision as its newest.
pub(crate) fn latest(mut template: CellTemplate, revision: &Revision) -> CellTemplate {
    let latest_revision = Some(revision.name.clone());
    template.status = Some(CellTemplateStatus { latest_revision, ..CellTemplateStatus::default() });
    template
}
