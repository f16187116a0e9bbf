//! One connection of the load generator: sends a request, reads the answer, says what became of it. When to send is
//! the schedule's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_process::clock::now_unix_millis;
use bulkhead_process::connect::{Connector, http1};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use serde::Deserialize;

use super::Plan;
use super::tally::{Failure, Live, Outcome};
use crate::workload::{CELL_HEADER, RECEIVED_HEADER};

/// The transaction's id, from a router.
const TRANSACTION: &str = "bulkhead-transaction";
/// The cell that answered, from a router that explains.
const EXPLAINED_CELL: &str = "bulkhead-cell";

pub(super) struct Client {
    plan: Arc<Plan>,
    live: Live,
    connector: Connector,
    /// Index of the target to try first.
    target: usize,
    /// Where the newest connection leads.
    last: Option<SocketAddr>,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Client {
    pub(super) fn new(plan: Arc<Plan>, live: Live, number: u32) -> Self {
        let target = number as usize % plan.targets.len().max(1);
        Self { plan, live, connector: Connector::plain(), target, last: None, connection: None }
    }

    /// Sends the request of that number, which was due at `due` microseconds of `clock`, and records its end.
    pub(super) async fn request(&mut self, number: u64, due: u64, clock: Monotonic) {
        let lateness_micros = clock.micros().saturating_sub(due);
        let sent_unix_ms = now_unix_millis();
        let answered = match tokio::time::timeout(self.plan.timeout, self.exchange(number)).await {
            Ok(answered) => answered,
            Err(_) => Err(failure("timeout", format!("no answer within {:?}", self.plan.timeout))),
        };
        let target = self.last;
        if answered.is_err() {
            self.connection = None;
        }
        let answer = answered.as_ref().ok();
        self.live.record(Outcome {
            number,
            status: answer.map(|answer| answer.status.as_u16()),
            transaction: answer.and_then(|answer| text(answer, TRANSACTION)),
            body: answer.map(|answer| answer.body.clone()).unwrap_or_default(),
            target,
            cell: answer.and_then(cell),
            received_unix_ms: answer.map_or(0, received),
            failure: answered.and_then(|answer| judge(&answer)).err(),
            latency_micros: clock.micros().saturating_sub(due),
            lateness_micros,
            sent_unix_ms,
            answered_unix_ms: now_unix_millis(),
        });
    }

    async fn exchange(&mut self, number: u64) -> Result<Answer, Failure> {
        let plan = Arc::clone(&self.plan);
        let mut response = None;
        // A kept connection may be closed just as the request is sent. hyper hands the request back when none of it
        // went out, so that sending it again elsewhere is no second attempt.
        for _ in 0..3 {
            let connection = self.connected().await?;
            let request = request(&plan, number, connection.address)?;
            match connection.sender.try_send_request(request).await {
                Ok(answer) => {
                    response = Some(answer);
                    break;
                }
                Err(mut error) => {
                    self.connection = None;
                    if error.take_message().is_none() {
                        return Err(failure("reset", chain(error.error())));
                    }
                }
            }
        }
        let Some(response) = response else {
            return Err(failure("connect", "connections close before they take a request".to_owned()));
        };
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| failure("reset", chain(&error)))?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    /// The open connection, or a new one to the first target that accepts.
    async fn connected(&mut self) -> Result<&mut Connection, Failure> {
        let open = match &mut self.connection {
            Some(connection) => connection.sender.ready().await.is_ok(),
            None => false,
        };
        if !open {
            self.connection = None;
            self.last = None;
            let connection = self.connect().await?;
            self.last = Some(connection.address);
            self.live.connected();
            return Ok(self.connection.insert(connection));
        }
        self.connection.as_mut().ok_or_else(|| failure("connect", "no connection".to_owned()))
    }

    async fn connect(&mut self) -> Result<Connection, Failure> {
        let mut last = failure("connect", "no target".to_owned());
        for _ in 0..self.plan.targets.len() {
            let address = self.plan.targets[self.target];
            match self.connector.connect(address, Duration::from_secs(2)).await {
                Ok(stream) => match http1(stream).await {
                    Ok(sender) => return Ok(Connection { sender, address }),
                    Err(error) => last = failure("connect", format!("{address}: {}", chain(&error))),
                },
                Err(error) => last = failure("connect", format!("{address}: {error}")),
            }
            self.target = (self.target + 1) % self.plan.targets.len();
        }
        Err(last)
    }
}

fn request(plan: &Plan, number: u64, address: SocketAddr) -> Result<Request<Full<Bytes>>, Failure> {
    let host = if plan.host.is_empty() { address.to_string() } else { plan.host.clone() };
    let mut builder =
        Request::builder().method(plan.method.clone()).uri(plan.path.as_str()).header("host", host);
    if let Some(name) = &plan.key_header {
        builder = builder.header(name, plan.key(number));
    }
    for (name, value) in &plan.headers {
        builder = builder.header(name, value);
    }
    builder.body(Full::new(plan.body(number))).map_err(|error| failure("plan", error.to_string()))
}

fn judge(answer: &Answer) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Problem {
        reason: String,
    }
    if answer.status.is_success() || answer.status.is_redirection() {
        return Ok(());
    }
    let kind = match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) => format!("{} {}", answer.status.as_u16(), problem.reason),
        Err(_) => answer.status.as_u16().to_string(),
    };
    Err(Failure { kind, detail: String::from_utf8_lossy(&answer.body).trim_end().to_owned() })
}

/// The cell by a header field, else by the field of that name in a JSON body.
fn cell(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        cell: String,
    }
    let named = [EXPLAINED_CELL, CELL_HEADER].iter().find_map(|name| text(answer, name));
    let name = match named {
        Some(name) => name,
        None => serde_json::from_slice::<Body>(&answer.body).ok()?.cell,
    };
    (!name.is_empty()).then_some(name)
}

fn received(answer: &Answer) -> u64 {
    text(answer, RECEIVED_HEADER).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn text(answer: &Answer, field: &str) -> Option<String> {
    Some(answer.headers.get(field)?.to_str().ok()?.to_owned())
}

fn failure(kind: &str, detail: String) -> Failure {
    Failure { kind: kind.to_owned(), detail }
}

/// An error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
