//! A client that keeps its connection, and answers with what it saw; and bytes sent as they are, for what no client
//! would send.

use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_process::Connector;
use bulkhead_process::connect::{Stream, http1};
use bulkhead_protocol::Problem;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::PATIENCE;

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The cell that answered, if one did.
    pub(crate) fn cell(&self) -> &str {
        self.header("x-cell")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Status, and the reason of the problem document.
    pub(crate) fn problem(&self) -> (u16, String) {
        let problem = serde_json::from_slice::<Problem>(&self.body);
        assert!(problem.is_ok(), "no problem document: {} {:?}", self.status, self.body);
        let problem = problem.expect("was just looked at");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem.status, self.status.as_u16());
        (problem.status, problem.reason)
    }
}

/// One connection.
pub(crate) struct Client {
    sender: SendRequest<Body>,
}

pub(crate) fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed()
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).header("host", "test").body(whole("")).expect("a legal request")
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Body> {
    Request::post(path).header("host", "test").body(whole(body)).expect("a legal request")
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(Connector::plain().connect(address, Duration::from_secs(5)).await.expect("connects")).await
    }

    /// Over a connection that was made.
    pub(crate) async fn over(stream: Stream) -> Self {
        Self { sender: http1(stream).await.expect("speaks HTTP") }
    }

    pub(crate) async fn try_send(&mut self, request: Request<Body>) -> hyper::Result<Answer> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> Answer {
        let answered = tokio::time::timeout(PATIENCE, self.try_send(request)).await;
        answered.expect("is answered in time").expect("is answered")
    }
}

/// Sends bytes and reads to the end of the connection.
pub(crate) async fn raw(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(text.as_bytes()).await.expect("writes");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    read.expect("the connection is closed in time").expect("reads");
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the head comes"));
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// That the text is one whole answer with a problem document of that reason.
pub(crate) fn check_refused(answer: &str, status: u16, reason: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("has a head");
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for field in ["content-type: application/problem+json", "connection: close"] {
        assert!(head.lines().any(|line| line == field), "{field} is missing: {answer}");
    }
    assert!(head.lines().any(|line| line == format!("content-length: {}", body.len())), "{answer}");
    let problem: Problem = serde_json::from_str(body).expect("is a problem document");
    assert_eq!((problem.status, &*problem.reason), (status, reason));
}
