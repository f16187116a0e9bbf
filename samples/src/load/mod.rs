//! The load generator: an open loop over keep-alive HTTP/1.1 connections. The schedule is kept whatever becomes of the
//! requests, and latency counts from the time at which a request was due, so that a stall is seen in full.

mod args;
mod client;
pub mod histogram;
pub mod report;
pub mod tally;
mod timer;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bulkhead_process::clock::now_unix_millis;
use bulkhead_process::{Monotonic, Shutdown};
use bytes::Bytes;
use tokio::task::JoinSet;

pub use args::{LoadArgs, parse_duration, parse_target};
pub use report::Report;
pub use tally::{Live, Observer, Outcome, Tally};

/// What to send, where, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections are spread over these; one that refuses is passed over for the next.
    pub targets: Vec<SocketAddr>,
    pub method: http::Method,
    pub path: String,
    /// Empty: the target's address.
    pub host: String,
    /// Sent with every request.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// The header that takes `PREFIX-n`, where n counts requests modulo `keys`; `u64::MAX` keys are one for each.
    pub key_header: Option<http::HeaderName>,
    pub keys: u64,
    /// What keys begin with.
    pub key_prefix: String,
    pub body: Body,
    /// Requests per second.
    pub rate: u32,
    pub connections: u32,
    /// Without one, until stopped.
    pub duration: Option<Duration>,
    /// From the first try to connect to the last byte of the answer.
    pub timeout: Duration,
}

/// What requests carry.
#[derive(Clone)]
pub enum Body {
    Same(Bytes),
    /// Made from the request's key.
    Of(Arc<dyn Fn(&str) -> Bytes + Send + Sync>),
}

impl Default for Body {
    fn default() -> Self {
        Self::Same(Bytes::new())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Of(_) => f.write_str("made from the key"),
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            method: http::Method::GET,
            path: "/".to_owned(),
            host: String::new(),
            headers: Vec::new(),
            key_header: None,
            keys: 10_000,
            key_prefix: "key".to_owned(),
            body: Body::default(),
            rate: 100,
            connections: 16,
            duration: Some(Duration::from_secs(10)),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Plan {
    /// Requests that are due in all; `u64::MAX` without a duration.
    pub fn total(&self) -> u64 {
        self.duration.map_or(u64::MAX, |duration| {
            u64::try_from(duration.as_micros() * u128::from(self.rate) / 1_000_000).unwrap_or(u64::MAX)
        })
    }

    /// The key of the request of that number.
    pub fn key(&self, number: u64) -> String {
        format!("{}-{}", self.key_prefix, number % self.keys.max(1))
    }

    fn body(&self, number: u64) -> Bytes {
        match &self.body {
            Body::Same(bytes) => bytes.clone(),
            Body::Of(make) => make(&self.key(number)),
        }
    }

    /// When the request of that number is due, in microseconds from the start.
    fn due_micros(&self, number: u64) -> u64 {
        let micros = u128::from(number) * 1_000_000 / u128::from(self.rate.max(1));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }
}

/// Runs the plan to its end, or until `stop`.
pub async fn run(plan: Plan, stop: Shutdown) -> Report {
    Load::new(plan).run(stop).await
}

/// A plan with numbers that can be read while it runs.
pub struct Load {
    plan: Arc<Plan>,
    live: Live,
}

impl Load {
    pub fn new(plan: Plan) -> Self {
        Self { plan: Arc::new(plan), live: Live::default() }
    }

    /// Has every request's end told to `observer` as well.
    #[must_use]
    pub fn observed(mut self, observer: Observer) -> Self {
        self.live.observer = Some(observer);
        self
    }

    /// The numbers, to be read at any time from anywhere.
    pub fn live(&self) -> Live {
        self.live.clone()
    }

    /// Runs the plan to its end, or until `stop`; what is under way then is still waited for.
    pub async fn run(self, stop: Shutdown) -> Report {
        let started_unix_ms = now_unix_millis();
        let schedule = Arc::new(Schedule {
            plan: Arc::clone(&self.plan),
            clock: Monotonic::start(),
            next: AtomicU64::new(0),
            stop,
        });
        let mut workers = JoinSet::new();
        for number in 0..self.plan.connections {
            let connection = client::Client::new(Arc::clone(&self.plan), self.live.clone(), number);
            workers.spawn(work(Arc::clone(&schedule), connection));
        }
        while let Some(ended) = workers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a connection of the load generator broke");
            }
        }
        Report::new(&self.plan, started_unix_ms, schedule.clock.elapsed(), &self.live.tally())
    }
}

/// Hands out request numbers. A worker that is free takes the lowest that nobody has.
struct Schedule {
    plan: Arc<Plan>,
    clock: Monotonic,
    next: AtomicU64,
    stop: Shutdown,
}

async fn work(schedule: Arc<Schedule>, mut client: client::Client) {
    let stopped = schedule.stop.requested();
    let timer = timer::Timer::new().ok();
    tokio::pin!(stopped);
    loop {
        let number = schedule.next.fetch_add(1, Ordering::Relaxed);
        if number >= schedule.plan.total() || schedule.stop.is_requested() {
            return;
        }
        let due = schedule.plan.due_micros(number);
        let wait = due.saturating_sub(schedule.clock.micros());
        if wait > 0 {
            tokio::select! {
                () = sleep(timer.as_ref(), Duration::from_micros(wait)) => {}
                () = &mut stopped => return,
            }
        }
        client.request(number, due, schedule.clock).await;
    }
}

async fn sleep(timer: Option<&timer::Timer>, wait: Duration) {
    if let Some(timer) = timer
        && timer.sleep(wait).await.is_ok()
    {
        return;
    }
    tokio::time::sleep(wait).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bulkhead_process::Port;
    use tokio::net::TcpListener;

    use super::*;
    use crate::workload::{Config, Workload};

    async fn workload(cell: &str) -> (SocketAddr, Workload, Shutdown) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let workload = Workload::new(Config { cell: cell.to_owned(), ..Config::default() });
        let shutdown = Shutdown::new();
        tokio::spawn(workload.clone().serve(listener, shutdown.clone()));
        (address, workload, shutdown)
    }

    fn plan(targets: Vec<SocketAddr>) -> Plan {
        Plan {
            targets,
            rate: 400,
            connections: 4,
            duration: Some(Duration::from_millis(500)),
            ..Plan::default()
        }
    }

    #[tokio::test]
    async fn every_request_of_the_plan_is_sent_and_counted_by_cell() {
        let (a, ..) = workload("a").await;
        let (b, ..) = workload("b").await;
        let report = run(plan(vec![a, b]), Shutdown::new()).await;
        assert_eq!((report.sent, report.ok, report.failed), (200, 200, 0), "{report}");
        let answers: u64 = report.cells.values().map(|cell| cell.ok).sum();
        assert_eq!((report.cells.len(), answers), (2, 200), "{report}");
    }

    #[tokio::test]
    async fn failures_are_named_and_a_dead_target_is_passed_over() {
        let (living, workload, _) = workload("a").await;
        let dead = Port::free().expect("one is free");
        let report = run(plan(vec![dead.address, living]), Shutdown::new()).await;
        assert_eq!((report.ok, report.failed), (200, 0), "{report}");

        workload.controls().set_fail_status(503);
        let report = run(plan(vec![living]), Shutdown::new()).await;
        assert_eq!(report.failures.get("503"), Some(&200), "{report}");
        let report = run(plan(vec![dead.address]), Shutdown::new()).await;
        assert_eq!(report.failures.get("connect"), Some(&200), "{report}");
    }

    #[tokio::test]
    async fn each_request_has_its_own_key_and_the_body_made_of_it() {
        let (address, ..) = workload("a").await;
        let ended = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ended);
        let load = Load::new(Plan {
            method: http::Method::POST,
            path: "/echo".to_owned(),
            key_header: Some(http::HeaderName::from_static("x-id")),
            keys: u64::MAX,
            key_prefix: "run1".to_owned(),
            body: Body::Of(Arc::new(|key| format!("{key}!").into())),
            ..plan(vec![address])
        });
        let observer = move |outcome: &Outcome| seen.lock().expect("is whole").push(outcome.clone());
        let report = load.observed(Arc::new(observer)).run(Shutdown::new()).await;
        assert_eq!(report.ok, 200, "{report}");
        let mut ended = ended.lock().expect("is whole").clone();
        ended.sort_by_key(|outcome| outcome.number);
        let answers: Vec<_> = ended.iter().map(|outcome| outcome.body.clone()).collect();
        let wanted: Vec<_> = (0..200).map(|number| Bytes::from(format!("run1-{number}!"))).collect();
        assert_eq!(answers, wanted);
        assert!(ended.iter().all(|outcome| outcome.status == Some(200)));
    }

    #[tokio::test]
    async fn a_slow_server_shows_in_full_because_the_schedule_is_kept() {
        let (address, workload, _) = workload("a").await;
        workload.controls().set_delay(Duration::from_millis(20));
        // One connection does 50 a second at best; at 100 a second the last is due long before it is sent.
        let plan = Plan { rate: 100, connections: 1, ..plan(vec![address]) };
        let report = run(plan, Shutdown::new()).await;
        assert_eq!(report.ok, 50, "{report}");
        assert!(report.latency_ms.max >= 400.0, "{report}");
    }

    #[tokio::test]
    async fn a_stop_ends_a_plan_without_end_and_the_numbers_are_live() {
        let (address, ..) = workload("a").await;
        let load = Load::new(Plan { duration: None, ..plan(vec![address]) });
        let (live, stop) = (load.live(), Shutdown::new());
        let running = tokio::spawn(load.run(stop.clone()));
        let before = live.tally();
        while live.tally().since(&before).ok < 10 {
            tokio::task::yield_now().await;
        }
        stop.trigger();
        let report = running.await.expect("ends");
        assert!(report.ok >= 10 && report.failed == 0, "{report}");
    }
}
