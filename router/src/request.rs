//! The life of a request, told in order: admitted, read whole, given a rule and a cell, attempted there and perhaps
//! elsewhere, answered.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::policy::TooLarge;
use bulkhead_protocol::Reason;
use bulkhead_routing::{Refusal, decide};
use http::{Method, header};

use crate::answer::{Life, answered, refused};
use crate::attempt::attempt;
use crate::body::{self, Body, linger};
use crate::edge::{Arriving, Outgoing};
use crate::headers;
use crate::listener::{Listener, Permit, Reservation, Settings};
use crate::message::{Answer, Head, Request};
use crate::transaction::{Payload, Transaction, body_too_large};
use crate::tried::Tried;
use crate::view::View;
use crate::worker::{LocalTable, Worker};

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
    let permit = match admit(listener, &head) {
        Ok(permit) => permit,
        Err(refusal) => return Err(unread(body, refusal)),
    };
    headers::clean_request(&mut head.headers, upgrade.is_some());

    let mut room = Reservation::none(worker.listeners(), settings);
    let payload = read(worker, listener, life, &head, body, &mut room).await?;
    headers::forwarded(&mut head, peer);

    let tried = Tried::default();
    let mut transaction = Transaction { worker, listener, life, head, payload, tried, in_rule: None };
    let (answer, lease) = loop {
        let table = worker.table();
        let (rule, index) = transaction.choose(&table)?;
        let Some((cell, pool)) = transaction.enter(&table, rule, index) else { continue };
        let limit = transaction.limit(rule);
        let message = transaction.message(cell, limit);
        let body = transaction.payload.take();
        match attempt(worker, &table, cell, &pool, message, body, limit).await {
            Ok(answer) => break answer,
            Err(failed) => transaction.after(rule, cell, pool, failed)?,
        }
    };
    let holds = (permit, transaction.in_rule.take());
    Ok(answered(worker, settings, life, answer, lease, holds, upgrade))
}

/// Whether the router takes the request at all.
fn admit(listener: &Arc<Listener>, head: &Head) -> Result<Permit, Refusal> {
    let permit = listener.begin().ok_or_else(|| Refusal {
        reason: Reason::RouterOverloaded,
        detail: "the listener has as many requests under way as it may (limits.inFlight)".to_owned(),
    })?;
    if head.method == Method::CONNECT {
        return Err(malformed("CONNECT is for proxies, and this is none"));
    }
    let hosts = head.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (head.authority().is_none() && !head.http10) {
        return Err(malformed("HTTP/1.1 needs one host field (RFC 9112, section 3.2)"));
    }
    Ok(permit)
}

/// Reads the body whole, up to what the rule allows. Where it takes the body to find the rule, the largest limit of the
/// listener's rules holds, and the rule's own is looked at afterwards.
async fn read(
    worker: &Worker,
    listener: &Listener,
    life: &Life,
    head: &Head,
    body: Arriving,
    room: &mut Reservation<'_>,
) -> Result<Payload, Refusal> {
    let Allowed { length, too_large, deadline } = match allowed(&worker.table(), listener, head) {
        Ok(allowed) => allowed,
        Err(refusal) => return Err(unread(body, refusal)),
    };
    let patience = listener.settings().body_timeout.min(life.left(worker, deadline));
    match body::read(body, length, room, patience).await? {
        Body::Whole(bytes) => Ok(Payload::Whole(bytes)),
        Body::TooLarge { read, rest } => match too_large {
            TooLarge::Stream => Ok(Payload::Once(Some(Outgoing::Rest { read, rest }))),
            TooLarge::Reject => Err(unread(rest, body_too_large(length))),
        },
    }
}

/// How long a body may be and take, as far as it can be said before it is read.
struct Allowed {
    length: u64,
    too_large: TooLarge,
    /// From the request's arrival.
    deadline: Duration,
}

fn allowed(table: &LocalTable, listener: &Listener, head: &Head) -> Result<Allowed, Refusal> {
    let view = View::head_alone(head);
    let matched = decide::match_rule(&table.snapshot.table, listener.name(), &view);
    if view.body_was_asked_for() {
        let most = table.snapshot.table.listener(listener.name()).map_or(0, |listener| listener.buffer_limit);
        return Ok(Allowed { length: most, too_large: TooLarge::Reject, deadline: Duration::MAX });
    }
    let rule = matched?;
    let too_large = if rule.key_needs_body() { TooLarge::Reject } else { rule.restart.too_large };
    Ok(Allowed { length: rule.restart.buffer_limit, too_large, deadline: rule.restart.deadline })
}

fn malformed(detail: &str) -> Refusal {
    Refusal { reason: Reason::Malformed, detail: detail.to_owned() }
}

/// Refuses a request whose body was not read.
fn unread(body: Arriving, refusal: Refusal) -> Refusal {
    linger(body);
    refusal
}
