//! The way out for the cell's own services: a proxy that takes CONNECT, as the variable HTTPS_PROXY says, and asks a router
//! for the tunnel in the cell's name. Where one may lead is the router's to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use bulkhead_process::Connector;
use bulkhead_process::connect::Stream;
use bulkhead_process::tunnel::{self, Answer, Far};
use bulkhead_protocol::{Problem, Reason, fields};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::accept::accept;

/// Tunnels at the same time, those that are still asked for included.
const MOST: usize = 4_096;
/// How long a connection to a router may take, its name included.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a router may take to open a tunnel or refuse it: it may try several addresses.
const ANSWER: Duration = Duration::from_secs(30);

pub(crate) struct Proxy {
    /// `bulkhead-cell` alone.
    fields: HeaderMap,
    routers: Vec<String>,
    next: AtomicUsize,
}

impl Proxy {
    /// # Errors
    /// When no header takes the cell's name.
    pub(crate) fn new(cell: &str, routers: Vec<String>) -> anyhow::Result<Self> {
        let name = HeaderValue::try_from(cell).context("the cell's name is no value of a header field")?;
        let fields = HeaderMap::from_iter([(http::HeaderName::from_static(fields::CELL), name)]);
        Ok(Self { fields, routers, next: AtomicUsize::new(0) })
    }

    /// Serves until it is dropped, which cuts what is open.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let proxy = Arc::new(self);
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                stream = accept(&listener, None) => {
                    if open.len() < MOST {
                        open.spawn(Arc::clone(&proxy).tunnel(stream));
                    } else {
                        tracing::warn!(limit = MOST, "too many tunnels; one is turned away");
                    }
                }
                Some(_) = open.join_next() => {}
            }
        }
    }

    async fn tunnel(self: Arc<Self>, stream: TcpStream) {
        tunnel::serve(stream, |asked| self.open(asked)).await;
    }

    /// How long it may be idle is the router's to say, who closes it.
    async fn open(&self, parts: Parts) -> Result<Far<TokioIo<Upgraded>, ()>, Response<String>> {
        let Some(target) = tunnel::target(&parts) else {
            let detail = "this proxy takes CONNECT host:port alone; give it to clients as HTTPS_PROXY";
            return Err(refusal(Reason::Malformed, detail));
        };
        let stream = self.router().await?;
        match timeout(ANSWER, tunnel::ask(stream, target, self.fields.clone())).await {
            Ok(Ok(Answer::Open(stream))) => Ok(Far { stream, idle: None, held: () }),
            Ok(Ok(Answer::Refused(refusal))) => Err(said(refusal)),
            Ok(Err(error)) => {
                let detail = format!("the router did not answer: {error}");
                Err(refusal(Reason::DestinationUnavailable, &detail))
            }
            Err(_) => Err(refusal(Reason::DestinationUnavailable, "the router did not answer in time")),
        }
    }

    /// A connection to the router whose turn it is, else to the next.
    async fn router(&self) -> Result<Stream, Response<String>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut why = String::new();
        for place in 0..self.routers.len() {
            let router = &self.routers[first.wrapping_add(place) % self.routers.len()];
            match timeout(CONNECT, connect(router)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => why = format!("{router}: {error}"),
                Err(_) => why = format!("{router}: no connection within {CONNECT:?}"),
            }
        }
        let detail = format!("no router was reached: {why}");
        Err(refusal(Reason::DestinationUnavailable, &detail))
    }
}

async fn connect(router: &str) -> std::io::Result<Stream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in lookup_host(router).await? {
        match Connector::plain().connect(address, CONNECT).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A router's refusal, as it goes on to the service: what speaks of the router's connection stays here.
fn said(refusal: Response<String>) -> Response<String> {
    let (parts, body) = refusal.into_parts();
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response
}

fn refusal(reason: Reason, detail: &str) -> Response<String> {
    let problem = Problem::new(reason, detail);
    // A problem is strings and a number, which always have a JSON form.
    let mut response = Response::new(serde_json::to_string(&problem).unwrap_or_default());
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static(fields::PROBLEM_JSON);
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
