//! One attempt: a pod of the chosen cell, a connection to it, the request, the head of the answer. Whether there is
//! another is decided elsewhere.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_protocol::{Reason, fields};
use http::StatusCode;
use tokio::time::timeout;

use crate::edge::{AttemptError, Connection, Message, Outgoing, UpstreamHead};
use crate::late;
use crate::link::Link;
use crate::listener::Room;
use crate::live::CellLive;
use crate::message::Holds;
use crate::metrics::{CellMetrics, PathMetrics};
use crate::pool::Pool;
use crate::timers::{ENDLESS, Sleep};
use crate::worker::{LocalCell, LocalTable, Worker};
use bulkhead_routing::transaction::Failure;

/// Bytes of a given-back answer that are read to keep its connection, and for how long.
const DISCARD_BYTES: usize = 64 * 1024;
const DISCARD: Duration = Duration::from_secs(1);
/// Between two looks whether what is asked back can go on elsewhere.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// One attempt under way: it counts in its cell and pod until it is finished or dropped.
pub(crate) struct Lease {
    cell: Arc<CellLive>,
    pool: Rc<Pool>,
    connection: Option<Connection>,
    clock: Monotonic,
    pub(crate) counts: Rc<CellMetrics>,
    /// The memory of what is on its way to the pod, and what else lasts as long as the answer.
    room: Rc<Room>,
    passed_on: Option<Box<PassedOn>>,
    /// Drains of the cell that were over when it began.
    drains_over: u32,
    /// Whether it may be ended before it is passed on.
    may_be_cut: bool,
}

/// What goes with an answer that is the client's already.
struct PassedOn {
    _holds: Holds,
    /// Told when it breaks off.
    metrics: PathMetrics,
    /// Never over; by it [`crate::timers::Timers::stir`] wakes whoever waits for more.
    waits: Sleep,
}

impl Lease {
    /// From here on the answer is the client's: what the request holds is held until it ends.
    pub(crate) fn hold(&mut self, holds: Holds, worker: &Worker) {
        let (metrics, waits) = (worker.metrics().clone(), worker.timers().sleep(ENDLESS));
        self.passed_on = Some(Box::new(PassedOn { _holds: holds, metrics, waits }));
    }

    /// Whether its cell is drained and the time to end is over.
    fn is_overdue(&self) -> bool {
        let ends = self.may_be_cut || self.passed_on.is_some();
        ends && self.cell.drains_over() != self.drains_over
    }

    /// Whether it is to end now since its cell is drained, and the time for that is over. Whoever asks ends it, and waits
    /// for a deadline too.
    pub(crate) fn is_cut(&self) -> bool {
        let is_overdue = self.is_overdue();
        if is_overdue {
            self.counts.drain_cuts.inc();
        }
        is_overdue
    }

    /// Comes when what is passed on is to end so.
    pub(crate) fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_cut() {
            return Poll::Ready(());
        }
        if let Some(passed_on) = &mut self.passed_on {
            let _ = Pin::new(&mut passed_on.waits).poll(context);
        }
        Poll::Pending
    }

    /// The answer ended; a connection whose answer was read whole can be used again.
    pub(crate) fn finish(mut self, whole: bool) {
        if whole {
            self.release();
        } else if let Some(passed_on) = &self.passed_on {
            passed_on.metrics.broken_answer(&self.cell.name);
        }
    }

    /// The answer was read whole, and the cell is not done with the transaction: the connection can be used again, and
    /// the transaction still counts in the cell.
    pub(crate) fn release(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.give_back(connection, self.clock.millis());
        }
    }

    /// Bytes that are held for the transaction.
    pub(crate) fn memory(&self) -> u64 {
        self.room.held()
    }

    pub(crate) fn cell(&self) -> &Arc<CellLive> {
        &self.cell
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.end();
        self.cell.leave();
    }
}

/// An attempt without an answer for the client.
pub(crate) struct Failed {
    /// None where another table came into force before anything was sent, so that the cell has to be chosen anew.
    pub(crate) failure: Option<Failure>,
    /// The body, where nothing of it went out.
    pub(crate) body: Option<Outgoing>,
}

/// The least busy of two pods picked at random among those that speak and say ready, and can read that context if one is
/// given. `tried` are left out.
pub(crate) fn pick(cell: &LocalCell, tried: &[Rc<Pool>], context: Option<&str>) -> Option<Rc<Pool>> {
    let untried = |pool: &&Rc<Pool>| !tried.iter().any(|other| Rc::ptr_eq(pool, other));
    let reads = |pool: &&Rc<Pool>| context.is_none_or(|version| pool.pod.reads(version));
    let usable = || cell.pods.iter().filter(|pool| pool.pod.is_usable()).filter(untried).filter(reads);
    let count = usable().count();
    if count < 2 {
        return usable().next().cloned();
    }
    let drawn = || usable().nth(crate::random::below(count));
    // Health is another thread's, so that there may be fewer by now.
    let (Some(one), Some(other)) = (drawn(), drawn()) else { return usable().next().cloned() };
    Some(Rc::clone(if other.in_flight() < one.in_flight() { other } else { one }))
}

/// What a pod said.
pub(crate) enum Said {
    /// Something for the client.
    Answer(UpstreamHead, Lease),
    /// Something for a destination.
    Egress(UpstreamHead, Lease),
}

/// Under which conditions an attempt is made.
pub(crate) struct Terms<'a> {
    /// The table that the cell was chosen from, where nothing may be sent once another is in force.
    pub(crate) chosen_from: Option<&'a LocalTable>,
    /// How long it may take.
    pub(crate) limit: Duration,
    /// Whether it may be given up when its cell is asked to give it back. Asked then.
    pub(crate) may_leave: &'a dyn Fn(Reason) -> bool,
    /// Whether it is ended when its cell is drained and the time for that is over.
    pub(crate) may_be_cut: bool,
    pub(crate) room: &'a Rc<Room>,
}

/// Makes the attempt. The cell has counted it already; the lease takes that over.
pub(crate) async fn attempt(
    worker: &Rc<Worker>,
    cell: &LocalCell,
    pool: &Rc<Pool>,
    message: &Message,
    body: Outgoing,
    terms: Terms<'_>,
) -> Result<Said, Failed> {
    let clock = worker.clock();
    pool.begin();
    let mut lease = Lease {
        cell: Arc::clone(&cell.live),
        pool: Rc::clone(pool),
        connection: None,
        clock,
        counts: Rc::clone(&cell.counts),
        room: Rc::clone(terms.room),
        passed_on: None,
        drains_over: cell.live.drains_over(),
        may_be_cut: terms.may_be_cut,
    };
    let until = clock.elapsed() + terms.limit;
    let mut body = body;
    loop {
        let (link, fresh) = match Link::take(worker, pool, message, until).await {
            Ok(taken) => taken,
            Err(failure) => return Err(Failed { failure: Some(failure), body: Some(body) }),
        };
        // The cell may have lost its share while the connection was made.
        if terms.chosen_from.is_some_and(|table| !worker.is_newest(table)) {
            link.give_back(pool, clock.millis());
            return Err(Failed { failure: None, body: Some(body) });
        }
        if terms.chosen_from.is_some() {
            // The newest table sends here, whatever one before it asked back.
            pool.set_recalled(None);
        }
        let left = until.saturating_sub(clock.elapsed());
        let (mut sent, connection) = link.send(message, body);
        lease.connection = connection;
        let given_up = tokio::select! {
            biased;
            heard = &mut sent => Ok(heard),
            reason = asked_back(worker, &lease, terms.may_leave) => Err(reason),
            () = worker.timers().sleep(left) => Err(Reason::Timeout),
        };
        let heard = match given_up {
            Ok(heard) => heard,
            Err(reason) if lease.is_cut() => {
                return Err(Failed { failure: Some(Failure::Unknown(reason)), body: None });
            }
            Err(reason) => {
                // What its pod may still say is waited for elsewhere, and refused.
                late::refuse(worker, sent, lease);
                return Err(Failed { failure: Some(Failure::Unknown(reason)), body: None });
            }
        };
        match heard {
            // Nobody asked for it, so that there is no telling what the pod takes the connection for.
            Ok(head) if head.upgrade.is_some() && !message.asks_upgrade => {
                let failure = Some(Failure::Unknown(Reason::UpstreamProtocol));
                return Err(Failed { failure, body: None });
            }
            Ok(head) => return judge(head, lease),
            // The pod closed a kept connection before anything was written: another connection, the same attempt.
            Err(AttemptError::Stale { body: unsent }) if !fresh => body = unsent,
            Err(AttemptError::Stale { body }) => {
                return Err(Failed {
                    failure: Some(Failure::NotProcessed(Reason::ConnectFailed)),
                    body: Some(body),
                });
            }
            Err(AttemptError::Refused(reason)) => {
                return Err(Failed { failure: Some(Failure::NotProcessed(reason)), body: None });
            }
            Err(error @ AttemptError::Reset(_)) => return Err(unknown(cell, Reason::UpstreamReset, &error)),
            Err(error @ AttemptError::Protocol(_)) => {
                return Err(unknown(cell, Reason::UpstreamProtocol, &error));
            }
        }
    }
}

fn unknown(cell: &LocalCell, reason: Reason, error: &AttemptError) -> Failed {
    tracing::debug!(cell = &*cell.live.name, %error, "an attempt failed");
    Failed { failure: Some(Failure::Unknown(reason)), body: None }
}

/// Comes back when the attempt is asked back and may be given up, or has to be. Whether it may can change: another cell
/// comes in.
async fn asked_back(worker: &Worker, lease: &Lease, may_leave: &dyn Fn(Reason) -> bool) -> Reason {
    let asked = || match lease.is_overdue() {
        true => Some(Reason::CellDisabled),
        false => lease.pool.recalled(),
    };
    loop {
        let reason = poll_fn(|_| asked().map_or(Poll::Pending, Poll::Ready)).await;
        if lease.is_overdue() || may_leave(reason) {
            return reason;
        }
        worker.timers().sleep(ASK_AGAIN).await;
    }
}

/// An answer may say that there is none: the orchestrator gives the transaction back, or is another cell's.
fn judge(head: UpstreamHead, lease: Lease) -> Result<Said, Failed> {
    let failure = match Kind::of(&head) {
        Kind::Answer => return Ok(Said::Answer(head, lease)),
        Kind::Egress => return Ok(Said::Egress(head, lease)),
        Kind::Restart => Failure::given_back(head.status, head.fields.get(fields::REASON)),
        Kind::WrongCell => Failure::NotProcessed(Reason::WrongCell),
    };
    discard(head, lease);
    Err(Failed { failure: Some(failure), body: None })
}

/// What an answer of a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Answer,
    Egress,
    Restart,
    WrongCell,
}

impl Kind {
    pub(crate) fn of(head: &UpstreamHead) -> Self {
        let outcome = head.fields.get(fields::OUTCOME);
        let is_outcome = |word: &str| outcome == Some(word.as_bytes());
        let misdirected = head.status == StatusCode::MISDIRECTED_REQUEST
            && head.fields.get(fields::REASON) == Some(Reason::WrongCell.as_str().as_bytes());
        match () {
            () if is_outcome(fields::OUTCOME_RESTART) => Self::Restart,
            () if is_outcome(fields::OUTCOME_EGRESS) => Self::Egress,
            () if misdirected => Self::WrongCell,
            () => Self::Answer,
        }
    }

    /// As a label of metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Egress => "egress",
            Self::Restart | Self::WrongCell => "restart",
        }
    }
}

/// Reads what nobody wants, so that its connection can be used again.
pub(crate) fn discard(mut head: UpstreamHead, lease: Lease) {
    head.body.attach(lease);
    let body = head.body;
    tokio::task::spawn_local(timeout(DISCARD, body.discard(DISCARD_BYTES)));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use arc_swap::ArcSwap;
    use bulkhead_crds::router::Limits;
    use bulkhead_ledger::{Ledger, Options, SystemClock};
    use bytes::Bytes;
    use http::Method;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::listener::Settings;
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
            under_way: Arc::default(),
            forbidden: crate::forbidden::Forbidden::default(),
            drains_over: Arc::default(),
            #[cfg(feature = "failpoints")]
            before_send: crate::config::BeforeSend::default(),
            ledger: Ledger::volatile(&Options::new(""), SystemClock::start()).expect("is made"),
        });
        let worker = Rc::new(Worker::new(Arc::clone(&shared)));
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let at = socket.local_addr().expect("is bound");
        let pod = Registry::default().pod(Pod { traffic: at, health: at });
        let pool = Rc::new(Pool::new(pod));
        let live = Arc::new(CellLive::new("a"));
        assert!(live.admit(Duration::ZERO, || u32::MAX));
        let cell = LocalCell { live, pods: vec![Rc::clone(&pool)], counts: Rc::new(metrics.local("a")) };
        let table = worker.table();
        shared.current.store(Arc::new(Snapshot::default()));

        let message = Message::new(&Method::POST, "/");
        let body = Outgoing::Whole(Bytes::from_static(b"x"));
        let room = Room::none(&shared.listeners, &Settings::new(false, None, &Limits::default()));
        let limit = Duration::from_secs(5);
        let terms =
            Terms { chosen_from: Some(&table), limit, may_leave: &|_| false, may_be_cut: true, room: &room };
        let failed = attempt(&worker, &cell, &pool, &message, body, terms).await.err();
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
