//! What each step of a transaction's course does in a router: attempts over the cells' connections, egress over those to
//! destinations, intents in the ledger.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ledger::{Intent, Outcome};
use bulkhead_protocol::Reason;
use bulkhead_protocol::egress::{self as wire, ContextHead, Continue, Egress};
use bulkhead_routing::Refusal;
use bulkhead_routing::table::{CellIndex, DestinationKind};
use bulkhead_routing::transaction::{Asked, Back, Delivered, Failure, Hands, Reply, Sent, Stage};
use bytes::{Bytes, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, header};
use tokio::time::timeout;

use crate::attempt::{Failed, Lease, Message, Said, Terms, attempt};
use crate::edge::{Collected, Outgoing, UpstreamHead};
use crate::egress::fields::to_destination;
use crate::egress::path::within;
use crate::egress::{self, DestinationLive, Returned};
use crate::held::{self, Ready};
use crate::live::CellLive;
use crate::pool::Pool;
use crate::transaction::{At, Out, Recorded, Transaction};
use crate::worker::LocalTable;

/// An egress as a cell handed it over.
pub(crate) struct Handed {
    /// The pod that asked.
    pool: Rc<Pool>,
    live: Arc<CellLive>,
    /// By which the transaction counts there until it goes on.
    lease: RefCell<Option<Lease>>,
    /// Where that cell's state is, should no newer table have it.
    at: (Rc<LocalTable>, CellIndex),
    context: Option<ContextHead>,
    context_bytes: Bytes,
    message: egress::Message,
    destination: Result<Arc<DestinationLive>, Reason>,
}

impl Handed {
    fn version(&self) -> Option<&str> {
        self.context.as_ref().map(|context| context.version.as_str())
    }
}

type Replied = Reply<Ready, Handed>;

impl Hands for Transaction {
    type Answer = Ready;
    type Message = Handed;
    type Connection = egress::Ready;
    type Returned = Returned;

    async fn attempt(&mut self) -> Result<Replied, Refusal> {
        let table = self.worker.table();
        let (rule, index) = self.choose(&table)?;
        let Some((cell, pool)) = self.enter(&table, rule, index, None) else { return Ok(Reply::Again) };
        let limit = self.limit(&rule.restart, Stage::Restartable);
        let message = self.message(cell, limit);
        let body = self.payload.take();
        let terms =
            Terms { chosen_from: Some(&table), limit, may_leave: &|| self.may_leave(), room: &self.room };
        let until = self.worker.clock().elapsed() + limit;
        let said = attempt(&self.worker, cell, &pool, message, body, terms).await;
        self.heard(said, until).await
    }

    async fn go_on(&mut self, back: &Back<Handed, Returned>, stage: Stage) -> Result<Replied, Refusal> {
        if self.out.take().is_some() && stage == Stage::Committed {
            // Whoever failed before may well finish it.
            self.tried.forgive();
        }
        let table = self.worker.table();
        let Some((at, pool)) = self.whereto(&table, back, stage)? else { return Ok(Reply::Again) };
        let Some(cell) = self.worker.cell(&at.0, at.1) else { return Ok(Reply::Again) };
        let restart = self.at.as_ref().map(|at| at.restart.clone());
        let Some(restart) = restart else { return Ok(Reply::Again) };
        let limit = self.limit(&restart, stage);
        let (message, body) = self.continuation(back, cell, limit);
        let terms = Terms { chosen_from: None, limit, may_leave: &|| false, room: &self.room };
        let until = self.worker.clock().elapsed() + limit;
        let said = attempt(&self.worker, cell, &pool, message, Outgoing::Whole(body), terms).await;
        self.heard(said, until).await
    }

    fn failed(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal> {
        self.out = None;
        self.after(failure, stage)
    }

    async fn connect(&mut self, asked: &Asked<Handed>) -> Result<egress::Ready, Reason> {
        let destination = asked.message.destination.as_ref().map_err(|reason| *reason)?;
        if self.out.is_none() {
            let until = self.worker.clock().elapsed() + destination.spec.timeout;
            let place = destination.begin()?;
            self.out = Some(Out { _place: place, tried: egress::Tried::default(), until, recorded: None });
        }
        let out = self.out.as_mut().ok_or(Reason::Internal)?;
        self.worker.egress().connect(destination, &mut out.tried, out.until).await
    }

    async fn record(&mut self, asked: &Asked<Handed>) -> Result<(), Reason> {
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
        let intended = self.worker.ledger().intend(intent).await.map_err(|refusal| {
            tracing::warn!(%refusal, transaction = %self.life.id(), "an egress was not sent");
            Reason::LedgerUnavailable
        })?;
        if let Some(out) = &mut self.out {
            out.recorded = Some(Recorded { intended: Some(intended), sent: false });
        }
        #[cfg(feature = "failpoints")]
        self.worker.before_send();
        Ok(())
    }

    fn may_send(&self, asked: &Asked<Handed>, stage: Stage) -> Result<(), Reason> {
        let least = asked.message.destination.as_ref().map_or(Duration::ZERO, |live| live.spec.min_time);
        match stage {
            Stage::Restartable if self.life.time_left(&self.worker) <= least => Err(Reason::Timeout),
            Stage::Restartable | Stage::Committed => Ok(()),
        }
    }

    fn enter(&mut self, stage: Stage) {
        let committed = stage == Stage::Committed;
        self.committed.set(committed);
        if let Some(recorded) = self.out.as_mut().and_then(|out| out.recorded.as_mut()) {
            recorded.sent = committed;
        }
    }

    async fn send(&mut self, connection: egress::Ready, asked: &Asked<Handed>) -> Sent<Returned> {
        let Some(out) = &mut self.out else { return Sent::NotSent(Reason::Internal) };
        let sent = connection.send(&mut out.tried, &asked.message.message, out.until).await;
        if let Sent::Answered(returned) = &sent {
            self.room.count(returned.body.len() as u64);
        }
        sent
    }

    fn settle(&mut self, _: &Asked<Handed>, delivered: &Delivered<Returned>) {
        let outcome = match delivered {
            Delivered::Answered(returned) => Outcome::Answered { status: Some(returned.status) },
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
    /// What a pod said, as far as the course goes.
    async fn heard(&mut self, said: Result<Said, Failed>, until: Duration) -> Result<Replied, Refusal> {
        let left = until.saturating_sub(self.worker.clock().elapsed());
        match said {
            Ok(Said::Answer(head, lease)) => {
                let policy = self.at.as_ref().map(|at| at.restart.policy).unwrap_or_default();
                let held = held::hold(head, lease, policy, left, &self.room).await;
                Ok(held.map_or_else(Reply::Failed, Reply::Answer))
            }
            Ok(Said::Egress(head, lease)) => {
                let read = timeout(left, self.read(head, lease)).await;
                let asked = read.unwrap_or(Err(Failure::Unknown(Reason::Timeout)));
                Ok(asked.map_or_else(Reply::Failed, Reply::Egress))
            }
            Err(Failed { failure, body }) => {
                self.payload.give_back(body);
                Ok(failure.map_or(Reply::Again, Reply::Failed))
            }
        }
    }

    /// Reads what a cell hands over for a destination.
    async fn read(&self, mut head: UpstreamHead, lease: Lease) -> Result<Asked<Handed>, Failure> {
        let malformed = |error: wire::Malformed| {
            tracing::warn!(cell = &*lease.cell().name, %error, "an egress makes no sense");
            Failure::Unknown(Reason::UpstreamProtocol)
        };
        let asked = Egress::read(&head.headers).map_err(malformed)?;
        let room = |length: usize| self.room.grow(length as u64);
        let whole = match head.body.collect(wire::MAX_BODY, &mut BytesMut::new(), room).await {
            Collected::Whole { data, .. } => data,
            Collected::More(_) => return Err(Failure::Unknown(Reason::UpstreamProtocol)),
            Collected::Broken => return Err(Failure::Unknown(Reason::UpstreamReset)),
        };
        let (context_bytes, body) = wire::split(whole, asked.context.as_ref()).map_err(malformed)?;
        let at = self.at.as_ref().ok_or(Failure::Unknown(Reason::Internal))?;
        let destination = self.reached(at, &asked);
        if destination.is_err() {
            self.worker.forbidden().note(&lease.cell().name, &asked.destination);
        }
        let (destination, path) = match destination {
            Ok((live, path)) => (Ok(live), path),
            Err(reason) => (Err(reason), PathAndQuery::from_static("/")),
        };
        let headers = match &destination {
            Ok(live) => to_destination(head.headers, &live.spec, &self.life.id(), asked.number),
            Err(_) => HeaderMap::new(),
        };
        let message = egress::Message { method: asked.method, path, headers, body };
        let mut lease = lease;
        lease.release();
        Ok(Asked {
            number: asked.number,
            effects: destination.as_ref().is_ok_and(|live| live.spec.effects),
            has_context: asked.context.is_some(),
            message: Handed {
                pool: Rc::clone(lease.pool()),
                live: Arc::clone(lease.cell()),
                lease: RefCell::new(Some(lease)),
                at: (Rc::clone(&at.table), at.cell),
                context: asked.context,
                context_bytes,
                message,
                destination,
            },
        })
    }

    /// The destination that a cell asks for and the path there, if the cell may reach it.
    fn reached(&self, at: &At, asked: &Egress) -> Result<(Arc<DestinationLive>, PathAndQuery), Reason> {
        let snapshot = &at.table.snapshot;
        let spec = snapshot.table.reaches(snapshot.table.cell(at.cell), &asked.destination);
        let DestinationKind::Http { path, .. } = &spec.ok_or(Reason::DestinationForbidden)?.kind else {
            return Err(Reason::DestinationForbidden);
        };
        let path = within(path, asked.path.as_deref()).and_then(|path| path.parse().ok());
        let live = snapshot.destination(&asked.destination).ok_or(Reason::DestinationUnavailable)?;
        Ok((Arc::clone(live), path.ok_or(Reason::DestinationForbidden)?))
    }

    /// Where an egress goes on: at the pod that asked; once committed, else at another pod of the cell that was asked
    /// last, else in another cell. Counts it there. None where the place was not to be had and the next is to be looked for.
    #[expect(clippy::type_complexity, reason = "a place is a table, a cell of it, and a pod")]
    fn whereto(
        &mut self,
        table: &Rc<LocalTable>,
        back: &Back<Handed, Returned>,
        stage: Stage,
    ) -> Result<Option<((Rc<LocalTable>, CellIndex), Rc<Pool>)>, Refusal> {
        let handed = &back.asked.message;
        let counted_until_then = handed.lease.take();
        if let (Some(_), Ok(live)) = (&counted_until_then, &handed.destination) {
            self.worker.egress().delivered(live, back.delivered.status());
        }
        if !self.tried.pods().iter().any(|pod| Rc::ptr_eq(pod, &handed.pool)) {
            let (of, index) = &handed.at;
            handed.live.enter();
            self.set_pool(&handed.pool, handed.version());
            return Ok(Some(((Rc::clone(of), *index), Rc::clone(&handed.pool))));
        }
        let (Stage::Committed, Some(version)) = (stage, handed.version()) else {
            return Err(Refusal {
                reason: Reason::ConnectFailed,
                detail: "the pod that asked for an egress could not be told what became of it".to_owned(),
            });
        };
        if let Some(at) = &self.at
            && let Some(cell) = self.worker.cell(&at.table, at.cell)
            && let Some(pool) = crate::attempt::pick(cell, self.tried.pods(), Some(version))
        {
            cell.live.enter();
            let place = (Rc::clone(&at.table), at.cell);
            self.set_pool(&pool, Some(version));
            return Ok(Some((place, pool)));
        }
        let entered = self.enter_another(table, version)?.map(|(_, pool)| pool);
        let at = self.at.as_ref().map(|at| (Rc::clone(&at.table), at.cell));
        Ok(entered.zip(at).map(|(pool, at)| (at, pool)))
    }

    fn set_pool(&mut self, pool: &Rc<Pool>, context: Option<&str>) {
        if let Some(at) = self.at.take() {
            let context = context.map(str::to_owned);
            self.at = Some(At { pool: Rc::clone(pool), context, ..at });
        }
    }

    /// What a cell is told of an egress that it asked for, or another asked for before it.
    fn continuation(
        &self,
        back: &Back<Handed, Returned>,
        cell: &crate::worker::LocalCell,
        limit: Duration,
    ) -> (Message, Bytes) {
        let handed = &back.asked.message;
        let nothing = HeaderMap::new();
        let (answer, headers, body, reason) = match &back.delivered {
            Delivered::Answered(Returned { status, headers, body }) => {
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
        };
        head.write(&mut headers);
        headers.insert(header::HOST, crate::headers::host(&self.head));
        self.mark(&mut headers, cell, limit);
        let mut whole = BytesMut::with_capacity(handed.context_bytes.len() + body.len());
        whole.extend_from_slice(&handed.context_bytes);
        whole.extend_from_slice(&body);
        (Message { method: Method::POST, target: self.head.origin(), headers }, whole.freeze())
    }
}
