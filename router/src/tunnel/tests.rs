//! Tunnels over real connections.

use bulkhead_process::Connector;
use bulkhead_process::tunnel::Answer;
use http::HeaderMap;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::egress::fixture::eventually;

/// A far side that says back what it hears, and a router that leads to it.
struct World {
    tunnels: Tunnels,
    address: SocketAddr,
    far: String,
    drain: Shutdown,
    running: tokio::task::JoinHandle<()>,
    _echo: JoinSet<()>,
}

impl World {
    async fn start(more: serde_json::Value) -> Self {
        let echo = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let far = echo.local_addr().expect("is bound").to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    tokio::io::copy(&mut reads, &mut writes).await
                });
            }
        });
        let mut spec = json!({"connect": {}, "pointOfNoReturn": false, "endpoints": [far, "127.0.0.1:1"], "connectTimeout": "5m"});
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let hidden = json!({"connect": {}, "pointOfNoReturn": false, "endpoints": ["keys.example:443"]});
        let snapshot = fixture::world(&["echo"], &[("echo", spec), ("keys", hidden)]).await;
        let metrics = PathMetrics::register(&prometheus::Registry::new()).expect("are registered once");
        let tunnels = Tunnels {
            current: Arc::new(ArcSwap::from_pointee(snapshot)),
            metrics,
            forbidden: Forbidden::default(),
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let (address, drain) = (listener.local_addr().expect("is bound"), Shutdown::new());
        let running = tokio::spawn(tunnels.clone().run(listener, drain.clone()));
        Self { tunnels, address, far, drain, running, _echo: tasks }
    }

    async fn ask(&self, target: &str) -> Answer {
        let stream =
            Connector::plain().connect(self.address, Duration::from_secs(60)).await.expect("connects");
        let mut headers = HeaderMap::new();
        headers.insert("bulkhead-cell", "a".parse().expect("a value"));
        tunnel::ask(stream, target, headers).await.expect("is answered")
    }

    async fn open(&self) -> impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + use<> {
        match self.ask(&self.far).await {
            Answer::Open(stream) => stream,
            Answer::Refused(refusal) => panic!("{}", refusal.body()),
        }
    }

    async fn refused(&self, target: &str) -> (u16, String) {
        match self.ask(target).await {
            Answer::Open(_) => panic!("{target} is open"),
            Answer::Refused(refusal) => {
                let problem: Problem = serde_json::from_str(refusal.body()).expect("a problem document");
                (refusal.status().as_u16(), problem.reason)
            }
        }
    }

    fn in_flight(&self) -> u32 {
        self.tunnels.current.load().destinations["echo"].in_flight()
    }
}

#[tokio::test]
async fn a_tunnel_carries_bytes_to_what_is_allowed_and_everything_else_is_refused_and_counted() {
    let world = World::start(json!({})).await;
    let mut stream = world.open().await;
    stream.write_all(b"hello").await.expect("writes");
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.expect("reads");
    assert_eq!((&heard, world.in_flight()), (b"hello", 1));
    drop(stream);
    eventually(|| world.in_flight() == 0).await;

    let forbidden = || (403, "DestinationForbidden".to_owned());
    assert_eq!(world.refused("keys.example:443").await, forbidden());
    assert_eq!(world.refused("169.254.169.254:80").await, forbidden());
    let counts = world.tunnels.forbidden.counts();
    assert_eq!(
        counts.into_iter().collect::<Vec<_>>(),
        [("a/169.254.169.254:80".to_owned(), 1), ("a/keys".to_owned(), 1)]
    );
}

#[tokio::test]
async fn what_cannot_be_reached_is_not_available() {
    let world = World::start(json!({})).await;
    assert_eq!(world.refused("127.0.0.1:1").await, (503, "DestinationUnavailable".to_owned()));
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test]
async fn there_are_no_more_tunnels_than_the_destination_allows() {
    let world = World::start(json!({"limits": {"inFlight": 1}})).await;
    let first = world.open().await;
    assert_eq!(world.refused(&world.far).await, (503, "DestinationUnavailable".to_owned()));
    drop(first);
    eventually(|| world.in_flight() == 0).await;
    world.open().await;
}

#[tokio::test]
async fn a_tunnel_that_carries_nothing_is_closed() {
    let world = World::start(json!({"connect": {"idleTimeout": "80ms"}})).await;
    let mut stream = world.open().await;
    assert_eq!(stream.read(&mut [0]).await.expect("ends well"), 0);
    eventually(|| world.in_flight() == 0).await;
}

/// What RFC 9110 asks of the answer: no length and no encoding, and what follows the head is the tunnel's.
#[tokio::test]
async fn what_a_client_sends_before_it_has_heard_goes_through_the_tunnel() {
    let world = World::start(json!({})).await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    let head = format!("CONNECT {0} HTTP/1.1\r\nhost: {0}\r\nbulkhead-cell: a\r\n\r\n", world.far);
    stream.write_all((head + "early").as_bytes()).await.expect("writes");
    stream.shutdown().await.expect("ends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    let (head, echoed) = answer.split_once("\r\n\r\n").expect("has a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
    assert_eq!(echoed, "early");
}

#[tokio::test]
async fn only_connect_is_taken() {
    let world = World::start(json!({})).await;
    let mut stream = TcpStream::connect(world.address).await.expect("connects");
    stream
        .write_all(b"GET http://keys.example/ HTTP/1.1\r\nhost: keys.example\r\n\r\n")
        .await
        .expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("Malformed"), "{answer}");
}

/// Its drain time-out is 0, so that what is open is cut at once.
#[tokio::test]
async fn at_the_end_what_is_open_is_cut() {
    let world = World::start(json!({})).await;
    let mut stream = world.open().await;
    world.drain.trigger();
    assert_eq!(stream.read(&mut [0]).await.unwrap_or_default(), 0);
    world.running.await.expect("ends");
    assert!(TcpStream::connect(world.address).await.is_err());
}
