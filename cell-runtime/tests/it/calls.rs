//! Calls of gRPC through a cell-runtime to an entry that speaks HTTP/2, and back.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use bulkhead_cell_runtime::Config;
use bulkhead_crds::template::{Entry, EntryProtocol};
use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::harness::{PATIENCE, Pod, Runtime, Stream, ask, config, get, start, start_ready};

/// What the service does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Sends each message back as it comes.
    Echo,
    Refuse,
    Reset,
    /// Says all in its head.
    Deny,
}

/// A service that speaks HTTP/2 and nothing else.
struct Service {
    pod: Pod,
    does: watch::Sender<Does>,
    serving: watch::Sender<bool>,
    seen: Arc<Mutex<Vec<Request<Bytes>>>>,
}

type Seen = Arc<Mutex<Vec<Request<Bytes>>>>;

impl Service {
    async fn start() -> Self {
        let (does, serving, seen) =
            (watch::Sender::new(Does::Echo), watch::Sender::new(true), Seen::default());
        let parts = (does.clone(), serving.clone(), Arc::clone(&seen));
        let pod = Pod::serving(Arc::default(), async move |listener: TcpListener| {
            while let Ok((stream, _)) = listener.accept().await {
                let (does, serving, seen) = parts.clone();
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        let (does, serving) = (*does.borrow(), *serving.borrow());
                        tokio::spawn(serve(request, respond, does, serving, Arc::clone(&seen)));
                    }
                });
            }
        })
        .await;
        Self { pod, does, serving, seen }
    }

    fn config(&self) -> Config {
        let mut config = config(&[&self.pod]);
        config.cell.services[0].readiness_path = "/grpc.health.v1.Health/Check".to_owned();
        config.cell.entry =
            Some(Entry { service: "web".to_owned(), protocol: EntryProtocol::H2c, ..Entry::default() });
        config
    }

    fn seen(&self) -> Vec<Request<Bytes>> {
        self.seen.lock().expect("not poisoned").drain(..).collect()
    }
}

fn head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).expect("legal")
}

fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    fields.iter().map(field).collect()
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    does: Does,
    serving: bool,
    seen: Seen,
) -> Option<()> {
    let (parts, mut body) = request.into_parts();
    if parts.uri.path() == "/grpc.health.v1.Health/Check" {
        let mut stream = respond.send_response(head(), false).ok()?;
        stream.send_data(Bytes::from(vec![0, 0, 0, 0, 2, 8, if serving { 1 } else { 2 }]), false).ok()?;
        return stream.send_trailers(fields(&[("grpc-status", "0")])).ok();
    }
    match does {
        Does::Refuse => respond.send_reset(Reason::REFUSED_STREAM),
        Does::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
        Does::Deny => {
            let mut head = head();
            head.headers_mut().extend(fields(&[("grpc-status", "7"), ("bulkhead-outcome", "restart")]));
            respond.send_response(head, true).ok()?;
        }
        Does::Echo => {
            let mut stream = respond.send_response(head(), false).ok()?;
            let mut whole = BytesMut::new();
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).ok()?;
                whole.extend_from_slice(&data);
                write(&mut stream, data, false).await?;
            }
            seen.lock().expect("not poisoned").push(Request::from_parts(parts, whole.freeze()));
            let ends = fields(&[("grpc-status", "0"), ("bulkhead-outcome", "restart"), ("x-sum", "3")]);
            stream.send_trailers(ends).ok()?;
        }
    }
    Some(())
}

async fn write(stream: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) -> Option<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, ends && data.is_empty()).ok()?;
    }
    Some(())
}

async fn connect(runtime: &Runtime) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(runtime.addresses.traffic).await.expect("connects");
    let (sender, connection) = h2::client::handshake(stream).await.expect("speaks HTTP/2");
    tokio::spawn(connection);
    sender
}

fn call(more: &[(&'static str, &'static str)]) -> Request<()> {
    let uri = "http://payments.example/shop.Carts/Add";
    let mut request = Request::post(uri).body(()).expect("legal");
    let always = [("content-type", "application/grpc"), ("te", "trailers"), ("bulkhead-transaction", "018f")];
    request.headers_mut().extend(fields(&[&always[..], more].concat()));
    request
}

/// Sends all of it, and reads the answer to its end.
async fn send(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
    body: impl Into<Bytes>,
) -> (Response<Bytes>, HeaderMap) {
    let mut sender = sender.clone().ready().await.expect("takes another");
    let (response, mut stream) = sender.send_request(request, false).expect("is sent");
    let body = body.into();
    let exchange = async {
        let sends = async {
            if body.is_empty() {
                drop(stream.send_data(body, true));
            } else {
                write(&mut stream, body, true).await;
            }
        };
        tokio::join!(sends, read(response)).1
    };
    timeout(PATIENCE, exchange).await.expect("is answered in time")
}

async fn read(response: h2::client::ResponseFuture) -> (Response<Bytes>, HeaderMap) {
    let (head, mut body) = response.await.expect("is answered").into_parts();
    let mut whole = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.expect("is whole");
        body.flow_control().release_capacity(data.len()).expect("was taken");
        whole.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.expect("is whole").unwrap_or_default();
    (Response::from_parts(head, whole.freeze()), trailers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_and_its_answer_pass_with_their_trailers() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    let sender = connect(&runtime).await;
    let body: Bytes = (0..3_000_017_u32).map(|place| (place * 31 % 251) as u8).collect();
    let (answer, trailers) =
        send(&sender, call(&[("bulkhead-cell", "a"), ("x-account", "7")]), body.clone()).await;
    assert!(answer.status() == 200 && *answer.body() == body, "came back changed");
    assert_eq!(trailers, fields(&[("grpc-status", "0"), ("x-sum", "3")]));
    let seen = service.seen().pop().expect("was called");
    assert_eq!(seen.uri(), "http://payments.example/shop.Carts/Add");
    for (name, value) in [("te", "trailers"), ("x-account", "7"), ("bulkhead-transaction", "018f")] {
        assert_eq!(seen.headers()[name], value);
    }
    assert!(*seen.body() == body, "arrived changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_both_ways_as_they_come() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    let mut sender = connect(&runtime).await;
    let (response, mut stream) = sender.send_request(call(&[]), false).expect("is sent");
    stream.send_data(Bytes::from_static(b"0"), false).expect("is sent");
    let mut answers = response.await.expect("is answered before the end").into_body();
    for number in 0..10 {
        let echoed =
            timeout(PATIENCE, answers.data()).await.expect("in time").expect("comes").expect("comes");
        assert_eq!(echoed, number.to_string());
        stream.send_data(Bytes::from((number + 1).to_string()), number == 9).expect("is sent");
    }
    assert_eq!(answers.data().await.expect("comes").expect("comes"), "10");
    assert!(answers.data().await.is_none());
    assert_eq!(answers.trailers().await.expect("is whole").expect("are there")["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_service_says_in_its_head_alone_is_passed_on_so() {
    let service = Service::start().await;
    service.does.send_replace(Does::Deny);
    let runtime = start_ready(service.config()).await;
    let mut sender = connect(&runtime).await;
    let (response, mut stream) = sender.send_request(call(&[]), false).expect("is sent");
    stream.send_data(Bytes::from_static(b"x"), true).expect("is sent");
    let response = response.await.expect("is answered");
    assert_eq!(
        (&response.headers()["grpc-status"], response.body().is_end_stream()),
        (&HeaderValue::from_static("7"), true)
    );
    assert!(!response.headers().contains_key("bulkhead-outcome"), "it may not speak for the cell-runtime");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_http_1_1_reach_the_entry_in_http_2() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    assert_eq!(ask(runtime.addresses.traffic, get("/carts?x=1")).await.status, 200);
    let seen = service.seen().pop().expect("was called");
    assert_eq!(
        (seen.uri().to_string(), seen.method().as_str()),
        ("http://payments.example/carts?x=1".to_owned(), "GET")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_refused_untouched_is_given_back_so_and_any_other_not() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    let sender = connect(&runtime).await;
    let check = async |does: Does, status: u16, reason: &str| {
        service.does.send_replace(does);
        let (answer, _) = send(&sender, call(&[]), "x").await;
        let said = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(
            (answer.status().as_u16(), said("bulkhead-outcome"), said("bulkhead-reason")),
            (status, Some("restart"), Some(reason))
        );
    };
    check(Does::Refuse, 503, "ServiceNotReady").await;
    check(Does::Reset, 502, "ServiceFailed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_cell_could_mend_is_told_as_grpc_tells_it() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    let sender = connect(&runtime).await;
    let (answer, _) = send(&sender, call(&[("bulkhead-deadline", "soon")]), "x").await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["grpc-status"]),
        (200, &HeaderValue::from_static("3"))
    );
    // Which the router reads, and asks elsewhere.
    let (answer, _) = send(&sender, call(&[("bulkhead-cell", "b")]), "x").await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["bulkhead-reason"]),
        (421, &HeaderValue::from_static("WrongCell"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_grpc_is_asked_whether_it_serves() {
    let service = Service::start().await;
    let runtime = start_ready(service.config()).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    service.serving.send_replace(false);
    let verdict = stream.until("not ready", |verdict| !verdict.ready).await;
    assert!(verdict.message.contains("answered 503 to /grpc.health.v1.Health/Check"), "{}", verdict.message);
    service.serving.send_replace(true);
    stream.until("ready", |verdict| verdict.ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_a_service_of_grpc_does_not_know_is_no_sign_that_it_is_ready() {
    let service = Service::start().await;
    service.does.send_replace(Does::Deny);
    let mut config = service.config();
    config.cell.services[0].readiness_path = "/readyz".to_owned();
    let runtime = start(config).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    let told = |verdict: &bulkhead_protocol::Verdict| {
        verdict.message.contains("readinessPath /grpc.health.v1.Health/Check")
    };
    let verdict = timeout(Duration::from_secs(15), stream.until("why", told)).await.expect("is told in time");
    assert!(!verdict.ready);
}
