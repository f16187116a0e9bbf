//! Requests through the routers: one at a time, or as a steady load of which every request is remembered.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use bulkhead_process::Shutdown;
pub use bulkhead_process::clock::now_unix_millis as now_ms;
use bulkhead_samples::load::{self, Live, Outcome as Ended, Plan};
use serde_json::Value;

use crate::eventually::eventually;
use crate::network::Network;
use crate::pods;
use crate::world::{SYSTEM, World};

/// How long one request may take before the test gives up on it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request of a test.
pub struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), headers: Vec::new(), body: String::new() }
    }

    pub fn post(path: &str, json: impl Into<String>) -> Self {
        Self { method: "POST", body: json.into(), ..Self::get(path) }
            .header("content-type", "application/json")
    }

    pub fn put(path: &str, json: impl Into<String>) -> Self {
        Self { method: "PUT", ..Self::post(path, json) }
    }

    pub fn delete(path: &str) -> Self {
        Self { method: "DELETE", ..Self::get(path) }
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The cell that answered, by its own word.
    pub fn cell(&self) -> Option<&str> {
        self.header("x-cell")
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }
}

/// Sends one request on a connection of its own.
///
/// # Errors
/// When there is no whole answer.
pub fn send(to: SocketAddr, request: &Request) -> Result<Answer> {
    let mut stream =
        TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("{to} does not accept"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head =
        format!("{} {} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n", request.method, request.path);
    for (name, value) in &request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !request.body.is_empty() {
        head += &format!("content-length: {}\r\n", request.body.len());
    }
    stream.write_all((head + "\r\n" + &request.body).as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).with_context(|| format!("{to} gave no whole answer"))?;
    parse(&String::from_utf8_lossy(&bytes))
        .with_context(|| format!("{to} answered with something else than HTTP"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    Some(Answer { status, headers, body: body.to_owned() })
}

/// Whether anybody accepts connections there.
///
/// # Errors
/// When nobody does.
pub fn connects(to: SocketAddr) -> Result<()> {
    TcpStream::connect_timeout(&to, Duration::from_secs(1))
        .map(drop)
        .with_context(|| format!("{to} does not accept"))
}

/// A request that a cell answered.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Which request of the load, from 0.
    pub number: u64,
    pub cell: String,
    pub sent_ms: u64,
    pub answered_ms: u64,
}

/// A request that was not answered as it should.
#[derive(Clone, Debug)]
pub struct Failure {
    pub why: String,
    pub sent_ms: u64,
}

impl Failure {
    /// Whether it ended because the router was not there or went away, and not by anybody's answer.
    pub fn of_connection(&self) -> bool {
        self.why.starts_with("reset") || self.why.starts_with("connect")
    }
}

/// All that a load saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub hits: Vec<Hit>,
    pub failed: Vec<Failure>,
}

impl Seen {
    /// Requests that the cell answered and that were sent in this span of time.
    pub fn sent_between(&self, cell: &str, from_ms: u64, to_ms: u64) -> usize {
        self.hits.iter().filter(|hit| hit.cell == cell && (from_ms..to_ms).contains(&hit.sent_ms)).count()
    }
}

/// A steady load over every router, with a key of its own in each request.
pub struct Load {
    seen: Arc<Mutex<Seen>>,
    live: Live,
    stop: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Starts `rate` GETs per second to every router pod.
    ///
    /// # Panics
    /// When there is no router to send to.
    #[expect(clippy::expect_used, reason = "called by tests only, which have no other way to fail")]
    pub fn start(world: &World, rate: u32) -> Self {
        Self::sending(rate, pods::routers(world).expect("routers to send to"), None)
    }

    /// Starts `rate` GETs per second to that one router, whether it lives or not.
    pub fn to(router: SocketAddr, rate: u32) -> Self {
        Self::sending(rate, vec![router], None)
    }

    /// Starts `rate` GETs per second to the routers' Service, from a node, as a load balancer does.
    ///
    /// # Panics
    /// When there is no such Service.
    #[expect(clippy::expect_used, reason = "called by tests only, which have no other way to fail")]
    pub fn through_service(world: &World, rate: u32) -> Self {
        let service = pods::service(world, SYSTEM, "bulkhead-router", 8080).expect("the routers' Service");
        Self::sending(rate, vec![service], Some(Network::of_node(world, 1)))
    }

    /// Starts that plan from this machine.
    pub fn of(plan: Plan) -> Self {
        Self::run(plan, None)
    }

    fn sending(rate: u32, targets: Vec<SocketAddr>, from: Option<Network>) -> Self {
        let plan = Plan {
            targets,
            key_header: Some(http::HeaderName::from_static("x-account")),
            rate,
            connections: 32,
            duration: None,
            ..Plan::default()
        };
        Self::run(plan, from)
    }

    #[expect(clippy::expect_used, reason = "called by tests only, which have no other way to fail")]
    fn run(plan: Plan, from: Option<Network>) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let stop = Shutdown::new();
        let (remember, until) = (Arc::clone(&seen), stop.clone());
        let load = load::Load::new(plan).observed(Arc::new(move |ended| record(&remember, ended)));
        let live = load.live();
        let thread = std::thread::spawn(move || {
            if let Some(network) = from {
                network.enter().expect("the node's network");
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime for the load").block_on(load.run(until));
        });
        Self { seen, live, stop, thread: Some(thread) }
    }

    /// How many connections were made so far, those included that replaced one.
    pub fn connects(&self) -> u64 {
        self.live.tally().connects
    }

    /// Waits until the cell answers.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_for(&self, deadline: Duration, cell: &str) -> Result<()> {
        self.wait_for_since(deadline, cell, 0)
    }

    /// Waits until the cell answers a request that was sent at that time or later.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_for_since(&self, deadline: Duration, cell: &str, since_ms: u64) -> Result<()> {
        eventually(deadline, || {
            let seen = self.lock();
            let hit = seen.hits.iter().rev().find(|hit| hit.cell == cell);
            ensure!(
                hit.is_some_and(|hit| hit.sent_ms >= since_ms),
                "no answer from {cell}; failures: {:?}",
                seen.failed.last()
            );
            Ok(())
        })
    }

    /// Whether a request that was sent at that time or later failed.
    ///
    /// # Errors
    /// When none did.
    pub fn fails_since(&self, since_ms: u64) -> Result<()> {
        let seen = self.lock();
        let last = seen.failed.last().ok_or_else(|| anyhow!("nothing failed yet"))?;
        ensure!(last.sent_ms >= since_ms, "the last failure was of a request of {}", last.sent_ms);
        Ok(())
    }

    /// Whether requests are answered. What fails, and how long the machine itself stands still, is for others to judge.
    ///
    /// # Errors
    /// When none was within the last seconds.
    pub fn flowing(&self) -> Result<()> {
        const SECONDS: u64 = 5;
        let seen = self.lock();
        let last = seen.hits.last().ok_or_else(|| anyhow!("nothing was answered yet"))?;
        ensure!(
            now_ms().saturating_sub(last.sent_ms) < SECONDS * 1_000,
            "no answer for {SECONDS} s; failures: {:?}",
            seen.failed.last()
        );
        Ok(())
    }

    /// Whether the cell answered nothing that was sent within this last span of time, while others did.
    pub fn quiet(&self, cell: &str, span: Duration) -> bool {
        let seen = self.lock();
        let from = now_ms().saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        let recent: Vec<_> = seen.hits.iter().rev().take_while(|hit| hit.sent_ms >= from).collect();
        !recent.is_empty() && recent.iter().all(|hit| hit.cell != cell)
    }

    /// Ends the load and gives all that it saw.
    pub fn stop(mut self) -> Seen {
        self.end();
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

fn record(seen: &Mutex<Seen>, ended: &Ended) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match (&ended.failure, &ended.cell) {
        (Some(failure), _) => seen.failed.push(Failure {
            why: format!("{}: {}", failure.kind, failure.detail),
            sent_ms: ended.sent_unix_ms,
        }),
        (None, Some(cell)) => seen.hits.push(Hit {
            number: ended.number,
            cell: cell.clone(),
            sent_ms: ended.sent_unix_ms,
            answered_ms: ended.answered_unix_ms,
        }),
        (None, None) => {}
    }
}
