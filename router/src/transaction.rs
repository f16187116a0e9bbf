//! What a transaction has at hand: its bytes, where it has been, and what it holds; and how it picks where it goes next.
//! The order of its course is told in `bulkhead_routing::transaction::course`, and what each step does in `hands`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::policy::TooLarge;
use bulkhead_ledger::Intended;
use bulkhead_process::clock;
use bulkhead_protocol::Reason;
use bulkhead_routing::table::{CellIndex, Restart, Rule};
use bulkhead_routing::transaction::restart::{self, Failure, Next, Situation, Stage};
use bulkhead_routing::{Choice, Refusal, decide};

use crate::answer::Life;
use crate::attempt::pick;
use crate::edge::Message;
use crate::egress;
use crate::evidence::Witness;
use crate::headers::{self, AttemptFields};
use crate::listener::{Listener, Room};
use crate::message::Head;
use crate::owned::Owned;
use crate::payload::{Payload, body_too_large};
use crate::pool::Pool;
use crate::tried::Tried;
use crate::view::View;
use crate::worker::{LocalCell, LocalTable, RuleUse, Worker};

/// A rule by its place in a table.
pub(crate) type Matched = (Rc<LocalTable>, usize);

/// A request that is whole, on its way to an answer.
pub(crate) struct Transaction {
    pub(crate) worker: Rc<Worker>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) life: Rc<Life>,
    pub(crate) head: Head,
    pub(crate) payload: Payload,
    /// The rule that its head alone decided, by its place in that table.
    pub(crate) matched: Option<Matched>,
    pub(crate) room: Rc<Room>,
    /// Whether others may join it, for whom the answer is kept.
    pub(crate) keyed: bool,
    pub(crate) tried: Tried,
    /// Its place in its rule's restart budget, from the first attempt on.
    pub(crate) in_rule: Option<RuleUse>,
    /// Set where the last attempt was made in the owner of its key.
    pub(crate) owned: Option<Owned>,
    /// Where the last attempt was made, and the terms that it was made under.
    pub(crate) at: Option<At>,
    /// The message that is on its way to a destination.
    pub(crate) out: Option<Out>,
    /// Number of the last egress that is past the point of no return and brought forward: whoever failed before may be
    /// asked again once it is another.
    pub(crate) furthest: u32,
    pub(crate) shared: Rc<Standing>,
    pub(crate) witness: Witness,
}

/// What a transaction and its client's side know of each other.
#[derive(Default)]
pub(crate) struct Standing {
    /// A message with effects may have gone out.
    pub(crate) committed: Cell<bool>,
    /// The client is gone, or has its answer.
    pub(crate) abandoned: Cell<bool>,
}

/// One pod of one cell, as a table has it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) table: Rc<LocalTable>,
    pub(crate) cell: CellIndex,
    pub(crate) pool: Rc<Pool>,
}

/// A place of an attempt, and the terms that it is made under.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) place: Place,
    pub(crate) restart: Restart,
    pub(crate) owner: bool,
    /// The version that whoever goes on has to read, once there is a context to go on from.
    pub(crate) context: Option<String>,
}

/// A message on its way to a destination.
pub(crate) struct Out {
    pub(crate) _place: egress::Place,
    pub(crate) tried: egress::Tried,
    pub(crate) until: Duration,
    pub(crate) recorded: Option<Recorded>,
}

/// An intent on record. Given up before anything was sent, it says so.
pub(crate) struct Recorded {
    pub(crate) intended: Option<Intended>,
    pub(crate) sent: bool,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Some(intended) = self.intended.take()
            && !self.sent
        {
            intended.end(bulkhead_ledger::Outcome::NotSent);
        }
    }
}

impl Transaction {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        listener: &Arc<Listener>,
        life: &Rc<Life>,
        head: Head,
        (payload, matched): (Payload, Option<Matched>),
        room: Rc<Room>,
        keyed: bool,
    ) -> Self {
        let witness = Witness::new(payload.bytes().is_some());
        Self {
            worker: Rc::clone(worker),
            listener: Arc::clone(listener),
            life: Rc::clone(life),
            head,
            payload,
            matched,
            room,
            keyed,
            tried: Tried::default(),
            in_rule: None,
            owned: None,
            at: None,
            out: None,
            furthest: 0,
            shared: Rc::default(),
            witness,
        }
    }

    /// Match, key, choice: the rule of the request in this table, and the cell that it goes to next. The table may be
    /// another one than for the attempt before, so all of it is decided anew.
    pub(crate) fn choose<'t>(&mut self, table: &'t LocalTable) -> Result<(&'t Rule, CellIndex), Refusal> {
        let (rule, choice) = self.choice(table, &[]).map_err(|refusal| self.tried.refusal(refusal))?;
        if rule.effects
            && let Err(refusal) = self.worker.ledger().accepts()
        {
            let detail = format!("nothing that may have an effect is begun now: {refusal}");
            return Err(self.tried.refusal(Refusal { reason: Reason::LedgerUnavailable, detail }));
        }
        self.in_rule.get_or_insert_with(|| self.worker.use_rule(table, rule));
        Ok((rule, choice.cell))
    }

    /// As [`Self::choose`], with further cells left out and nothing taken.
    fn choice<'t>(
        &self,
        table: &'t LocalTable,
        left_out: &[CellIndex],
    ) -> Result<(&'t Rule, Choice), Refusal> {
        let view = View::whole(&self.head, self.payload.bytes());
        let rule = match &self.matched {
            Some((by, place)) if std::ptr::eq(&raw const **by, table) => {
                &table.snapshot.table.rules()[*place]
            }
            _ => decide::match_rule(&table.snapshot.table, self.listener.name(), &view)?,
        };
        let committed = self.shared.committed.get();
        let limit = rule.restart.buffer_limit;
        if !committed
            && self.payload.bytes().is_some_and(|bytes| bytes.len() as u64 > limit)
            && rule.restart.too_large == TooLarge::Reject
        {
            return Err(body_too_large(limit));
        }
        if !committed && self.life.left(&self.worker, rule.restart.deadline).is_zero() {
            let detail = "the rule's deadline is over (restart.deadline)".to_owned();
            // Before the first attempt it is the body that took the time, and nothing was sent.
            let reason = if self.tried.attempts() == 0 { Reason::RequestTimeout } else { Reason::Timeout };
            return Err(Refusal { reason, detail });
        }
        let key = decide::key(rule, &view, &self.life.id())?;
        let moment = table.snapshot.at(self.worker.clock().millis(), clock::now_unix_millis());
        let mut tried = self.tried.in_table(&table.snapshot.table);
        tried.extend_from_slice(left_out);
        decide::choose(rule, key, &moment, &tried).map(|choice| (rule, choice))
    }

    /// Counts the request in the chosen cell and picks a pod. None where the cell has its fill or no pod is left: it is
    /// not asked again. What is past the point of no return, and so comes with a context, is taken in whatever room there
    /// is.
    pub(crate) fn enter(
        &mut self,
        table: &Rc<LocalTable>,
        rule: &Rule,
        index: CellIndex,
        context: Option<&str>,
    ) -> Option<Place> {
        let Some(cell) = self.worker.cell(table, index) else {
            // Every cell of a table has its state; without it the loop still has to come to an end.
            self.tried.skip(&table.snapshot.table.cell(index).name);
            return None;
        };
        let owned = if rule.owner {
            // Gone where another table is in force by now, which may know another owner.
            Some(Owned::begin(&self.worker, &table.snapshot)?)
        } else {
            None
        };
        self.life.chose(rule, cell);
        let another_serves = || table.snapshot.serves_beside(index, clock::now_unix_millis());
        let most = || self.listener.most_in_one_cell(another_serves);
        if context.is_some() {
            cell.live.enter();
        } else if !cell.live.admit(self.worker.clock().elapsed(), most) {
            self.tried.full(cell);
            return None;
        }
        let Some(pool) = pick(cell, self.tried.pods(), context) else {
            cell.live.leave();
            self.tried.failed(cell, Failure::NotProcessed(Reason::ConnectFailed));
            return None;
        };
        self.life.set_attempts(self.tried.attempt(cell));
        self.owned = owned;
        let place = Place { table: Rc::clone(table), cell: index, pool };
        self.at = Some(At {
            place: place.clone(),
            restart: rule.restart.clone(),
            owner: rule.owner,
            context: context.map(str::to_owned),
        });
        Some(place)
    }

    /// Another cell for a transaction that is past the point of no return: one that reads its context.
    pub(crate) fn enter_another(
        &mut self,
        table: &Rc<LocalTable>,
        context: &str,
    ) -> Result<Option<Place>, Refusal> {
        let (rule, choice) = self.choice(table, &self.deaf_to(table, context))?;
        Ok(self.enter(table, rule, choice.cell, Some(context)))
    }

    /// The cells of which no pod reads that context that was not asked yet.
    fn deaf_to(&self, table: &LocalTable, context: &str) -> Vec<CellIndex> {
        let reads = |index: &CellIndex| {
            let cell = self.worker.cell(table, *index);
            cell.is_some_and(|cell| pick(cell, self.tried.pods(), Some(context)).is_some())
        };
        table.snapshot.table.cells().map(|(index, _)| index).filter(|index| !reads(index)).collect()
    }

    /// The cell of the last attempt as the newest table has it, so that pods which came since are known.
    pub(crate) fn cell_now(&self, table: &LocalTable) -> Option<CellIndex> {
        let before = &self.at.as_ref()?.place;
        table.snapshot.table.cell_named(&before.table.snapshot.table.cell(before.cell).name)
    }

    /// How long the next attempt may take. What is past the point of no return is finished however late it is.
    pub(crate) fn limit(&self, restart: &Restart, stage: Stage) -> Duration {
        match stage {
            Stage::Restartable if self.life.is_stream() => self.life.left(&self.worker, restart.deadline),
            Stage::Restartable => self.life.left(&self.worker, restart.deadline).min(restart.per_attempt),
            Stage::Committed => restart.per_attempt,
        }
    }

    /// What is sent in this attempt.
    pub(crate) fn message(&self, cell: &LocalCell, limit: Duration) -> Message {
        let (method, target) = (&self.head.method, &*self.head.origin());
        let mut message = match self.head.grpc {
            true => Message::over_http2(method, target),
            false => Message::new(method, target),
        };
        message.field("host", self.head.host());
        message.fields(&self.head.fields);
        self.mark(&mut message, cell, limit);
        message
    }

    /// The fields by which a cell knows transaction and attempt.
    pub(crate) fn mark(&self, message: &mut Message, cell: &LocalCell, limit: Duration) {
        headers::of_attempt(
            message,
            &AttemptFields {
                transaction: self.life.id(),
                attempt: self.life.attempts(),
                cell: &cell.live.name,
                deadline_ms: (!self.life.is_endless())
                    .then(|| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            },
        );
    }

    /// What follows a failure at the place of the last attempt: another, or the reason why there is none.
    pub(crate) fn after(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal> {
        let Some(at) = self.at.clone() else {
            return Err(Refusal { reason: failure.reason(), detail: "no attempt was made".to_owned() });
        };
        let Some(cell) = self.worker.cell(&at.place.table, at.place.cell) else { return Ok(()) };
        self.worker.metrics().failed_attempt(&cell.live.name, failure.reason());
        let now = self.worker.clock().elapsed();
        self.witness.failed(&cell.counts.tally, failure, now, at.restart.per_attempt);
        self.tried.pod(Rc::clone(&at.place.pool));
        let next = restart::decide(&self.situation(&at, cell, failure, stage));
        if (next, stage) == (Next::AnotherCell, Stage::Restartable)
            && failure.may_have_effects()
            && let Some(in_rule) = &self.in_rule
        {
            in_rule.take();
        }
        if next != Next::AnotherPod {
            self.tried.failed(cell, failure);
        }
        if next == Next::Answer {
            let detail = "an attempt failed".to_owned();
            return Err(self.tried.refusal(Refusal { reason: Reason::Internal, detail }));
        }
        Ok(())
    }

    fn situation(&self, at: &At, cell: &LocalCell, failure: Failure, stage: Stage) -> Situation {
        let left = self.life.left(&self.worker, at.restart.deadline);
        Situation {
            failure,
            stage,
            owner: at.owner,
            policy: at.restart.policy,
            idempotent: restart::is_idempotent(&self.head.method),
            repeatable: self.payload.is_repeatable(),
            attempts: self.tried.attempts(),
            max_attempts: at.restart.max_attempts,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            other_pods: pick(cell, self.tried.pods(), at.context.as_deref()).is_some(),
            budget: self.in_rule.as_ref().is_some_and(RuleUse::has_token),
        }
    }

    /// Whether an attempt that is asked back may be given up: its rule lets it start over, and another cell would take it.
    /// What is past the point of no return is finished where it is, unless its pod is gone and another reads its context.
    pub(crate) fn may_leave(&self, reason: Reason, stage: Stage) -> bool {
        let Some(at) = &self.at else { return false };
        let Some(cell) = self.worker.cell(&at.place.table, at.place.cell) else { return false };
        let table = self.worker.table();
        match stage {
            Stage::Restartable => {
                let situation = self.situation(at, cell, Failure::Unknown(reason), stage);
                let here = table.snapshot.table.cell_named(&cell.live.name);
                restart::decide(&situation) == Next::AnotherCell
                    && self.choice(&table, here.as_slice()).is_ok()
            }
            Stage::Committed => {
                let Some(context) = at.context.as_deref().filter(|_| reason == Reason::PodGone) else {
                    return false;
                };
                let here = self.cell_now(&table).and_then(|index| self.worker.cell(&table, index));
                let other = |cell| {
                    pick(cell, &[self.tried.pods(), &[Rc::clone(&at.place.pool)]].concat(), Some(context))
                };
                here.is_some_and(|cell| other(cell).is_some())
                    || (!at.owner && self.choice(&table, &self.deaf_to(&table, context)).is_ok())
            }
        }
    }
}
