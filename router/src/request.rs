//! The life of a request, told in order: admitted, read whole, given a rule and a cell, attempted there and perhaps
//! elsewhere, answered.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::policy::{RestartPolicy, TooLarge};
use bulkhead_crds::router::OnRepeat;
use bulkhead_http1::check_host;
use bulkhead_ledger::Standing;
use bulkhead_protocol::{Reason, TransactionId};
use bulkhead_routing::{Refusal, decide};
use bytes::Bytes;
use http::Method;
use tokio::time::timeout;
use xxhash_rust::xxh3::Xxh3;

use crate::answer::{Life, answered, joined, refused};
use crate::body::{self, Body};
use crate::caller::accompany;
use crate::edge::{Arriving, Outgoing};
use crate::forwarded::Hop;
use crate::front::Client;
use crate::headers;
use crate::listener::{Listener, Permit, Room, Settings};
use crate::message::{Answer, Head, Request};
use crate::payload::{Payload, body_too_large};
use crate::transaction::{Matched, Transaction};
use crate::under_way::{Claimed, Digest, Ended, in_flight};
use crate::view::View;
use crate::worker::{LocalTable, Worker};

/// Answers a request, whatever comes.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    listener: &Arc<Listener>,
    client: &Client,
    request: Request,
) -> Answer {
    let life = Life::begin(worker, &request.head);
    let settings = listener.settings();
    let answer = handle(worker, listener, &settings, client, request, &life).await;
    answer.unwrap_or_else(|refusal| refused(worker, &settings, &life, &refusal))
}

async fn handle(
    worker: &Rc<Worker>,
    listener: &Arc<Listener>,
    settings: &Settings,
    client: &Client,
    request: Request,
    life: &Rc<Life>,
) -> Result<Answer, Refusal> {
    let Request { mut head, body, upgrade } = request;
    let (permit, key) = admit(listener, &mut head, settings, client)?;
    headers::clean_request(&mut head.fields, upgrade.is_some());
    // Only now, since what a client names in `connection` was taken off; and before any rule looks at it.
    let host = head.host().to_vec();
    let hop = Hop { peer: client.address, secure: client.secure, host: &host };
    settings.forwarded().add(&mut head.fields, hop);

    let room = Room::none(worker.listeners(), settings);
    let (payload, matched) = read(worker, listener, settings, life, &head, body, &room).await?;
    let claim = match key {
        None => None,
        Some(key) => match claim(worker, life, key, &head, &payload).await? {
            Claimed::First(claim) => Some(claim),
            Claimed::Joined(ended) => return follow(worker, settings, life, key.0, ended),
        },
    };

    let keyed = claim.is_some();
    let transaction =
        Box::new(Transaction::new(worker, listener, life, head, (payload, matched), room, keyed));
    let (ready, holds) = accompany(transaction, permit, claim).await?;
    Ok(answered(worker, settings, life, ready, holds, upgrade))
}

/// The id of a client's own key, and what becomes of a repetition.
type Key = (TransactionId, OnRepeat);

/// Whether the router takes the request at all, and under which id.
fn admit(
    listener: &Arc<Listener>,
    head: &mut Head,
    settings: &Settings,
    client: &Client,
) -> Result<(Permit, Option<Key>), Refusal> {
    let permit = listener.begin(settings).ok_or_else(|| Refusal {
        reason: Reason::RouterOverloaded,
        detail: "the listener has as many requests under way as it may (limits.inFlight)".to_owned(),
    })?;
    if head.method == Method::CONNECT {
        return Err(malformed("CONNECT is for proxies, and this is none"));
    }
    check_host(&head.fields, head.http10)
        .map_err(|error| malformed(&format!("{error} ({})", error.rule())))?;
    // Before anything is read of them, a principal included.
    settings.forwarded().receive(&mut head.fields, client.address);
    let Some(keys) = &settings.keys else { return Ok((permit, None)) };
    let id = keys.take(listener.name(), client.subject.as_ref(), &mut head.fields)?;
    Ok((permit, id.map(|id| (id, keys.on_repeat))))
}

/// Makes the request the first of its id, joins the one that is, or refuses what had its effect before.
async fn claim(
    worker: &Worker,
    life: &Life,
    (id, on_repeat): Key,
    head: &Head,
    payload: &Payload,
) -> Result<Claimed, Refusal> {
    life.name(id);
    let claims = worker.under_way().claim(id, digest(head, payload), on_repeat);
    let claimed = timeout(life.time_left(worker), claims).await.unwrap_or_else(|_| Err(in_flight()))?;
    // Only now: between a look before and the claim the first could have come to its end.
    if let (Claimed::First(_), Some(standing)) = (&claimed, worker.ledger().standing(&id)) {
        return Err(decided(standing));
    }
    Ok(claimed)
}

fn decided(standing: Standing) -> Refusal {
    let (reason, detail) = match standing {
        Standing::Decided => (Reason::Decided, "a transaction with this idempotency key had its effect"),
        Standing::Unknown => (
            Reason::DecidedUnknown,
            "a transaction with this idempotency key may have had its effect; it is not run again",
        ),
        Standing::InFlight => (Reason::InFlight, "a transaction with this idempotency key is under way"),
    };
    Refusal { reason, detail: detail.to_owned() }
}

/// What a request is told whose transaction was another's too.
fn follow(
    worker: &Worker,
    settings: &Settings,
    life: &Life,
    id: TransactionId,
    ended: Ended,
) -> Result<Answer, Refusal> {
    match ended {
        Ended::Answered(held) => Ok(joined(worker, settings, life, &held)),
        Ended::Refused(refusal) => Err(refusal),
        Ended::NotKept => Err(worker.ledger().standing(&id).map_or_else(in_flight, decided)),
    }
}

/// What tells two requests with the same key apart. A body that is not held whole stands for any.
fn digest(head: &Head, payload: &Payload) -> Digest {
    let mut hash = Xxh3::new();
    let target = head.origin();
    let body = payload.bytes().map_or(&[][..], |bytes| bytes);
    for part in [head.method.as_str().as_bytes(), target.as_bytes(), body] {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Digest(hash.digest128())
}

/// Reads the body whole, up to what the rule allows. Where it takes the body to find the rule, the largest limit of the
/// listener's rules holds, and the rule's own is looked at afterwards.
async fn read(
    worker: &Worker,
    listener: &Listener,
    settings: &Settings,
    life: &Life,
    head: &Head,
    body: Arriving,
    room: &Rc<Room>,
) -> Result<(Payload, Option<Matched>), Refusal> {
    let table = worker.table();
    let Allowed { length, too_large, deadline, rule, passes } = allowed(&table, listener, head)?;
    life.set_deadline(deadline);
    if passes {
        // Nobody knows whether its caller waits for an answer before it says more.
        life.streams();
        let rest = Outgoing::Rest { read: Bytes::new(), rest: body };
        return Ok((Payload::Once(Some(rest)), rule.map(|rule| (table, rule))));
    }
    let patience = settings.body_timeout.min(life.time_left(worker));
    let read = body::read(body, length, room, worker.timers(), patience).await;
    let read = read.map_err(|refusal| if head.grpc { not_whole(refusal) } else { refusal });
    let payload = match read? {
        Body::Whole(bytes) => Payload::Whole(bytes),
        Body::TooLarge { read, rest } => match too_large {
            TooLarge::Stream => Payload::Once(Some(Outgoing::Rest { read, rest })),
            TooLarge::Reject => return Err(body_too_large(length)),
        },
    };
    Ok((payload, rule.map(|rule| (table, rule))))
}

/// How long a body may be and take, as far as it can be said before it is read.
struct Allowed {
    length: u64,
    too_large: TooLarge,
    /// From the request's arrival.
    deadline: Duration,
    /// Place of the rule, where it takes no body to find it.
    rule: Option<usize>,
    /// A call of gRPC whose rule has nothing started over is passed on as it comes.
    passes: bool,
}

fn allowed(table: &LocalTable, listener: &Listener, head: &Head) -> Result<Allowed, Refusal> {
    let view = View::head_alone(head);
    let matched = decide::match_rule(&table.snapshot.table, listener.name(), &view);
    if view.body_was_asked_for() {
        let most = table.snapshot.table.listener(listener.name()).map_or(0, |listener| listener.buffer_limit);
        return Ok(Allowed {
            length: most,
            too_large: TooLarge::Reject,
            deadline: Duration::MAX,
            rule: None,
            passes: false,
        });
    }
    let rule = matched?;
    let too_large = if rule.key_needs_body() { TooLarge::Reject } else { rule.restart.too_large };
    Ok(Allowed {
        length: rule.restart.buffer_limit,
        too_large,
        deadline: rule.restart.deadline,
        rule: Some(rule.place as usize),
        passes: head.grpc && rule.restart.policy == RestartPolicy::Never && !rule.key_needs_body(),
    })
}

/// A call that came to no end in time may be one that waits for answers first.
fn not_whole(refusal: Refusal) -> Refusal {
    if refusal.reason != Reason::RequestTimeout {
        return refusal;
    }
    let hint = "; a call whose caller streams needs a rule with restart.policy Never, which passes it on as it comes";
    Refusal { detail: refusal.detail + hint, ..refusal }
}

fn malformed(detail: &str) -> Refusal {
    Refusal { reason: Reason::Malformed, detail: detail.to_owned() }
}
