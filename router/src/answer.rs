//! The end of a request's life: a cell's answer on its way to the client, or a problem document that says why there is
//! none.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_http1::{Error, Fields, Malformed};
use bulkhead_protocol::{Problem, Reason, TransactionId, fields as names, grpc};
use bulkhead_routing::Refusal;
use bulkhead_routing::table::{Rule, RuleId};
use bytes::Bytes;
use http::StatusCode;

use crate::edge::Upgrade;
use crate::headers::{self, Explained};
use crate::held::{Ready, ReadyBody};
use crate::listener::Settings;
use crate::message::{Answer, AnswerBody, Head, Held, Holds};
use crate::metrics::PathMetrics;
use crate::timers::ENDLESS;
use crate::worker::{LocalCell, Worker};

/// What is known of a request while it lives. Its client's side and its transaction's share it.
pub(crate) struct Life {
    id: Cell<TransactionId>,
    attempts: Cell<u32>,
    began: Duration,
    deadline: Cell<Duration>,
    /// How long its caller waits, where it says so.
    patience: Cell<Duration>,
    /// Set where it is passed on as it comes, for as long as both sides have something to say.
    is_stream: Cell<bool>,
    grpc: bool,
    rule: RefCell<Option<RuleId>>,
    cell: RefCell<Option<Arc<str>>>,
}

impl Life {
    pub(crate) fn begin(worker: &Worker, head: &Head) -> Rc<Self> {
        let asked = head.fields.get(grpc::TIMEOUT).filter(|_| head.grpc).and_then(grpc::timeout);
        let id = worker.new_transaction();
        Rc::new(Self {
            id: Cell::new(id),
            attempts: Cell::new(0),
            began: worker.clock().elapsed(),
            deadline: Cell::new(Duration::MAX),
            patience: Cell::new(asked.unwrap_or(Duration::MAX)),
            is_stream: Cell::new(false),
            grpc: head.grpc,
            rule: RefCell::default(),
            cell: RefCell::default(),
        })
    }

    /// The id is one of the client's own key.
    pub(crate) fn name(&self, id: TransactionId) {
        self.id.set(id);
    }

    pub(crate) fn id(&self) -> TransactionId {
        self.id.get()
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts.get()
    }

    pub(crate) fn set_attempts(&self, attempts: u32) {
        self.attempts.set(attempts);
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        self.deadline.set(deadline);
    }

    /// No rule's deadline holds, but only its caller's.
    pub(crate) fn streams(&self) {
        self.is_stream.set(true);
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.is_stream.get()
    }

    /// Whether there is no end to how long it may take.
    pub(crate) fn is_endless(&self) -> bool {
        self.is_stream.get() && self.patience.get() == Duration::MAX
    }

    /// Time until that deadline, which runs from the request's arrival.
    pub(crate) fn left(&self, worker: &Worker, deadline: Duration) -> Duration {
        let deadline = self.bounded(deadline);
        self.began.saturating_add(deadline).saturating_sub(worker.clock().elapsed())
    }

    /// Time until its client gets an answer, whatever comes: the deadline of the rule chosen last.
    pub(crate) fn time_left(&self, worker: &Worker) -> Duration {
        self.left(worker, self.deadline.get())
    }

    /// As [`Self::time_left`], by a clock that is read now: the process may have stood still.
    pub(crate) fn time_left_now(&self, worker: &Worker) -> Duration {
        let deadline = self.bounded(self.deadline.get());
        self.began.saturating_add(deadline).saturating_sub(worker.clock().elapsed_now())
    }

    fn bounded(&self, deadline: Duration) -> Duration {
        let deadline = if self.is_stream.get() { ENDLESS } else { deadline };
        deadline.min(self.patience.get())
    }

    pub(crate) fn chose(&self, rule: &Rule, cell: &LocalCell) {
        self.deadline.set(rule.restart.deadline);
        if self.rule.borrow().as_ref() != Some(&rule.id) {
            self.rule.replace(Some(rule.id.clone()));
        }
        self.cell.replace(Some(Arc::clone(&cell.live.name)));
    }

    /// Fields that every answer carries.
    fn mark(&self, fields: &mut Fields, settings: &Settings) {
        let (cell, rule) = (self.cell.borrow(), self.rule.borrow());
        let explained = Explained {
            cell: cell.as_deref(),
            rule: rule.as_ref().map(RuleId::as_str),
            attempts: self.attempts.get(),
        };
        headers::of_answer(fields, &self.id.get(), settings.explain.then_some(&explained));
    }
}

/// A cell's answer, for the client. What the request holds is held until the answer's last byte.
pub(crate) fn answered(
    worker: &Worker,
    settings: &Settings,
    life: &Life,
    ready: Ready,
    holds: Holds,
    upgrade: Option<Upgrade>,
) -> Answer {
    let Ready { status, mut fields, body, counts } = ready;
    let micros = worker.clock().elapsed().saturating_sub(life.began).as_micros();
    counts.answered(status.as_u16(), u64::try_from(micros).unwrap_or(u64::MAX));
    let leaves_http = matches!(body, ReadyBody::Upgrade(..));
    headers::clean_answer(&mut fields, leaves_http);
    life.mark(&mut fields, settings);
    let body = match body {
        ReadyBody::Whole { data, trailers } => AnswerBody::Whole { data, trailers, holds: Some(holds) },
        ReadyBody::Stream { begun, mut rest } => {
            rest.hold(holds, worker);
            AnswerBody::Stream { begun, rest }
        }
        ReadyBody::Upgrade(cell, mut lease) => {
            lease.hold(holds, worker);
            if let Some(client) = upgrade {
                client.join(cell, lease);
            }
            AnswerBody::of(Bytes::new())
        }
    };
    Answer { status, fields, body, close: worker.is_draining() }
}

/// The answer of the transaction that this request joined.
pub(crate) fn joined(worker: &Worker, settings: &Settings, life: &Life, held: &Held) -> Answer {
    let mut fields = held.fields.clone();
    headers::clean_answer(&mut fields, false);
    life.mark(&mut fields, settings);
    let trailers = held.trailers.clone();
    Answer {
        status: held.status,
        fields,
        body: AnswerBody::Whole { data: held.data.clone(), trailers, holds: None },
        close: worker.is_draining(),
    }
}

/// A problem document.
pub(crate) fn refused(worker: &Worker, settings: &Settings, life: &Life, refusal: &Refusal) -> Answer {
    worker.metrics().refused(life.cell.borrow().as_deref().unwrap_or_default(), refusal.reason);
    let mut answer = match life.grpc {
        true => uncalled(refusal),
        false => problem(refusal.reason, &refusal.detail, Some(&life.id())),
    };
    life.mark(&mut answer.fields, settings);
    answer.close = worker.is_draining() || closes(refusal.reason);
    answer
}

/// What a call of gRPC is told that is refused.
fn uncalled(refusal: &Refusal) -> Answer {
    Answer {
        status: StatusCode::OK,
        fields: grpc::refusal(refusal.reason, &refusal.detail).into_iter().collect(),
        body: AnswerBody::of(Bytes::new()),
        close: false,
    }
}

/// A problem document for a head that could not be read, so that there is no request to speak of.
pub(crate) fn unreadable(metrics: &PathMetrics, error: Error) -> Answer {
    let reason = if error.is_too_large() { Reason::HeadTooLarge } else { Reason::Malformed };
    metrics.refused("", reason);
    problem(reason, &format!("{error} ({})", error.rule()), None)
}

/// As [`unreadable`], for a head in HTTP/2.
pub(crate) fn malformed(metrics: &PathMetrics, error: Malformed) -> Answer {
    let reason = if error.is_too_large() { Reason::HeadTooLarge } else { Reason::Malformed };
    metrics.refused("", reason);
    problem(reason, &format!("{error} ({})", error.rule()), None)
}

/// Whether the rest of the request may still be on its way, and is too much or too slow to be waited for, so that the
/// connection is of no more use. Who is refused for want of room keeps it: a new one costs more than a request.
fn closes(reason: Reason) -> bool {
    matches!(reason, Reason::BodyTooLarge | Reason::RequestTimeout | Reason::HeadTooLarge)
}

/// The document alone.
pub(crate) fn problem(reason: Reason, detail: &str, transaction: Option<&TransactionId>) -> Answer {
    let mut problem = Problem::new(reason, detail);
    problem.transaction = transaction.map(TransactionId::to_string);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let fields = [("content-type", names::PROBLEM_JSON), ("cache-control", "no-store")];
    Answer {
        status: StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        fields: fields.into_iter().collect(),
        body: AnswerBody::of(Bytes::from(body)),
        close: false,
    }
}
