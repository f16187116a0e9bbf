//! What a request has at hand between its attempts: its bytes, where it has been, and what it holds of its rule. The
//! order of its life is told elsewhere.

use std::rc::Rc;
use std::time::Duration;

use bulkhead_crds::policy::TooLarge;
use bulkhead_process::clock;
use bulkhead_protocol::Reason;
use bulkhead_routing::table::{CellIndex, Rule};
use bulkhead_routing::{Refusal, decide};
use bytes::Bytes;
use http::{HeaderMap, header};

use crate::answer::Life;
use crate::attempt::{Failed, Message, pick};
use crate::edge::Outgoing;
use crate::headers::{self, AttemptFields};
use crate::listener::Listener;
use crate::message::Head;
use crate::pool::Pool;
use crate::tried::Tried;
use crate::view::View;
use crate::worker::{LocalCell, LocalTable, RuleUse, Worker};
use bulkhead_routing::transaction::restart::{self, Failure, Next, Situation};

/// A request's body, in the form in which attempts send it.
pub(crate) enum Payload {
    Whole(Bytes),
    /// Can be sent once; taken while it is under way.
    Once(Option<Outgoing>),
}

impl Payload {
    fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Once(_) => None,
        }
    }

    pub(crate) fn take(&mut self) -> Outgoing {
        match self {
            Self::Whole(bytes) => Outgoing::Whole(bytes.clone()),
            Self::Once(body) => body.take().unwrap_or(Outgoing::Whole(Bytes::new())),
        }
    }

    /// What an attempt did not begin to send may go out in another.
    fn give_back(&mut self, unsent: Option<Outgoing>) {
        if let Self::Once(body) = self {
            *body = unsent;
        }
    }

    fn is_repeatable(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Once(body) => body.is_some(),
        }
    }
}

/// A request that is whole, on its way to an answer.
pub(crate) struct Transaction<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) listener: &'a Listener,
    pub(crate) life: &'a mut Life,
    pub(crate) head: Head,
    pub(crate) payload: Payload,
    pub(crate) tried: Tried,
    /// Its place in its rule's restart budget, from the first attempt on.
    pub(crate) in_rule: Option<RuleUse>,
}

impl Transaction<'_> {
    /// Match, key, choice: the rule of the request in this table, and the cell that it goes to next. The table may be
    /// another one than for the attempt before, so all of it is decided anew.
    pub(crate) fn choose<'t>(&mut self, table: &'t LocalTable) -> Result<(&'t Rule, CellIndex), Refusal> {
        let tried = &self.tried;
        let view = View::whole(&self.head, self.payload.bytes());
        let matched = decide::match_rule(&table.snapshot.table, self.listener.name(), &view);
        let rule = matched.map_err(|refusal| tried.refusal(refusal))?;
        let limit = rule.restart.buffer_limit;
        if self.payload.bytes().is_some_and(|bytes| bytes.len() as u64 > limit)
            && rule.restart.too_large == TooLarge::Reject
        {
            return Err(body_too_large(limit));
        }
        if self.life.left(self.worker, rule.restart.deadline).is_zero() {
            let detail = "the rule's deadline is over (restart.deadline)".to_owned();
            // Before the first attempt it is the body that took the time, and nothing was sent.
            let reason = if tried.attempts() == 0 { Reason::RequestTimeout } else { Reason::Timeout };
            return Err(tried.refusal(Refusal { reason, detail }));
        }
        let key = decide::key(rule, &view, &self.life.id)?;
        let moment = table.snapshot.at(self.worker.clock().millis(), clock::now_unix_millis());
        let choice = decide::choose(rule, key, &moment, &tried.in_table(&table.snapshot.table));
        let choice = choice.map_err(|refusal| tried.refusal(refusal))?;
        self.in_rule.get_or_insert_with(|| self.worker.use_rule(rule));
        Ok((rule, choice.cell))
    }

    /// Counts the request in the chosen cell and picks a pod. None where the cell has its fill or no pod is left: it is
    /// not asked again.
    pub(crate) fn enter<'t>(
        &mut self,
        table: &'t LocalTable,
        rule: &Rule,
        index: CellIndex,
    ) -> Option<(&'t LocalCell, Rc<Pool>)> {
        let Some(cell) = self.worker.cell(table, index) else {
            // Every cell of a table has its state; without it the loop still has to come to an end.
            self.tried.skip(&table.snapshot.table.cell(index).name);
            return None;
        };
        self.life.chose(rule, cell);
        let another_serves = || table.snapshot.serves_beside(index, clock::now_unix_millis());
        let most = || self.listener.most_in_one_cell(another_serves);
        if !cell.live.admit(self.worker.clock().elapsed(), most) {
            self.tried.full(cell);
            return None;
        }
        let Some(pool) = pick(cell, self.tried.pods()) else {
            cell.live.leave();
            self.tried.failed(cell, Failure::NotProcessed(Reason::ConnectFailed));
            return None;
        };
        self.life.attempts = self.tried.attempt(cell);
        Some((cell, pool))
    }

    /// How long the next attempt may take.
    pub(crate) fn limit(&self, rule: &Rule) -> Duration {
        self.life.left(self.worker, rule.restart.deadline).min(rule.restart.per_attempt)
    }

    /// What is sent in this attempt.
    pub(crate) fn message(&self, cell: &LocalCell, limit: Duration) -> Message {
        let mut headers: HeaderMap = self.head.headers.clone();
        headers.insert(header::HOST, headers::host(&self.head));
        headers::of_attempt(
            &mut headers,
            &AttemptFields {
                transaction: &self.life.id_value,
                attempt: self.life.attempts,
                cell: &cell.live.header,
                deadline_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            },
        );
        Message { method: self.head.method.clone(), target: self.head.origin(), headers }
    }

    /// What follows an attempt without an answer: another, or the reason why there is none.
    pub(crate) fn after(
        &mut self,
        rule: &Rule,
        cell: &LocalCell,
        pool: Rc<Pool>,
        failed: Failed,
    ) -> Result<(), Refusal> {
        let Failed { failure, body } = failed;
        self.payload.give_back(body);
        let Some(failure) = failure else { return Ok(()) };
        self.worker.metrics().failed_attempt(&cell.live.name, failure.reason());
        self.tried.pod(pool);
        let left = self.life.left(self.worker, rule.restart.deadline);
        let next = restart::decide(&Situation {
            failure,
            stage: restart::Stage::Restartable,
            owner: rule.owner,
            policy: rule.restart.policy,
            idempotent: restart::is_idempotent(&self.head.method),
            repeatable: self.payload.is_repeatable(),
            attempts: self.tried.attempts(),
            max_attempts: rule.restart.max_attempts,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            other_pods: pick(cell, self.tried.pods()).is_some(),
            budget: self.in_rule.as_ref().is_some_and(RuleUse::has_token),
        });
        match next {
            Next::AnotherPod => {}
            Next::AnotherCell => {
                if let (Some(in_rule), Failure::GivenBack(_) | Failure::Unknown(_)) = (&self.in_rule, failure)
                {
                    in_rule.take();
                }
                self.tried.failed(cell, failure);
            }
            Next::Answer => {
                self.tried.failed(cell, failure);
                let detail = "an attempt failed".to_owned();
                return Err(self.tried.refusal(Refusal { reason: Reason::Internal, detail }));
            }
        }
        Ok(())
    }
}

pub(crate) fn body_too_large(limit: u64) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes (restart.bufferLimit)");
    Refusal { reason: Reason::BodyTooLarge, detail }
}
