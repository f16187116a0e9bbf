//! The life of a request, told in order: admitted, matched, read whole, given a cell, attempted there and perhaps
//! elsewhere, answered.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::policy::TooLarge;
use bulkhead_protocol::Reason;
use bulkhead_routing::table::Rule;
use bulkhead_routing::{Refusal, decide};
use bytes::Bytes;
use http::{HeaderMap, Method, Uri, header};

use crate::answer::{Life, answered, refused};
use crate::attempt::{Failed, Message, attempt, pick};
use crate::body::{self, Body, linger};
use crate::edge::{Arriving, Outgoing};
use crate::headers::{self, AttemptFields};
use crate::listener::{Listener, Permit, Reservation, Settings};
use crate::message::{Answer, Head, Request};
use crate::restart::{self, Failure, Next, Situation};
use crate::tried::Tried;
use crate::view::View;
use crate::worker::{LocalCell, LocalTable, Worker};

/// Answers a request, whatever comes.
pub(crate) async fn serve(worker: &Worker, listener: &Arc<Listener>, request: Request) -> Answer {
    let mut life = Life::begin(worker);
    let settings = listener.settings();
    match handle(worker, listener, &settings, request, &mut life).await {
        Ok(answer) => answer,
        Err(refusal) => refused(worker, &settings, &life, &refusal),
    }
}

async fn handle(
    worker: &Worker,
    listener: &Arc<Listener>,
    settings: &Settings,
    request: Request,
    life: &mut Life,
) -> Result<Answer, Refusal> {
    let Request { mut head, body, peer, upgrade } = request;
    let permit = match admit(worker, listener, &head) {
        Ok(permit) => permit,
        Err(refusal) => return Err(unread(body, refusal)),
    };
    headers::clean_request(&mut head.headers, upgrade.is_some());

    let mut room = Reservation::none(worker.listeners(), settings);
    let mut payload = read(worker, listener, settings, &head, body, &mut room).await?;
    let host = head.authority().map(str::to_owned);
    headers::forwarded(&mut head.headers, host.as_deref(), peer);

    let mut tried = Tried::default();
    let mut in_rule = None;
    let (answer, lease, cell_counts) = loop {
        let table = worker.table();
        let view = View::whole(&head, payload.bytes());
        let rule = route(&table, listener, &view, &payload).map_err(|refusal| tried.refusal(refusal))?;
        let in_rule = in_rule.get_or_insert_with(|| worker.use_rule(rule));
        let left = life.left(worker, rule.restart.deadline);
        if left.is_zero() {
            let detail = "the rule's deadline is over (restart.deadline)".to_owned();
            return Err(tried.refusal(Refusal { reason: Reason::Timeout, detail }));
        }
        let key = decide::key(rule, &view, &life.id)?;
        let moment = table.snapshot.at(worker.clock().millis(), bulkhead_process::clock::now_unix_millis());
        let choice = decide::choose(rule, key, &moment, &tried.in_table(&table.snapshot.table))
            .map_err(|refusal| tried.refusal(refusal))?;
        let Some(cell) = worker.cell(&table, choice.cell) else {
            return Err(internal("the chosen cell is not in the table"));
        };
        life.chose(rule, cell);
        if !cell.live.admit(worker.clock().elapsed()) {
            tried.full(cell);
            continue;
        }
        let Some(pool) = pick(cell, tried.pods()) else {
            cell.live.leave();
            tried.failed(cell, Failure::NotProcessed(Reason::ConnectFailed));
            continue;
        };
        let attempt_number = tried.attempt(cell);
        let limit = left.min(rule.restart.per_attempt);
        let message = message(&head, life, cell, attempt_number, limit);
        let failed = match attempt(worker, cell, &pool, message, payload.take(), limit).await {
            Ok((answer, lease)) => break (answer, lease, Rc::clone(&cell.counts)),
            Err(failed) => failed,
        };
        worker.metrics().failed_attempt(&cell.live.name, failed.failure.reason());
        tried.pod(pool);
        let Failed { failure, body } = failed;
        payload.give_back(body);
        let situation = Situation {
            failure,
            policy: rule.restart.policy,
            idempotent: restart::is_idempotent(&head.method),
            repeatable: payload.is_repeatable(),
            attempts: attempt_number,
            max_attempts: rule.restart.max_attempts,
            left_ms: u64::try_from(life.left(worker, rule.restart.deadline).as_millis()).unwrap_or(u64::MAX),
            other_pods: pick(cell, tried.pods()).is_some(),
            budget: in_rule.has_token(),
        };
        match restart::decide(&situation) {
            Next::AnotherPod => {}
            Next::AnotherCell => {
                if !matches!(failure, Failure::NotProcessed(_)) {
                    in_rule.take();
                }
                tried.failed(cell, failure);
            }
            Next::Answer => {
                tried.failed(cell, failure);
                return Err(tried.refusal(internal("an attempt failed")));
            }
        }
    };
    life.attempts = tried.attempts();
    Ok(answered(worker, settings, life, answer, lease, (permit, in_rule), &cell_counts, upgrade))
}

/// Whether the router takes the request at all.
fn admit(worker: &Worker, listener: &Arc<Listener>, head: &Head) -> Result<Permit, Refusal> {
    let permit = listener.begin().ok_or_else(|| Refusal {
        reason: Reason::RouterOverloaded,
        detail: "the listener has as many requests under way as it may (limits.inFlight)".to_owned(),
    })?;
    if worker.table().snapshot.version == 0 {
        let detail = "the router has started and waits for its first table".to_owned();
        return Err(Refusal { reason: Reason::NotReady, detail });
    }
    if head.method == Method::CONNECT {
        return Err(malformed("CONNECT is for proxies, and this is none"));
    }
    if head.authority().is_none() && !head.http10 {
        return Err(malformed("HTTP/1.1 needs a host field (RFC 9112, section 3.2)"));
    }
    Ok(permit)
}

/// A request's body, in the form in which attempts send it.
enum Payload {
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

    fn take(&mut self) -> Outgoing {
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

/// Reads the body whole, up to what the rule allows. Where it takes the body to find the rule, the largest limit of the
/// listener's rules holds, and the rule's own is looked at afterwards.
async fn read(
    worker: &Worker,
    listener: &Listener,
    settings: &Settings,
    head: &Head,
    body: Arriving,
    room: &mut Reservation<'_>,
) -> Result<Payload, Refusal> {
    let (limit, too_large) = match body_limit(&worker.table(), listener, head) {
        Ok(allowed) => allowed,
        Err(refusal) => return Err(unread(body, refusal)),
    };
    match body::read(body, limit, room, settings.body_timeout).await? {
        Body::Whole(bytes) => Ok(Payload::Whole(bytes)),
        Body::TooLarge { read, rest } => match too_large {
            TooLarge::Stream => Ok(Payload::Once(Some(Outgoing::Rest { read, rest }))),
            TooLarge::Reject => Err(unread(rest, body_too_large(limit))),
        },
    }
}

fn body_limit(table: &LocalTable, listener: &Listener, head: &Head) -> Result<(u64, TooLarge), Refusal> {
    let view = View::head_alone(head);
    let matched = decide::match_rule(&table.snapshot.table, listener.name(), &view);
    if view.body_was_asked_for() {
        let most = table.snapshot.table.listener(listener.name()).map_or(0, |listener| listener.buffer_limit);
        return Ok((most, TooLarge::Reject));
    }
    let rule = matched?;
    let too_large = if rule.key_needs_body() { TooLarge::Reject } else { rule.restart.too_large };
    Ok((rule.restart.buffer_limit, too_large))
}

/// The rule of the request in this table, if its body is not too large for it.
fn route<'t>(
    table: &'t LocalTable,
    listener: &Listener,
    view: &View<'_>,
    payload: &Payload,
) -> Result<&'t Rule, Refusal> {
    let rule = decide::match_rule(&table.snapshot.table, listener.name(), view)?;
    let over = payload.bytes().is_some_and(|bytes| bytes.len() as u64 > rule.restart.buffer_limit);
    if over && rule.restart.too_large == TooLarge::Reject {
        return Err(body_too_large(rule.restart.buffer_limit));
    }
    Ok(rule)
}

/// What is sent in this attempt.
fn message<'a>(head: &'a Head, life: &Life, cell: &LocalCell, attempt: u32, limit: Duration) -> Message<'a> {
    let mut headers: HeaderMap = head.headers.clone();
    headers.insert(header::HOST, headers::host(head));
    headers::of_attempt(
        &mut headers,
        &AttemptFields {
            transaction: &life.id_value,
            attempt,
            cell: &cell.live.header,
            deadline_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        },
    );
    // Origin form, whatever the client sent. What was parsed as a target is one.
    let target = Uri::try_from(head.path_and_query()).unwrap_or_default();
    Message { method: &head.method, target, headers }
}

fn body_too_large(limit: u64) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes (restart.bufferLimit)");
    Refusal { reason: Reason::BodyTooLarge, detail }
}

fn malformed(detail: &str) -> Refusal {
    Refusal { reason: Reason::Malformed, detail: detail.to_owned() }
}

fn internal(detail: &str) -> Refusal {
    Refusal { reason: Reason::Internal, detail: detail.to_owned() }
}

/// Refuses a request whose body was not read.
fn unread(body: Arriving, refusal: Refusal) -> Refusal {
    linger(body);
    refusal
}
