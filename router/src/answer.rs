//! The end of a request's life: a cell's answer on its way to the client, or a problem document that says why there is
//! none.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{Problem, Reason, TransactionId, fields};
use bulkhead_routing::Refusal;
use bulkhead_routing::table::{Rule, RuleId};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::attempt::Lease;
use crate::edge::{Upgrade, UpstreamHead};
use crate::headers::{self, Explained};
use crate::listener::{Permit, Settings};
use crate::message::{Answer, AnswerBody};
use crate::metrics::PathMetrics;
use crate::worker::{LocalCell, RuleUse, Worker};

/// What is known of a request while it lives.
pub(crate) struct Life {
    pub(crate) id: TransactionId,
    pub(crate) id_value: HeaderValue,
    pub(crate) attempts: u32,
    began: Duration,
    rule: Option<RuleId>,
    cell: Option<Arc<str>>,
}

impl Life {
    pub(crate) fn begin(worker: &Worker) -> Self {
        let id = worker.new_transaction();
        let id_value = headers::transaction(&id);
        Self { id, id_value, attempts: 0, began: worker.clock().elapsed(), rule: None, cell: None }
    }

    /// Time until the deadline, which runs from the request's arrival.
    pub(crate) fn left(&self, worker: &Worker, deadline: Duration) -> Duration {
        self.began.saturating_add(deadline).saturating_sub(worker.clock().elapsed())
    }

    pub(crate) fn chose(&mut self, rule: &Rule, cell: &LocalCell) {
        if self.rule.as_ref() != Some(&rule.id) {
            self.rule = Some(rule.id.clone());
        }
        self.cell = Some(Arc::clone(&cell.live.name));
    }

    /// Fields that every answer carries.
    fn mark(&self, headers: &mut HeaderMap, settings: &Settings, worker: &Worker) {
        let explained = Explained {
            cell: self.cell.as_deref(),
            rule: self.rule.as_ref().map(RuleId::as_str),
            attempts: self.attempts,
        };
        headers::of_answer(headers, &self.id_value, settings.explain.then_some(&explained));
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
    answer: UpstreamHead,
    mut lease: Lease,
    holds: (Permit, Option<RuleUse>),
    upgrade: Option<Upgrade>,
) -> Answer {
    let micros = worker.clock().elapsed().saturating_sub(life.began).as_micros();
    lease.counts.answered(answer.status.as_u16(), u64::try_from(micros).unwrap_or(u64::MAX));
    lease.hold(holds, worker.metrics());
    let UpstreamHead { status, mut headers, mut body, upgrade: agreed } = answer;
    headers::clean_answer(&mut headers, agreed.is_some());
    if let (Some(client), Some(cell)) = (upgrade, agreed) {
        life.mark(&mut headers, settings, worker);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        client.join(cell, lease);
        return Answer { status, headers, body: AnswerBody::Whole(Bytes::new()) };
    }
    life.mark(&mut headers, settings, worker);
    body.attach(lease);
    Answer { status, headers, body: AnswerBody::Stream(body) }
}

/// A problem document.
pub(crate) fn refused(worker: &Worker, settings: &Settings, life: &Life, refusal: &Refusal) -> Answer {
    worker.metrics().refused(life.cell.as_deref().unwrap_or_default(), refusal.reason);
    let mut answer = problem(refusal.reason, &refusal.detail, Some(&life.id));
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
        body: AnswerBody::Whole(Bytes::from(body)),
    }
}
