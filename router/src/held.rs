//! Holding a cell's answer until it is whole, so that one that breaks off can still be replaced: the first byte to the
//! client commits. Long answers and streams are passed on as they come.

use std::rc::Rc;
use std::time::Duration;

use bulkhead_crds::policy::RestartPolicy;
use bulkhead_http1::Fields;
use bulkhead_protocol::Reason;
use bulkhead_routing::transaction::Failure;
use bytes::{Bytes, BytesMut};

use crate::attempt::Lease;
use crate::edge::{Collected, UpgradedCell, UpstreamBody, UpstreamHead};
use crate::listener::Room;
use crate::metrics::CellMetrics;
use crate::timers::Timers;

/// Bytes of an answer's body that are held.
const MOST: usize = 64 * 1024;
/// Media types of answers that go on for as long as somebody listens.
const STREAMS: [&str; 6] = [
    "text/event-stream",
    "application/grpc",
    "application/json-seq",
    "application/jsonl",
    "application/x-ndjson",
    "multipart/x-mixed-replace",
];
/// By which an answer of any type says `no` to being held, as many servers say it to the proxies before them.
const BUFFERING: &str = "x-accel-buffering";

/// A cell's answer, ready for the client.
pub(crate) struct Ready {
    pub(crate) status: http::StatusCode,
    pub(crate) fields: Fields,
    pub(crate) body: ReadyBody,
    pub(crate) counts: Rc<CellMetrics>,
}

pub(crate) enum ReadyBody {
    Whole {
        data: Bytes,
        trailers: Option<Fields>,
    },
    /// What has arrived, and the rest with its lease attached.
    Stream {
        begun: Bytes,
        rest: UpstreamBody,
    },
    /// The pod agreed to leave HTTP.
    Upgrade(UpgradedCell, Lease),
}

/// Who wants the answer held.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) policy: RestartPolicy,
    /// Whether others may have joined the transaction, who get the same answer.
    pub(crate) shared: bool,
    /// For how long.
    pub(crate) left: Duration,
}

/// Holds the answer as far as it is wanted.
///
/// # Errors
/// `UpstreamReset` when it breaks off while it is held, `Timeout` when it does not become whole in time.
pub(crate) async fn hold(
    head: UpstreamHead,
    lease: Lease,
    wanted: Wanted,
    room: &Room,
    timers: &Rc<Timers>,
) -> Result<Ready, Failure> {
    let counts = Rc::clone(&lease.counts);
    let UpstreamHead { status, fields, mut body, upgrade } = head;
    if let Some(upgraded) = upgrade {
        return Ok(Ready { status, fields, body: ReadyBody::Upgrade(upgraded, lease), counts });
    }
    let announced = body.declared();
    body.attach(lease);
    if !is_held(wanted, announced, &fields) || !announced.is_none_or(|length| room.grow(length)) {
        return Ok(Ready {
            status,
            fields,
            body: ReadyBody::Stream { begun: Bytes::new(), rest: body },
            counts,
        });
    }
    let mut begun = BytesMut::new();
    let grow = |length: usize| announced.is_some() || room.grow(length as u64);
    let body = match timers.within(wanted.left, body.collect(MOST, &mut begun, grow)).await {
        Some(Collected::Whole { data, trailers }) => {
            if let Some(lease) = body.into_lease() {
                lease.finish(true);
            }
            ReadyBody::Whole { data, trailers }
        }
        Some(Collected::More(begun)) => ReadyBody::Stream { begun, rest: body },
        Some(Collected::Broken) => return Err(Failure::Unknown(Reason::UpstreamReset)),
        Some(Collected::Overdue) => return Err(Failure::Unknown(Reason::CellDisabled)),
        None if wanted.policy == RestartPolicy::UntilPointOfNoReturn => {
            return Err(Failure::Unknown(Reason::Timeout));
        }
        // Whoever asked for no restarts sees what there is.
        None => ReadyBody::Stream { begun: begun.freeze(), rest: body },
    };
    Ok(Ready { status, fields, body, counts })
}

/// One of known length that is short; where restarts or others count on it also one of unknown length that is no stream.
fn is_held(wanted: Wanted, announced: Option<u64>, fields: &Fields) -> bool {
    let media = fields.get("content-type").unwrap_or_default();
    let is_stream = STREAMS.iter().any(|stream| {
        media.get(..stream.len()).is_some_and(|start| start.eq_ignore_ascii_case(stream.as_bytes()))
    });
    let opts_out = fields.get(BUFFERING) == Some(b"no");
    let short = announced.is_none_or(|length| length <= MOST as u64);
    let any_length = wanted.shared || wanted.policy == RestartPolicy::UntilPointOfNoReturn;
    let wanted = any_length || (announced.is_some() && wanted.policy != RestartPolicy::Never);
    wanted && short && !is_stream && !opts_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        policy: RestartPolicy,
        shared: bool,
        announced: Option<u64>,
        media: &'static str,
        expected: bool,
    ) {
        let mut fields = Fields::new();
        fields.push("Content-Type", media.as_bytes());
        let wanted = Wanted { policy, shared, left: Duration::ZERO };
        assert_eq!(
            is_held(wanted, announced, &fields),
            expected,
            "{policy:?} {shared} {announced:?} {media}"
        );
        fields.push(BUFFERING, b"no");
        assert!(!is_held(wanted, announced, &fields), "{policy:?} {shared} {announced:?} {media}");
    }

    #[test]
    fn short_answers_are_held_and_streams_never_are() {
        use RestartPolicy::{Never, SafeOnly, UntilPointOfNoReturn};
        let json = "application/json";
        check(SafeOnly, false, Some(MOST as u64), json, true);
        check(SafeOnly, false, Some(MOST as u64 + 1), json, false);
        check(SafeOnly, false, None, json, false);
        check(SafeOnly, true, None, json, true);
        check(UntilPointOfNoReturn, false, None, json, true);
        check(UntilPointOfNoReturn, false, None, "Text/Event-Stream; charset=utf-8", false);
        check(UntilPointOfNoReturn, true, None, "application/grpc+proto", false);
        check(UntilPointOfNoReturn, false, Some(1), "application/x-ndjson", false);
        check(Never, false, Some(1), json, false);
        check(Never, true, None, json, true);
    }
}
