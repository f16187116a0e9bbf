//! The end of a request's life: a cell's answer on its way to the client, or a problem document that says why there is
//! none.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{Problem, Reason, TransactionId, fields};
use bulkhead_routing::Refusal;
use bulkhead_routing::table::{Rule, RuleId};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::edge::Upgrade;
use crate::headers::{self, Explained};
use crate::held::{Ready, ReadyBody};
use crate::listener::Settings;
use crate::message::{Answer, AnswerBody, Held, Holds};
use crate::metrics::PathMetrics;
use crate::worker::{LocalCell, Worker};

/// What is known of a request while it lives. Its client's side and its transaction's share it.
pub(crate) struct Life {
    id: Cell<TransactionId>,
    id_value: RefCell<HeaderValue>,
    attempts: Cell<u32>,
    began: Duration,
    deadline: Cell<Duration>,
    rule: RefCell<Option<RuleId>>,
    cell: RefCell<Option<Arc<str>>>,
}

impl Life {
    pub(crate) fn begin(worker: &Worker) -> Rc<Self> {
        let id = worker.new_transaction();
        Rc::new(Self {
            id: Cell::new(id),
            id_value: RefCell::new(headers::transaction(&id)),
            attempts: Cell::new(0),
            began: worker.clock().elapsed(),
            deadline: Cell::new(Duration::MAX),
            rule: RefCell::default(),
            cell: RefCell::default(),
        })
    }

    /// The id is one of the client's own key.
    pub(crate) fn name(&self, id: TransactionId) {
        self.id.set(id);
        self.id_value.replace(headers::transaction(&id));
    }

    pub(crate) fn id(&self) -> TransactionId {
        self.id.get()
    }

    pub(crate) fn id_value(&self) -> HeaderValue {
        self.id_value.borrow().clone()
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

    /// Time until that deadline, which runs from the request's arrival.
    pub(crate) fn left(&self, worker: &Worker, deadline: Duration) -> Duration {
        self.began.saturating_add(deadline).saturating_sub(worker.clock().elapsed())
    }

    /// Time until its client gets an answer, whatever comes: the deadline of the rule chosen last.
    pub(crate) fn time_left(&self, worker: &Worker) -> Duration {
        self.left(worker, self.deadline.get())
    }

    pub(crate) fn chose(&self, rule: &Rule, cell: &LocalCell) {
        self.deadline.set(rule.restart.deadline);
        if self.rule.borrow().as_ref() != Some(&rule.id) {
            self.rule.replace(Some(rule.id.clone()));
        }
        self.cell.replace(Some(Arc::clone(&cell.live.name)));
    }

    /// Fields that every answer carries.
    fn mark(&self, headers: &mut HeaderMap, settings: &Settings, worker: &Worker) {
        let (cell, rule) = (self.cell.borrow(), self.rule.borrow());
        let explained = Explained {
            cell: cell.as_deref(),
            rule: rule.as_ref().map(RuleId::as_str),
            attempts: self.attempts.get(),
        };
        headers::of_answer(headers, &self.id_value.borrow(), settings.explain.then_some(&explained));
        if worker.is_draining() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
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
    let Ready { status, mut headers, body, counts } = ready;
    let micros = worker.clock().elapsed().saturating_sub(life.began).as_micros();
    counts.answered(status.as_u16(), u64::try_from(micros).unwrap_or(u64::MAX));
    let leaves_http = matches!(body, ReadyBody::Upgrade(..));
    headers::clean_answer(&mut headers, leaves_http);
    life.mark(&mut headers, settings, worker);
    let body = match body {
        ReadyBody::Whole { data, trailers } => AnswerBody::Whole { data, trailers, _holds: Some(holds) },
        ReadyBody::Stream { begun, mut rest } => {
            rest.hold(holds, worker.metrics());
            AnswerBody::Stream { begun, rest }
        }
        ReadyBody::Upgrade(cell, mut lease) => {
            lease.hold(holds, worker.metrics());
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            if let Some(client) = upgrade {
                client.join(cell, lease);
            }
            AnswerBody::of(Bytes::new())
        }
    };
    Answer { status, headers, body }
}

/// The answer of the transaction that this request joined.
pub(crate) fn joined(worker: &Worker, settings: &Settings, life: &Life, held: &Held) -> Answer {
    let mut headers = held.headers.clone();
    headers::clean_answer(&mut headers, false);
    life.mark(&mut headers, settings, worker);
    let trailers = held.trailers.clone();
    Answer {
        status: held.status,
        headers,
        body: AnswerBody::Whole { data: held.data.clone(), trailers, _holds: None },
    }
}

/// A problem document.
pub(crate) fn refused(worker: &Worker, settings: &Settings, life: &Life, refusal: &Refusal) -> Answer {
    worker.metrics().refused(life.cell.borrow().as_deref().unwrap_or_default(), refusal.reason);
    let mut answer = problem(refusal.reason, &refusal.detail, Some(&life.id()));
    life.mark(&mut answer.headers, settings, worker);
    if closes(refusal.reason) {
        answer.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// A problem document for a head that could not be read, so that there is no request to speak of.
pub(crate) fn unreadable(metrics: &PathMetrics, reason: Reason) -> Answer {
    metrics.refused("", reason);
    let detail = match reason {
        Reason::HeadTooLarge => "the request's head is larger than the listener allows (limits.headerBytes)",
        _ => "the request's head is no HTTP/1.1 (RFC 9112, sections 3 and 5)",
    };
    problem(reason, detail, None)
}

/// Whether the rest of the request may still be on its way, so that the connection is of no more use.
fn closes(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::BodyTooLarge | Reason::RequestTimeout | Reason::RouterOverloaded | Reason::HeadTooLarge
    )
}

/// The document alone.
pub(crate) fn problem(reason: Reason, detail: &str, transaction: Option<&TransactionId>) -> Answer {
    let mut problem = Problem::new(reason, detail);
    problem.transaction = transaction.map(TransactionId::to_string);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(fields::PROBLEM_JSON));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Answer {
        status: StatusCode::from_u16(reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        headers,
        body: AnswerBody::of(Bytes::from(body)),
    }
}
