//! One attempt: a pod of the chosen cell, a connection to it, the request, the head of the answer. Whether there is
//! another is decided elsewhere.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_protocol::{Reason, fields};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use tokio::time::timeout;

use crate::edge::{AttemptError, Connection, Outgoing, UpstreamHead};
use crate::listener::Permit;
use crate::live::CellLive;
use crate::metrics::{CellMetrics, PathMetrics};
use crate::pool::Pool;
use crate::worker::{LocalCell, LocalTable, RuleUse, Worker};
use bulkhead_routing::transaction::Failure;

/// How long a connection to a pod may take: it is in the same cluster, and another pod may answer sooner.
const CONNECT: Duration = Duration::from_secs(1);
/// Bytes of a given-back answer that are read to keep its connection, and for how long.
const DISCARD_BYTES: usize = 64 * 1024;
const DISCARD: Duration = Duration::from_secs(1);

/// One attempt under way: it counts in its cell and pod until it is finished or dropped.
pub(crate) struct Lease {
    cell: Arc<CellLive>,
    pool: Rc<Pool>,
    connection: Option<Connection>,
    clock: Monotonic,
    pub(crate) counts: Rc<CellMetrics>,
    /// What lasts as long as the answer: the listener's count and the rule's.
    holds: Option<(Permit, Option<RuleUse>)>,
    /// Told when the answer breaks off.
    broken: Option<PathMetrics>,
}

impl Lease {
    /// From here on the answer is the client's: what the request holds is held until it ends.
    pub(crate) fn hold(&mut self, holds: (Permit, Option<RuleUse>), metrics: &PathMetrics) {
        self.holds = Some(holds);
        self.broken = Some(metrics.clone());
    }

    /// The answer ended; a connection whose answer was read whole can be used again.
    pub(crate) fn finish(mut self, whole: bool) {
        match self.connection.take() {
            Some(connection) if whole => self.pool.give_back(connection, self.clock.millis()),
            _ => {
                if let Some(metrics) = &self.broken {
                    metrics.broken_answer(&self.cell.name);
                }
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.end();
        self.cell.leave();
    }
}

/// What is sent, the same in every attempt but for the fields of the attempt.
pub(crate) struct Message {
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) headers: HeaderMap,
}

/// An attempt without an answer for the client.
pub(crate) struct Failed {
    /// None where another table came into force before anything was sent, so that the cell has to be chosen anew.
    pub(crate) failure: Option<Failure>,
    /// The body, where nothing of it went out.
    pub(crate) body: Option<Outgoing>,
}

/// The least busy of two pods picked at random among those that speak and say ready. `tried` are left out.
pub(crate) fn pick(cell: &LocalCell, tried: &[Rc<Pool>]) -> Option<Rc<Pool>> {
    let untried = |pool: &&Rc<Pool>| !tried.iter().any(|other| Rc::ptr_eq(pool, other));
    let usable = cell.pods.iter().filter(|pool| pool.pod.is_usable()).filter(untried);
    let candidates: Vec<&Rc<Pool>> = usable.collect();
    if candidates.is_empty() {
        return None;
    }
    let one = candidates[crate::random::below(candidates.len())];
    let other = candidates[crate::random::below(candidates.len())];
    Some(Rc::clone(if other.in_flight() < one.in_flight() { other } else { one }))
}

/// Makes the attempt in a cell that was chosen from that table. The cell has counted it already; the lease takes that
/// over.
pub(crate) async fn attempt(
    worker: &Worker,
    table: &LocalTable,
    cell: &LocalCell,
    pool: &Rc<Pool>,
    message: Message,
    body: Outgoing,
    limit: Duration,
) -> Result<(UpstreamHead, Lease), Failed> {
    let clock = worker.clock();
    pool.begin();
    let mut lease = Lease {
        cell: Arc::clone(&cell.live),
        pool: Rc::clone(pool),
        connection: None,
        clock,
        counts: Rc::clone(&cell.counts),
        holds: None,
        broken: None,
    };
    let until = clock.elapsed() + limit;
    let mut body = body;
    loop {
        let (mut connection, fresh) = match pool.take().await {
            Some(connection) => (connection, false),
            None => match connect(worker, pool, until).await {
                Ok(connection) => (connection, true),
                Err(failure) => return Err(Failed { failure: Some(failure), body: Some(body) }),
            },
        };
        // The cell may have lost its share while the connection was made.
        if !worker.is_newest(table) {
            pool.give_back(connection, clock.millis());
            return Err(Failed { failure: None, body: Some(body) });
        }
        let left = until.saturating_sub(clock.elapsed());
        let sent = connection.send(&message.method, message.target.clone(), message.headers.clone(), body);
        match timeout(left, sent).await {
            Ok(Ok(head)) => {
                // Nobody asked for it, so that there is no telling what the pod takes the connection for.
                if head.upgrade.is_some() && !message.headers.contains_key(header::UPGRADE) {
                    let failure = Some(Failure::Unknown(Reason::UpstreamProtocol));
                    return Err(Failed { failure, body: None });
                }
                lease.connection = Some(connection);
                return judge(head, lease);
            }
            // The pod closed a kept connection before anything was written: another connection, the same attempt.
            Ok(Err(AttemptError::Stale { body: unsent })) if !fresh => body = unsent,
            Ok(Err(AttemptError::Stale { body })) => {
                return Err(Failed {
                    failure: Some(Failure::NotProcessed(Reason::ConnectFailed)),
                    body: Some(body),
                });
            }
            Ok(Err(error @ AttemptError::Reset(_))) => {
                return Err(unknown(cell, Reason::UpstreamReset, &error));
            }
            Ok(Err(error @ AttemptError::Protocol(_))) => {
                return Err(unknown(cell, Reason::UpstreamProtocol, &error));
            }
            Err(_) => return Err(Failed { failure: Some(Failure::Unknown(Reason::Timeout)), body: None }),
        }
    }
}

fn unknown(cell: &LocalCell, reason: Reason, error: &AttemptError) -> Failed {
    tracing::debug!(cell = &*cell.live.name, %error, "an attempt failed");
    Failed { failure: Some(Failure::Unknown(reason)), body: None }
}

async fn connect(worker: &Worker, pool: &Rc<Pool>, until: Duration) -> Result<Connection, Failure> {
    let left = until.saturating_sub(worker.clock().elapsed()).min(CONNECT);
    let opened = Connection::open(worker.connector(), pool.pod.at.traffic, left).await;
    opened.map_err(|error| {
        tracing::debug!(pod = %pool.pod.at.traffic, %error, "no connection");
        if error.kind() == io::ErrorKind::ConnectionRefused {
            worker.tell_refused(pool.pod.at);
        }
        Failure::NotProcessed(Reason::ConnectFailed)
    })
}

/// An answer may say that there is none: the orchestrator gives the transaction back, or is another cell's.
fn judge(mut head: UpstreamHead, lease: Lease) -> Result<(UpstreamHead, Lease), Failed> {
    let reason = head.headers.get(fields::REASON);
    let is_reason = |other: Reason| reason.is_some_and(|reason| reason == other.as_str());
    let failure = if head.headers.get(fields::OUTCOME).is_some_and(|word| word == fields::OUTCOME_RESTART) {
        Failure::given_back(head.status, reason)
    } else if head.status == StatusCode::MISDIRECTED_REQUEST && is_reason(Reason::WrongCell) {
        Failure::NotProcessed(Reason::WrongCell)
    } else {
        return Ok((head, lease));
    };
    head.body.attach(lease);
    let body = head.body;
    tokio::task::spawn_local(timeout(DISCARD, body.discard(DISCARD_BYTES)));
    Err(Failed { failure: Some(failure), body: None })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use arc_swap::ArcSwap;
    use bytes::Bytes;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::live::Registry;
    use crate::objects::Pod;
    use crate::snapshot::Snapshot;
    use crate::worker::Shared;

    #[tokio::test]
    async fn nothing_is_sent_to_a_cell_that_was_chosen_from_a_table_no_longer_in_force() {
        let metrics = PathMetrics::register(&prometheus::Registry::new()).expect("are registered once");
        let shared = Arc::new(Shared {
            current: Arc::new(ArcSwap::from_pointee(Snapshot::default())),
            listeners: Arc::default(),
            metrics: metrics.clone(),
            clock: Monotonic::start(),
            refused: mpsc::channel(1).0,
            draining: AtomicBool::new(false),
        });
        let worker = Worker::new(Arc::clone(&shared));
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let at = socket.local_addr().expect("is bound");
        let pod = Registry::default().pod(Pod { traffic: at, health: at });
        let pool = Rc::new(Pool::new(pod));
        let live = Arc::new(CellLive::new("a"));
        assert!(live.admit(Duration::ZERO, || u32::MAX));
        let cell = LocalCell { live, pods: vec![Rc::clone(&pool)], counts: Rc::new(metrics.local("a")) };
        let table = worker.table();
        shared.current.store(Arc::new(Snapshot::default()));

        let message = Message { method: Method::POST, target: Uri::default(), headers: HeaderMap::new() };
        let body = Outgoing::Whole(Bytes::from_static(b"x"));
        let limit = Duration::from_secs(5);
        let failed = attempt(&worker, &table, &cell, &pool, message, body, limit).await.err();
        let failed = failed.expect("has no answer");
        assert!(failed.failure.is_none() && failed.body.is_some());
        assert_eq!((cell.live.in_flight(), pool.in_flight()), (0, 0));
        let (mut stream, _) = socket.accept().await.expect("was connected to");
        drop((cell, pool));
        let mut sent = Vec::new();
        stream.read_to_end(&mut sent).await.expect("is closed");
        assert!(sent.is_empty(), "{sent:?}");
    }
}
