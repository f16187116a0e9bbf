//! Reading a request's body whole, within its limit, its time and the memory that there is.

use std::collections::VecDeque;
use std::time::Duration;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bytes::{Bytes, BytesMut};
use tokio::time::timeout;

use crate::edge::Arriving;
use crate::listener::Reservation;

/// A body, as far as it was read.
pub(crate) enum Body {
    Whole(Bytes),
    /// Larger than the limit: what was read of it, and the rest.
    TooLarge {
        read: VecDeque<Bytes>,
        rest: Arriving,
    },
}

/// Bytes of a refused body that are read so that the client gets to see the refusal, and for how long.
const LINGER_BYTES: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_secs(1);

/// Reads up to `limit` bytes.
///
/// # Errors
/// `RouterOverloaded` when there is no memory for it, `RequestTimeout` when it does not come in time, `Malformed` when it
/// breaks off.
pub(crate) async fn read(
    mut body: Arriving,
    limit: u64,
    room: &mut Reservation<'_>,
    patience: Duration,
) -> Result<Body, Refusal> {
    match body.declared() {
        Some(0) => return Ok(Body::Whole(Bytes::new())),
        Some(length) if length > limit => return Ok(Body::TooLarge { read: VecDeque::new(), rest: body }),
        Some(length) if !room.grow(length) => return Err(refuse(body, overloaded())),
        Some(_) | None => {}
    }
    match timeout(patience, collect(&mut body, limit, room)).await {
        Ok(Ok(Collected { chunks, over: true })) => Ok(Body::TooLarge { read: chunks, rest: body }),
        Ok(Ok(Collected { chunks, over: false })) => Ok(Body::Whole(join(chunks))),
        Ok(Err(refusal)) => Err(refuse(body, refusal)),
        Err(_) => {
            let detail = format!("the body did not arrive whole within {patience:?}");
            Err(Refusal { reason: Reason::RequestTimeout, detail })
        }
    }
}

struct Collected {
    chunks: VecDeque<Bytes>,
    over: bool,
}

async fn collect(body: &mut Arriving, limit: u64, room: &mut Reservation<'_>) -> Result<Collected, Refusal> {
    let mut chunks = VecDeque::new();
    let mut length = 0;
    while let Some(chunk) = body.next().await {
        let chunk =
            chunk.map_err(|error| Refusal { reason: Reason::Malformed, detail: error.to_string() })?;
        length += chunk.len() as u64;
        chunks.push_back(chunk);
        if length > room.held() && !room.grow(length - room.held()) {
            return Err(overloaded());
        }
        if length > limit {
            return Ok(Collected { chunks, over: true });
        }
    }
    Ok(Collected { chunks, over: false })
}

fn overloaded() -> Refusal {
    Refusal {
        reason: Reason::RouterOverloaded,
        detail: "the memory for request bodies is used up (limits.bufferTotal)".to_owned(),
    }
}

fn join(mut chunks: VecDeque<Bytes>) -> Bytes {
    if chunks.len() <= 1 {
        return chunks.pop_front().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
    whole.freeze()
}

fn refuse(body: Arriving, refusal: Refusal) -> Refusal {
    linger(body);
    refusal
}

/// Reads on for a moment in the background: closing on unread bytes would reset the connection, and the client might
/// never see why.
pub(crate) fn linger(mut body: Arriving) {
    tokio::task::spawn_local(async move {
        let mut left = LINGER_BYTES;
        let _ = timeout(LINGER, async {
            while let Some(Ok(chunk)) = body.next().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    return;
                }
            }
        })
        .await;
    });
}
