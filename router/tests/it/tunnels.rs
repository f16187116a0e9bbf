//! Tunnels from a service of a cell through its cell-runtime and a router to what the cell may reach.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use bulkhead_cell_runtime::{Bound, CellConfig, Discovery, config};
use bulkhead_crds::template::{Entry, Service};
use bulkhead_process::tunnel::{self, Answer};
use bulkhead_process::{Connector, Shutdown};
use bulkhead_protocol::{Problem, Serving};
use bulkhead_router::{Config, Running, Source, start};
use http::HeaderMap;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::client::{Client, get};
use crate::fake::FakeCell;
use crate::world::{PATIENCE, Setup, address_of};

/// A router with cells a and b, of which only a may reach `echo`, and the cell-runtimes of both.
struct World {
    _folder: TempDir,
    _cells: Vec<FakeCell>,
    _tasks: JoinSet<()>,
    router: Running,
    /// Where services of a and b ask for tunnels.
    proxies: [SocketAddr; 2],
    echo: SocketAddr,
}

impl World {
    async fn start() -> Self {
        let (folder, cells) = Setup::default().lay_out().await;
        let mut tasks = JoinSet::new();
        let echo = echo(&mut tasks).await;
        let destination = format!(
            "apiVersion: bulkhead.dev/v1alpha1
kind: Destination
metadata: {{name: echo}}
spec: {{connect: {{}}, pointOfNoReturn: false, endpoints: ['{echo}'], connectTimeout: 5m}}
"
        );
        fs::write(folder.path().join("destination.yaml"), destination).expect("is written");
        let a = folder.path().join("cell-a.yaml");
        let text = fs::read_to_string(&a).expect("is there");
        fs::write(&a, text.replace("destinations: []", "destinations: [echo]")).expect("is written");

        let mut config = Config::local("main", "http", Source::Folder(folder.path().to_owned()));
        config.connect_address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let router = start(config, Shutdown::new()).await.expect("the router starts");
        address_of(&router, "http").await;
        let at = router.connect_address().expect("takes tunnels").to_string();
        let proxies = [proxy("a", &at, &mut tasks).await, proxy("b", &at, &mut tasks).await];
        Self { _folder: folder, _cells: cells, _tasks: tasks, router, proxies, echo }
    }

    async fn forbidden(&self) -> BTreeMap<String, u64> {
        let admin = Client::connect(self.router.admin_address()).await.send(get("/v1/serving")).await;
        let serving: Serving = serde_json::from_slice(&admin.body).expect("is the state of a router");
        serving.forbidden
    }
}

/// Says back what it hears.
async fn echo(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reads, mut writes) = stream.split();
                tokio::io::copy(&mut reads, &mut writes).await
            });
        }
    });
    address
}

/// The cell-runtime of a cell, as its services see it.
async fn proxy(cell: &str, router: &str, tasks: &mut JoinSet<()>) -> SocketAddr {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let connect = config::Connect { listen: loopback, routers: vec![router.to_owned()] };
    let cell = CellConfig {
        cell: cell.to_owned(),
        services: vec![Service { name: "web".to_owned(), ..Service::default() }],
        entry: Some(Entry { service: "web".to_owned(), ..Entry::default() }),
        connect: Some(connect),
        ..CellConfig::default()
    };
    let bound = Bound::bind(bulkhead_cell_runtime::Config {
        cell,
        pod: "cell-runtime".to_owned(),
        listen: loopback,
        health_listen: None,
        admin_listen: None,
        discovery: Discovery::Fixed { services: BTreeMap::new(), peers: Vec::new() },
        body_limit: config::DEFAULT_BODY_LIMIT,
        drain_timeout: config::DEFAULT_DRAIN_TIMEOUT,
        probe_timeout: config::DEFAULT_PROBE_TIMEOUT,
        registry: prometheus::Registry::new(),
    });
    let bound = bound.await.expect("binds");
    let address = bound.addresses().connect.expect("takes tunnels");
    tasks.spawn(async move { bound.run(Shutdown::new()).await.expect("runs") });
    address
}

/// Asks for a tunnel as a service does, which may say of its cell what it likes.
async fn ask(proxy: SocketAddr, target: &str) -> Result<impl AsyncRead + AsyncWrite + Unpin, Problem> {
    let stream = Connector::plain().connect(proxy, PATIENCE).await.expect("connects");
    let mut headers = HeaderMap::new();
    headers.insert("bulkhead-cell", "a".parse().expect("a value"));
    match tunnel::ask(stream, target, headers).await.expect("is answered") {
        Answer::Open(stream) => Ok(stream),
        Answer::Refused(refusal) => {
            let problem: Problem = serde_json::from_str(refusal.body()).expect("a problem document");
            assert_eq!(refusal.status().as_u16(), problem.status);
            Err(problem)
        }
    }
}

/// Status and reason.
async fn refusal(proxy: SocketAddr, target: &str) -> (u16, String) {
    let problem = ask(proxy, target).await.err().expect("is refused");
    (problem.status, problem.reason)
}

#[tokio::test]
async fn services_reach_what_their_cell_may_and_nothing_else() {
    let world = World::start().await;
    let [a, b] = world.proxies;
    let echo = world.echo.to_string();
    assert_eq!(refusal(b, &echo).await, (403, "DestinationForbidden".to_owned()));
    assert_eq!(refusal(a, "169.254.169.254:80").await, (403, "DestinationForbidden".to_owned()));

    let mut stream = ask(a, &echo).await.expect("a may reach it");
    stream.write_all(b"what time is it?").await.expect("writes");
    let mut heard = [0; 16];
    stream.read_exact(&mut heard).await.expect("reads");
    assert_eq!(&heard, b"what time is it?");

    let counted = [("a/169.254.169.254:80".to_owned(), 1), ("b/echo".to_owned(), 1)];
    assert_eq!(world.forbidden().await, BTreeMap::from(counted));
}

#[tokio::test]
async fn without_a_router_a_service_is_told_so() {
    let mut tasks = JoinSet::new();
    let gone = bulkhead_process::Port::free().expect("one is free");
    let proxy = proxy("a", &gone.address.to_string(), &mut tasks).await;
    let unavailable = (503, "DestinationUnavailable".to_owned());
    assert_eq!(refusal(proxy, "time.example:123").await, unavailable);
}
