//! Objects from the API server: one watch for each kind, whole lists first. An object that cannot be read is skipped
//! and reported. Read-only.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift, names};
use futures::{Stream, StreamExt};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DeserializeGuard;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Config};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::freshness::Freshness;
use crate::objects::{Change, Kind, Name, Objects, Pod, Slice, Told, Touched, key};

/// The server ends each watch then, long before load balancers cut idle connections silently.
const WATCH_SECONDS: u32 = 60;
/// A connection on which the server is due to speak and says nothing for this long is given up: it may be dead without
/// anybody having said so. A quiet watch may say nothing before it ends: nobody promises it bookmarks.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// Between two tries at a server that does not answer. Short, so that what was missed is caught up with in seconds.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// Watches every kind until the builder is gone.
///
/// # Errors
/// When there is no configuration of a cluster, neither from a service account nor from a kubeconfig.
pub(crate) async fn watch(
    kubeconfig: Option<PathBuf>,
    changes: mpsc::Sender<Change>,
    freshness: Freshness,
) -> anyhow::Result<()> {
    // Another part of the process may have chosen one before, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = match kubeconfig {
        Some(path) => {
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
        }
        None => kube::Config::infer().await?,
    };
    Box::pin(follow(config, SILENCE, changes, freshness)).await
}

async fn follow(
    mut config: kube::Config,
    silence: Duration,
    changes: mpsc::Sender<Change>,
    freshness: Freshness,
) -> anyhow::Result<()> {
    config.connect_timeout = Some(Duration::from_secs(2));
    config.read_timeout = Some(silence);
    // What a connection was idle for is no silence of the server's.
    config.reset_reader_on_write = true;
    // The watches try again themselves, sooner than the client would, and say so.
    config.default_retry = false;
    let client = ClientBuilder::try_from(config)?.with_layer(&freshness.layer()).build();
    let slices = Config::default()
        .timeout(WATCH_SECONDS)
        .labels(&format!("kubernetes.io/service-name={}", names::CELL_RUNTIME));
    tokio::join!(
        objects::<Router>(&client, &changes),
        objects::<Cell>(&client, &changes),
        objects::<RoutingPolicy>(&client, &changes),
        objects::<TrafficShift>(&client, &changes),
        objects::<Destination>(&client, &changes),
        endpoint_slices(Api::all(client.clone()), slices, &changes),
    );
    Ok(())
}

fn events<K>(api: Api<K>, config: Config) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut failing = false;
    watcher(api, config).backoff(Retry::default()).inspect(move |event| match event {
        // Once for each time that the server is away: it is tried again every second.
        Err(error) if !failing => {
            failing = true;
            tracing::warn!(kind = &*K::kind(&()), %error, "the watch failed and is tried again until it works");
        }
        Ok(_) if failing => {
            failing = false;
            tracing::info!(kind = &*K::kind(&()), "the watch works again");
        }
        Err(_) | Ok(_) => {}
    })
}

async fn objects<K>(client: &Client, changes: &mpsc::Sender<Change>)
where
    K: Kind + DeserializeOwned + Debug + Send + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    let mut events = std::pin::pin!(events(api, Config::default().timeout(WATCH_SECONDS)));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let change: Change = match event {
            Err(_) => continue,
            Ok(event) => match event {
                Event::Init => {
                    listed.clear();
                    continue;
                }
                Event::InitApply(object) => {
                    listed.push(object);
                    continue;
                }
                Event::InitDone => {
                    let listed = std::mem::take(&mut listed);
                    Box::new(move |objects| replace::<K>(objects, listed))
                }
                Event::Apply(object) => Box::new(move |objects| apply::<K>(objects, object)),
                Event::Delete(object) => Box::new(move |objects| remove::<K>(objects, &object)),
            },
        };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}

/// The name under which a bad object is reported.
fn label<K: Kind>(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{}/{namespace}/{name}", K::NAME),
        None => format!("{}/{name}", K::NAME),
    }
}

fn replace<K: Kind>(objects: &mut Objects, listed: Vec<DeserializeGuard<K>>) -> Touched {
    let bad_before = objects.bad.clone();
    objects.bad.retain(|name, _| !name.starts_with(&format!("{}/", K::NAME)));
    let mut good = Vec::with_capacity(listed.len());
    for object in listed {
        match object.0 {
            Ok(object) => good.push(object),
            Err(invalid) => {
                let (namespace, name) = key_of(invalid.metadata);
                report::<K>(objects, namespace.as_deref(), &name, &invalid.error);
                // What it said well before stays in force.
                good.extend(K::set(objects).get(namespace.as_deref(), &name).cloned());
            }
        }
    }
    let learned = K::remember(&mut objects.owners, Told::All(&good));
    K::set(objects).replace(good).and(Touched::TABLE.when(learned || objects.bad != bad_before))
}

fn apply<K: Kind>(objects: &mut Objects, object: DeserializeGuard<K>) -> Touched {
    match object.0 {
        Ok(object) => {
            let (namespace, name) = key(&object);
            objects.bad.remove(&label::<K>(namespace.as_deref(), &name));
            let learned = K::remember(&mut objects.owners, Told::One(&object));
            K::set(objects).apply(object).and(Touched::TABLE.when(learned))
        }
        Err(invalid) => {
            let (namespace, name) = key_of(invalid.metadata);
            report::<K>(objects, namespace.as_deref(), &name, &invalid.error);
            Touched::TABLE
        }
    }
}

fn key_of(metadata: ObjectMeta) -> Name {
    (metadata.namespace, metadata.name.unwrap_or_default())
}

fn remove<K: Kind>(objects: &mut Objects, object: &DeserializeGuard<K>) -> Touched {
    let gone = key(object);
    objects.bad.remove(&label::<K>(gone.0.as_deref(), &gone.1));
    K::remember(&mut objects.owners, Told::Gone(&gone));
    K::set(objects).remove(gone.0, gone.1)
}

fn report<K: Kind>(objects: &mut Objects, namespace: Option<&str>, name: &str, error: &str) {
    let label = label::<K>(namespace, name);
    tracing::warn!(
        object = label,
        error,
        "the object cannot be read; the last good one stays, if there was one"
    );
    objects.bad.insert(label, error.to_owned());
}

async fn endpoint_slices(api: Api<EndpointSlice>, config: Config, changes: &mpsc::Sender<Change>) {
    let mut events = std::pin::pin!(events(api, config));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let Ok(event) = event else { continue };
        let change: Change = match event {
            Event::Init => {
                listed.clear();
                continue;
            }
            Event::InitApply(slice) => {
                listed.extend(slice_of(&slice));
                continue;
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut listed);
                Box::new(move |objects| objects.slices.replace(listed))
            }
            Event::Apply(slice) => {
                let Some(slice) = slice_of(&slice) else { continue };
                Box::new(move |objects| objects.slices.apply(slice))
            }
            Event::Delete(slice) => {
                let Some(slice) = slice_of(&slice) else { continue };
                Box::new(move |objects| objects.slices.remove(slice.cell, slice.name))
            }
        };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}

/// The pods of a slice, whatever its conditions say of them: it is the health stream that judges. None where the
/// namespace is no cell's.
fn slice_of(slice: &EndpointSlice) -> Option<Slice> {
    let namespace = slice.metadata.namespace.as_deref()?;
    let cell = namespace.strip_prefix(names::NAMESPACE_PREFIX)?.to_owned();
    let port = |name: &str| {
        let ports = slice.ports.iter().flatten();
        let number = ports.filter(|port| port.name.as_deref() == Some(name)).find_map(|port| port.port)?;
        u16::try_from(number).ok()
    };
    let mut pods = Vec::new();
    if let (Some(traffic), Some(health)) = (port(names::PORT_TRAFFIC), port(names::PORT_HEALTH)) {
        let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        pods.extend(addresses.filter_map(|address| address.parse::<IpAddr>().ok()).map(|address| Pod {
            traffic: SocketAddr::new(address, traffic),
            health: SocketAddr::new(address, health),
        }));
    }
    Some(Slice { cell, name: slice.metadata.name.clone().unwrap_or_default(), pods })
}

/// Doubles from [`RETRY_FIRST`] to [`RETRY_MOST`].
#[derive(Default)]
struct Retry {
    last: Option<Duration>,
}

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let next = self.last.map_or(RETRY_FIRST, |last| (last * 2).min(RETRY_MOST));
        self.last = Some(next);
        Some(next)
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bulkhead_process::Monotonic;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// Follows a server that gives each connection that answer, if any, and then says nothing, until every kind was asked
    /// for three times.
    async fn check(answer: Option<&str>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let url = format!("http://{}", server.local_addr().expect("is bound"));
        let config = kube::Config::new(url.parse().expect("is a URL"));
        let (changes, _builder) = mpsc::channel(1);
        let freshness = Freshness::new(Monotonic::start());
        let source = Box::pin(follow(config, Duration::from_millis(50), changes, freshness));
        let asked = async {
            let mut held = Vec::new();
            while held.len() < 15 {
                let (mut stream, _) = server.accept().await.expect("accepts");
                if let Some(answer) = answer {
                    let mut request = [0; 1024];
                    assert!(stream.read(&mut request).await.expect("reads") > 0);
                    stream.write_all(answer.as_bytes()).await.expect("writes");
                }
                held.push(stream);
            }
        };
        let both = async {
            tokio::select! {
                ended = source => panic!("the source goes on: {ended:?}"),
                () = asked => {}
            }
        };
        timeout(Duration::from_secs(10), both).await.expect("it tries again");
    }

    #[tokio::test]
    async fn a_watch_that_falls_silent_is_given_up_for_another() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let url = format!("http://{}", server.local_addr().expect("is bound"));
        let config = kube::Config::new(url.parse().expect("is a URL"));
        let (changes, mut builder) = mpsc::channel(1);
        let freshness = Freshness::new(Monotonic::start());
        let source = Box::pin(follow(config, Duration::from_millis(50), changes, freshness));
        let watched = async {
            let (mut held, mut watches) = (Vec::new(), BTreeMap::<String, u32>::new());
            while watches.len() < 6 || watches.values().any(|count| *count < 3) {
                let (mut stream, _) = server.accept().await.expect("accepts");
                let mut request = [0; 1024];
                let read = stream.read(&mut request).await.expect("reads");
                let request = String::from_utf8_lossy(&request[..read]);
                let (path, query) = request.split_once('?').expect("has a query");
                if query.contains("watch=true") {
                    *watches.entry(path.to_owned()).or_default() += 1;
                    held.push(stream);
                    continue;
                }
                let list =
                    r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;
                let length = list.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                stream.write_all(format!("{head}{list}").as_bytes()).await.expect("writes");
            }
        };
        let all = async {
            tokio::select! {
                ended = source => panic!("the source goes on: {ended:?}"),
                () = async { while builder.recv().await.is_some() {} } => panic!("the source goes on"),
                () = watched => {}
            }
        };
        timeout(Duration::from_secs(10), all).await.expect("each is watched again");
    }

    #[tokio::test]
    async fn a_server_that_takes_connections_and_says_nothing_is_tried_again() {
        check(None).await;
    }

    #[tokio::test]
    async fn a_server_that_falls_silent_within_an_answer_is_tried_again() {
        check(Some("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")).await;
    }

    #[tokio::test]
    async fn a_server_that_is_not_available_is_tried_again_however_long_it_asks_to_wait() {
        let wait = "HTTP/1.1 503 x\r\nretry-after: 60\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        check(Some(wait)).await;
    }
}
