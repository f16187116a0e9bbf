//! What each step of a transaction's course does in a router: attempts over the cells' connections, egress over those to
//! destinations, intents in the ledger.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_http1::Fields;
use bulkhead_ledger::{Intent, Outcome};
use bulkhead_protocol::Reason;
use bulkhead_protocol::egress::{self as wire, ContextHead, Continue, Egress};
use bulkhead_routing::Refusal;
use bulkhead_routing::table::DestinationKind;
use bulkhead_routing::transaction::{Asked, Back, Delivered, Failure, Hands, Reply, Sent, Stage};
use bytes::{Bytes, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode};
use tokio::time::timeout;

use crate::attempt::{Failed, Lease, Said, Terms, attempt, pick};
use crate::edge::{Collected, Message, Outgoing, UpstreamHead};
use crate::egress::fields::to_destination;
use crate::egress::path::within;
use crate::egress::{self, DestinationLive, Returned};
use crate::held::{self, Ready, Wanted};
use crate::listener::Counted;
use crate::live::CellLive;
use crate::transaction::{At, Out, Place, Recorded, Transaction};
use crate::worker::{LocalCell, LocalTable};

/// An egress as a cell handed it over.
pub(crate) struct Handed {
    /// Who asked.
    at: At,
    live: Arc<CellLive>,
    /// By which the transaction counts there until it goes on.
    lease: RefCell<Option<Lease>>,
    context: Option<ContextHead>,
    context_bytes: Bytes,
    message: egress::Message,
    destination: Result<Arc<DestinationLive>, Reason>,
    _memory: Counted,
}

/// What a destination answered, as it is held.
pub(crate) struct Brought {
    pub(crate) returned: Returned,
    _memory: Counted,
}

impl Handed {
    fn version(&self) -> Option<&str> {
        self.context.as_ref().map(|context| context.version.as_str())
    }
}

type Replied = Reply<Ready, Box<Handed>>;

impl Hands for Transaction {
    type Answer = Ready;
    type Message = Box<Handed>;
    type Connection = egress::Ready;
    type Returned = Brought;

    async fn attempt(&mut self) -> Result<Replied, Refusal> {
        let table = self.worker.table();
        let (rule, index) = self.choose(&table)?;
        let Some(place) = self.enter(&table, rule, index, None) else { return Ok(Reply::Again) };
        let limit = self.limit(&rule.restart, Stage::Restartable);
        let Some(cell) = self.worker.cell(&table, index) else { return Ok(Reply::Again) };
        let message = self.message(cell, limit);
        let body = self.payload.take();
        let now = self.worker.clock().elapsed();
        let until = now + limit;
        self.is_given(until);
        self.witness.begins(now);
        let may_leave = |reason| self.may_leave(reason, Stage::Restartable);
        let (chosen_from, may_leave, room) = (Some(&*table), &may_leave, &self.room);
        let terms = Terms { chosen_from, limit, may_leave, may_be_cut: true, room };
        match attempt(&self.worker, cell, &place.pool, &message, body, terms).await {
            Ok(said) => Ok(self.heard(said, until).await),
            Err(Failed { failure, body }) => {
                self.payload.give_back(body);
                Ok(self.without_answer(failure))
            }
        }
    }

    async fn go_on(&mut self, back: &Back<Box<Handed>, Brought>, stage: Stage) -> Result<Replied, Refusal> {
        self.out = None;
        let number = back.asked.number;
        if stage == Stage::Committed && number > self.furthest {
            // Whoever failed before may well finish it. Only progress is forgiven for, so that it ends.
            self.furthest = number;
            self.tried.forgive();
        }
        let table = self.worker.table();
        let Some(at) = self.whereto(&table, back, stage)? else { return Ok(Reply::Again) };
        let Some(cell) = self.worker.cell(&at.place.table, at.place.cell) else { return Ok(Reply::Again) };
        let limit = self.limit(&at.restart, stage);
        if limit.is_zero() {
            // Nobody waits for it any more, and nothing is past the point of no return.
            cell.live.leave();
            return Ok(self.without_answer(Some(Failure::Unknown(Reason::Timeout))));
        }
        let (message, body) = self.continuation(back, cell, limit);
        let now = self.worker.clock().elapsed();
        let until = now + limit;
        self.is_given(until);
        self.witness.begins(now);
        self.witness.brings(&back.delivered);
        let may_leave = |reason| self.may_leave(reason, stage);
        // What is past the point of no return is finished.
        let (may_be_cut, room) = (stage == Stage::Restartable, &self.room);
        let terms = Terms { chosen_from: None, limit, may_leave: &may_leave, may_be_cut, room };
        let body = Outgoing::Whole(body);
        match attempt(&self.worker, cell, &at.place.pool, &message, body, terms).await {
            Ok(said) => Ok(self.heard(said, until).await),
            Err(Failed { failure, .. }) => Ok(self.without_answer(failure)),
        }
    }

    fn failed(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal> {
        self.out = None;
        self.after(failure, stage)
    }

    async fn connect(&mut self, asked: &Asked<Box<Handed>>) -> Result<egress::Ready, Reason> {
        let destination = asked.message.destination.as_ref().map_err(|reason| *reason)?;
        if self.out.is_none() {
            let until = self.worker.clock().elapsed() + destination.spec.timeout;
            let place = destination.begin()?;
            self.out = Some(Out { _place: place, tried: egress::Tried::default(), until, recorded: None });
        }
        let out = self.out.as_mut().ok_or(Reason::Internal)?;
        self.worker.egress().connect(destination, &mut out.tried, out.until).await
    }

    async fn record(&mut self, asked: &Asked<Box<Handed>>) -> Result<(), Reason> {
        let intent = Intent {
            id: self.life.id(),
            n: asked.number,
            attempt: self.life.attempts(),
            cell: Arc::clone(&asked.message.live.name),
            destination: asked
                .message
                .destination
                .as_ref()
                .map(|live| Arc::clone(&live.spec.name))
                .unwrap_or_default(),
        };
        // A disk that hangs is as good as none: what waits for it is told so in time.
        let patience = match &self.out {
            Some(out) if self.shared.committed.get() => {
                out.until.saturating_sub(self.worker.clock().elapsed())
            }
            Some(_) | None => self.life.time_left(&self.worker),
        };
        let recorded = timeout(patience, self.worker.ledger().intend(intent)).await;
        let refused = match recorded {
            Ok(Ok(intended)) => Ok(intended),
            Ok(Err(refusal)) => Err(refusal.to_string()),
            Err(_) => Err("the disk did not take it in time".to_owned()),
        };
        let intended = refused.map_err(|why| {
            tracing::warn!(why, transaction = %self.life.id(), "an egress was not sent");
            Reason::LedgerUnavailable
        })?;
        if let Some(out) = &mut self.out {
            out.recorded = Some(Recorded { intended: Some(intended), sent: false });
        }
        #[cfg(feature = "failpoints")]
        self.worker.before_send();
        Ok(())
    }

    fn may_send(&self, asked: &Asked<Box<Handed>>, stage: Stage) -> Result<(), Reason> {
        let least = asked.message.destination.as_ref().map_or(Duration::ZERO, |live| live.spec.min_time);
        let too_late = self.shared.abandoned.get() || self.life.time_left_now(&self.worker) <= least;
        match stage {
            Stage::Restartable if too_late => Err(Reason::Timeout),
            Stage::Restartable | Stage::Committed => Ok(()),
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.shared.committed.set(stage == Stage::Committed);
    }

    async fn send(&mut self, connection: egress::Ready, asked: &Asked<Box<Handed>>) -> Sent<Brought> {
        let Some(out) = &mut self.out else { return Sent::NotSent(Reason::Internal) };
        // Given up from here on, nobody can say that nothing went out.
        if let Some(recorded) = &mut out.recorded {
            recorded.sent = true;
        }
        match connection.send(&mut out.tried, &asked.message.message, out.until).await {
            Sent::Answered(returned) => {
                let memory = self.room.count(returned.body.len());
                Sent::Answered(Brought { returned, _memory: memory })
            }
            Sent::Unknown(reason) => Sent::Unknown(reason),
            Sent::NotSent(reason) => {
                if let Some(recorded) = &mut out.recorded {
                    recorded.sent = false;
                }
                Sent::NotSent(reason)
            }
        }
    }

    fn settle(&mut self, _: &Asked<Box<Handed>>, delivered: &Delivered<Brought>) {
        let outcome = match delivered {
            Delivered::Answered(brought) => Outcome::Answered { status: Some(brought.returned.status) },
            Delivered::NotSent(_) => Outcome::NotSent,
            Delivered::Unknown(_) => Outcome::Unknown,
        };
        let recorded = self.out.as_mut().and_then(|out| out.recorded.as_mut());
        if let Some(intended) = recorded.and_then(|recorded| recorded.intended.take()) {
            intended.end(outcome);
        }
    }
}

impl Transaction {
    /// An attempt came to nothing: none was made where there is no failure.
    fn without_answer(&mut self, failure: Option<Failure>) -> Replied {
        if !matches!(failure, Some(Failure::Unknown(_))) {
            self.rests();
        }
        failure.map_or(Reply::Again, Reply::Failed)
    }

    /// What a pod said, as far as the course goes.
    async fn heard(&self, said: Said, until: Duration) -> Replied {
        let now = self.worker.clock().elapsed();
        let (left, took) = (until.saturating_sub(now), self.witness.took(now));
        match said {
            Said::Answer(head, lease) => {
                let policy = self.at.as_ref().map(|at| at.restart.policy).unwrap_or_default();
                let wanted = Wanted { policy, shared: self.keyed, left };
                let held = held::hold(head, lease, wanted, &self.room, self.worker.timers()).await;
                held.map_or_else(Reply::Failed, |ready| {
                    self.witness.answered(&ready.counts.tally, ready.status, took);
                    Reply::Answer(ready)
                })
            }
            Said::Egress(head, lease) => {
                let counts = Rc::clone(&lease.counts);
                let read = timeout(left, Box::pin(self.read(head, lease))).await;
                let asked = read.unwrap_or(Err(Failure::Unknown(Reason::Timeout)));
                asked.map_or_else(Reply::Failed, |asked| {
                    self.witness.answered(&counts.tally, StatusCode::OK, took);
                    Reply::Egress(asked)
                })
            }
        }
    }

    /// Reads what a cell hands over for a destination.
    async fn read(&self, mut head: UpstreamHead, mut lease: Lease) -> Result<Asked<Box<Handed>>, Failure> {
        let live = Arc::clone(lease.cell());
        let malformed = |error: wire::Malformed| {
            tracing::warn!(cell = &*live.name, %error, "an egress makes no sense");
            Failure::Unknown(Reason::UpstreamProtocol)
        };
        let fields = head.fields.to_map();
        let asked = Egress::read(&fields).map_err(malformed)?;
        let whole = match head.body.collect(wire::MAX_BODY, &mut BytesMut::new(), |_| true).await {
            Collected::Whole { data, .. } => data,
            Collected::More(_) => return Err(Failure::Unknown(Reason::UpstreamProtocol)),
            Collected::Broken => return Err(Failure::Unknown(Reason::UpstreamReset)),
            Collected::Overdue => return Err(Failure::Unknown(Reason::CellDisabled)),
        };
        lease.release();
        let memory = self.room.count(whole.len());
        let (context_bytes, body) = wire::split(whole, asked.context.as_ref()).map_err(malformed)?;
        let at = self.at.clone().ok_or(Failure::Unknown(Reason::Internal))?;
        let (destination, path) = match self.reached(&at.place, &asked) {
            Ok((live, path)) => (Ok(live), path),
            Err(reason) => (Err(reason), PathAndQuery::from_static("/")),
        };
        let headers = match &destination {
            Ok(live) => to_destination(fields, &live.spec, &self.life.id(), asked.number),
            Err(_) => HeaderMap::new(),
        };
        Ok(Asked {
            number: asked.number,
            effects: destination.as_ref().is_ok_and(|live| live.spec.effects),
            has_context: asked.context.is_some(),
            message: Box::new(Handed {
                at,
                live,
                lease: RefCell::new(Some(lease)),
                context: asked.context,
                context_bytes,
                message: egress::Message { method: asked.method, path, headers, body },
                destination,
                _memory: memory,
            }),
        })
    }

    /// The destination that a cell asks for and the path there, if the cell may reach it.
    fn reached(&self, place: &Place, asked: &Egress) -> Result<(Arc<DestinationLive>, PathAndQuery), Reason> {
        let snapshot = &place.table.snapshot;
        let cell = snapshot.table.cell(place.cell);
        let Some(spec) = snapshot.table.reaches(cell, &asked.destination) else {
            self.worker.forbidden().note(&cell.name, &asked.destination);
            return Err(Reason::DestinationForbidden);
        };
        let DestinationKind::Http { path, .. } = &spec.kind else { return Err(Reason::DestinationForbidden) };
        let path = within(path, asked.path.as_deref()).and_then(|path| path.parse().ok());
        let live = snapshot.destination(&asked.destination).ok_or(Reason::DestinationUnavailable)?;
        Ok((Arc::clone(live), path.ok_or(Reason::DestinationForbidden)?))
    }

    /// Where an egress goes on: at the pod that asked; once committed, else at another pod of the cell that was asked
    /// last, else in another cell. Counts it there. None where the place was not to be had and the next is to be looked for.
    fn whereto(
        &mut self,
        table: &Rc<LocalTable>,
        back: &Back<Box<Handed>, Brought>,
        stage: Stage,
    ) -> Result<Option<At>, Refusal> {
        let handed = &back.asked.message;
        let counted_until_then = handed.lease.take();
        if let (Some(_), Ok(live)) = (&counted_until_then, &handed.destination) {
            self.worker.egress().delivered(live, back.delivered.status());
        }
        if !self.tried.pods().iter().any(|pod| Rc::ptr_eq(pod, &handed.at.place.pool)) {
            handed.live.enter();
            let at = At { context: handed.version().map(str::to_owned), ..handed.at.clone() };
            self.at = Some(at.clone());
            return Ok(Some(at));
        }
        let (Stage::Committed, Some(version)) = (stage, handed.version()) else {
            return Err(Refusal {
                reason: Reason::ConnectFailed,
                detail: "the pod that asked for an egress could not be told what became of it".to_owned(),
            });
        };
        if let Some(index) = self.cell_now(table)
            && let Some(cell) = self.worker.cell(table, index)
            && let Some(pool) = pick(cell, self.tried.pods(), Some(version))
            && let Some(before) = &self.at
        {
            cell.live.enter();
            let place = Place { table: Rc::clone(table), cell: index, pool };
            let at = At { place, context: Some(version.to_owned()), ..before.clone() };
            self.at = Some(at.clone());
            return Ok(Some(at));
        }
        if self.at.as_ref().is_some_and(|at| at.owner) {
            return Err(Refusal {
                reason: Reason::OwnerUnavailable,
                detail: "no pod of the cell that owns the key is left to finish".to_owned(),
            });
        }
        Ok(self.enter_another(table, version)?.and_then(|_| self.at.clone()))
    }

    /// What a cell is told of an egress that it asked for, or another asked for before it.
    fn continuation(
        &self,
        back: &Back<Box<Handed>, Brought>,
        cell: &LocalCell,
        limit: Duration,
    ) -> (Message, Bytes) {
        let handed = &back.asked.message;
        let nothing = HeaderMap::new();
        let (answer, headers, body, reason) = match &back.delivered {
            Delivered::Answered(Brought { returned: Returned { status, headers, body }, .. }) => {
                (Some(*status), headers, body.clone(), None)
            }
            Delivered::NotSent(reason) | Delivered::Unknown(reason) => {
                (None, &nothing, Bytes::new(), Some(*reason))
            }
        };
        let mut headers = headers.clone();
        let head = Continue {
            number: back.asked.number,
            context: handed.context.clone(),
            status: back.delivered.status(),
            answer,
            reason,
            committed: self.shared.committed.get(),
        };
        head.write(&mut headers);
        let mut message = Message::new(&Method::POST, &self.head.origin());
        message.field("host", self.head.host());
        message.fields(&Fields::from(&headers));
        self.mark(&mut message, cell, limit);
        let mut whole = BytesMut::with_capacity(handed.context_bytes.len() + body.len());
        whole.extend_from_slice(&handed.context_bytes);
        whole.extend_from_slice(&body);
        (message, whole.freeze())
    }
}
