//! A cell without Kubernetes: an orchestrator that says what the test wants and does with requests what the test wants.

mod ask;
mod calls;
mod health;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use bulkhead_process::{Monotonic, Port};
use bulkhead_protocol::health::SILENCE;
use bulkhead_protocol::{Reason, fields};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use ask::ask;
pub(crate) use ask::{Ask, Then};
use health::stream_of;

/// Health is served on a thread of its own: beats must not wait behind a test's requests.
static HEALTH: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be made")
});

/// What the cell does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Sends the body back.
    Echo,
    /// Sends that text.
    Say(&'static str),
    /// Sends the body back, and for each second request with status 500.
    FailHalf,
    /// Closes the connection after the request was read, without a byte of an answer.
    Reset,
    /// Gives the transaction back untouched.
    Restart,
    /// Gives it back after a service of the cell may have worked on it.
    FailedWithin,
    /// Gives it back with a head whose body never ends.
    RestartWithoutEnd,
    /// Gives it back with a status and a word of its own.
    GiveBack(u16, &'static str),
    /// Says that it is another cell.
    Misdirected,
    /// Echoes once the cell behaves otherwise.
    Hang,
    /// Echoes, and says that it closes the connection.
    EchoAndClose,
    /// Says that it would have sent 1000 bytes, as to HEAD.
    Lengthy,
    /// Sends the head of an answer of ten bytes and three of these, and closes.
    BreakOff,
    /// Sends three bytes, and behind them a field of its own and one that is none of its business.
    Trailers,
    /// Sends bytes for as long as somebody takes them.
    Endless,
    /// Sends three bytes, and nothing more for as long as somebody listens.
    Quiet,
    /// Refuses calls of gRPC untouched.
    RefuseStreams,
    /// Says on each new connection for calls that it looked at none of them.
    GoAway,
    /// Leaves HTTP and sends back what comes.
    Upgrade,
    /// Has messages sent to a destination, and answers when they came back.
    Ask(Ask),
}

/// A request as the cell saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

struct Inner {
    name: String,
    behaviour: watch::Sender<Behaviour>,
    seen: Mutex<VecDeque<Seen>>,
    hits: AtomicU64,
    connections: AtomicU64,
    sent: AtomicU64,
    /// Calls of gRPC that a connection may carry at a time.
    most_streams: Mutex<u32>,
    says: watch::Sender<(bool, String)>,
    mute: AtomicBool,
    capacity: Mutex<Option<u32>>,
    streams: AtomicU64,
    open_streams: AtomicU64,
}

/// A running fake.
pub(crate) struct FakeCell {
    pub(crate) address: SocketAddr,
    /// For traffic, and the one after, for health. They stay the cell's while it is killed.
    ports: Arc<[Port; 2]>,
    clock: Monotonic,
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
    open: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl FakeCell {
    pub(crate) async fn start(name: &str) -> Self {
        Self::run(name, Port::free_pair().expect("two are free").into()).await
    }

    pub(crate) async fn start_at(name: &str, address: SocketAddr) -> Self {
        let traffic = Port::at(address).expect("the port is free");
        let health = traffic.next().expect("so is the next");
        Self::run(name, [traffic, health].into()).await
    }

    /// Starts another in the place of one that was killed.
    pub(crate) async fn start_again(&mut self) {
        *self = Self::run(self.name(), Arc::clone(&self.ports)).await;
    }

    async fn run(name: &str, ports: Arc<[Port; 2]>) -> Self {
        let [address, health] = [ports[0].address, ports[1].address];
        let traffic = TcpListener::bind(address).await.expect("the port is ours");
        let health = HEALTH.spawn(TcpListener::bind(health)).await.expect("runs").expect("so is the next");
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            behaviour: watch::Sender::new(Behaviour::Echo),
            seen: Mutex::default(),
            hits: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            most_streams: Mutex::new(100),
            says: watch::Sender::new((true, "Ready".to_owned())),
            mute: AtomicBool::new(false),
            capacity: Mutex::new(None),
            streams: AtomicU64::new(0),
            open_streams: AtomicU64::new(0),
        });
        let open = Arc::new(Mutex::new(Vec::new()));
        let tasks = vec![
            tokio::spawn(accept(traffic, Arc::clone(&inner), Arc::clone(&open), false)),
            HEALTH.spawn(accept(health, Arc::clone(&inner), Arc::clone(&open), true)),
        ];
        Self { address, ports, clock: Monotonic::start(), inner, tasks, open }
    }

    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.inner.behaviour.send_replace(behaviour);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.inner.hits.load(Ordering::SeqCst)
    }

    /// Connections for transactions so far.
    pub(crate) fn connections(&self) -> u64 {
        self.inner.connections.load(Ordering::SeqCst)
    }

    /// Bytes that were taken of endless answers.
    pub(crate) fn sent(&self) -> u64 {
        self.inner.sent.load(Ordering::SeqCst)
    }

    /// From the next connection on.
    pub(crate) fn set_most_streams(&self, most: u32) {
        *self.inner.most_streams.lock().expect("no test panics here") = most;
    }

    /// Requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().expect("no test panics here").drain(..).collect()
    }

    pub(crate) fn say(&self, ready: bool, reason: &str) {
        self.inner.says.send_replace((ready, reason.to_owned()));
    }

    /// From the next verdict on, whose message says it too.
    pub(crate) fn set_capacity(&self, capacity: u32) {
        *self.inner.capacity.lock().expect("no test panics here") = Some(capacity);
    }

    /// Keeps every connection open and says nothing more, as a stopped process does.
    pub(crate) fn mute(&self) {
        self.inner.mute.store(true, Ordering::SeqCst);
    }

    /// Health streams opened so far.
    pub(crate) fn streams(&self) -> u64 {
        self.inner.streams.load(Ordering::SeqCst)
    }

    /// That one health stream was opened, and none beyond those that a router gave up since the cell started: it does so
    /// where there is no line for long, as on a machine that stalls.
    pub(crate) fn check_one_stream(&self) {
        let given_up = self.clock.elapsed().div_duration_f64(3 * SILENCE) as u64;
        let opened = self.streams();
        assert!((1..=1 + given_up).contains(&opened), "{opened} streams were opened");
    }

    /// Health streams that are open now.
    pub(crate) fn open_streams(&self) -> u64 {
        self.inner.open_streams.load(Ordering::SeqCst)
    }

    /// Refuses connections for transactions; those that are open and the health stream stay.
    pub(crate) async fn refuse_traffic(&mut self) {
        let accepting = self.tasks.remove(0);
        accepting.abort();
        let _ = accepting.await;
    }

    /// Refuses connections from now on and cuts those that are open, as a killed process does.
    pub(crate) async fn kill(&mut self) {
        end(self.tasks.drain(..).collect()).await;
        // All that there will be.
        let open = self.open.lock().expect("no test panics here").drain(..).collect();
        end(open).await;
    }
}

async fn end(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
}

impl Drop for FakeCell {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.open.lock().expect("no test panics here").iter().for_each(JoinHandle::abort);
    }
}

async fn accept(
    listener: TcpListener,
    inner: Arc<Inner>,
    open: Arc<Mutex<Vec<JoinHandle<()>>>>,
    health: bool,
) {
    while let Ok((stream, _)) = listener.accept().await {
        if !health {
            inner.connections.fetch_add(1, Ordering::SeqCst);
        }
        let task = tokio::spawn(serve(stream, Arc::clone(&inner), health));
        open.lock().expect("no test panics here").push(task);
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn serve(stream: TcpStream, inner: Arc<Inner>, health: bool) {
    if !health && calls::are_calls(&stream).await {
        return calls::serve(stream, inner).await;
    }
    let service = service_fn(move |request| {
        let inner = Arc::clone(&inner);
        async move { if health { Ok(stream_of(&inner)) } else { transaction(&inner, request).await } }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

/// A service that fails makes hyper close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the test wants the connection closed")]
struct Closed;

async fn transaction(inner: &Arc<Inner>, request: hyper::Request<Incoming>) -> Result<Answer, Closed> {
    let number = inner.hits.fetch_add(1, Ordering::SeqCst);
    let behaviour = inner.behaviour.borrow().clone();
    let mut request = request;
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
    let (headers, whole) = (parts.headers.clone(), body.clone());
    inner.seen.lock().expect("no test panics here").push_back(Seen {
        target: parts.uri.to_string(),
        headers: parts.headers,
        body: body.clone(),
    });
    let mut answer = Response::new(Full::new(body).boxed());
    answer.headers_mut().insert("x-cell", inner.name.parse().expect("a legal value"));
    match behaviour {
        Behaviour::Echo => {}
        Behaviour::Say(text) => *answer.body_mut() = Full::new(Bytes::from_static(text.as_bytes())).boxed(),
        Behaviour::FailHalf if number.is_multiple_of(2) => {
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        }
        Behaviour::FailHalf => {}
        Behaviour::EchoAndClose => {
            answer.headers_mut().insert("connection", "close".parse().expect("a legal value"));
        }
        Behaviour::Lengthy => {
            answer.headers_mut().insert("content-length", "1000".parse().expect("a legal value"));
        }
        Behaviour::Endless => {
            let pieces = futures::stream::repeat(Bytes::from_static(&[b'x'; 64 * 1024]));
            let inner = Arc::clone(inner);
            let frames = pieces.map(move |piece| {
                inner.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
                Ok::<_, Infallible>(Frame::data(piece))
            });
            *answer.body_mut() = BodyExt::boxed(StreamBody::new(frames));
        }
        Behaviour::Quiet => {
            let part = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"thr")))]);
            *answer.body_mut() = BodyExt::boxed(StreamBody::new(part.chain(futures::stream::pending())));
        }
        Behaviour::Upgrade => {
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            answer.headers_mut().insert("connection", "upgrade".parse().expect("a legal value"));
            answer.headers_mut().insert("upgrade", "echo".parse().expect("a legal value"));
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
        Behaviour::Hang => {
            let _ = inner.behaviour.subscribe().wait_for(|other| *other != Behaviour::Hang).await;
        }
        // What is said of calls of gRPC.
        Behaviour::RefuseStreams | Behaviour::GoAway => return Err(Closed),
        Behaviour::Reset => return Err(Closed),
        Behaviour::Trailers => {
            let name = "x-sum, bulkhead-outcome";
            answer.headers_mut().insert("trailer", name.parse().expect("a legal value"));
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "3".parse().expect("a legal value"));
            trailers.insert(fields::OUTCOME, fields::OUTCOME_RESTART.parse().expect("legal"));
            let frames = [Frame::data(Bytes::from_static(b"thr")), Frame::trailers(trailers)];
            let frames = futures::stream::iter(frames.map(Ok::<_, Infallible>));
            *answer.body_mut() = BodyExt::boxed(StreamBody::new(frames));
        }
        Behaviour::BreakOff => {
            answer.headers_mut().insert("content-length", "10".parse().expect("a legal value"));
            // hyper closes a connection whose body ends before its length.
            let part = Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"thr")));
            // What waits is sent before the connection is looked at again.
            let then =
                futures::stream::once(tokio::task::yield_now().map(|()| Ok(Frame::data(Bytes::new()))));
            let frames = futures::stream::iter([part]).chain(then);
            *answer.body_mut() = BodyExt::boxed(StreamBody::new(frames));
        }
        Behaviour::Restart => give_back(&mut answer, 503, Reason::ServiceNotReady.as_str()),
        Behaviour::RestartWithoutEnd => {
            give_back(&mut answer, 503, Reason::ServiceNotReady.as_str());
            let endless = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
            *answer.body_mut() = BodyExt::boxed(endless);
        }
        Behaviour::FailedWithin => give_back(&mut answer, 502, Reason::ServiceFailed.as_str()),
        Behaviour::GiveBack(status, word) => give_back(&mut answer, status, word),
        Behaviour::Ask(wanted) => ask(inner, &wanted, &headers, &whole, &mut answer).await?,
        Behaviour::Misdirected => {
            *answer.status_mut() = StatusCode::MISDIRECTED_REQUEST;
            answer.headers_mut().insert(fields::REASON, "WrongCell".parse().expect("legal"));
        }
    }
    Ok(answer)
}

fn give_back<B>(answer: &mut Response<B>, status: u16, word: &str) {
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    answer.headers_mut().insert(fields::OUTCOME, fields::OUTCOME_RESTART.parse().expect("legal"));
    answer.headers_mut().insert(fields::REASON, word.parse().expect("legal"));
}
