//! Reading a request's body whole, within its limit, its time and the memory that there is.

use std::rc::Rc;
use std::time::Duration;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bytes::{Bytes, BytesMut};

use crate::edge::{Arriving, Unreadable};
use crate::listener::Room;
use crate::timers::Timers;

/// A body, as far as it was read.
pub(crate) enum Body {
    Whole(Bytes),
    /// Larger than the limit: what was read of it, and the rest.
    TooLarge {
        read: Bytes,
        rest: Arriving,
    },
}

/// Reads up to `limit` bytes.
///
/// # Errors
/// `RouterOverloaded` when there is no memory for it, `RequestTimeout` when it does not come in time, `Malformed` when it
/// breaks off.
pub(crate) async fn read(
    mut body: Arriving,
    limit: u64,
    room: &Room,
    timers: &Rc<Timers>,
    patience: Duration,
) -> Result<Body, Refusal> {
    match body.declared() {
        Some(0) => return Ok(Body::Whole(Bytes::new())),
        Some(length) if length > limit => return Ok(Body::TooLarge { read: Bytes::new(), rest: body }),
        Some(length) if !room.grow(length) => return Err(overloaded()),
        Some(_) | None => {}
    }
    match timers.within(patience, collect(&mut body, limit, room)).await {
        Some(Ok(Collected { bytes: read, over: true })) => Ok(Body::TooLarge { read, rest: body }),
        Some(Ok(Collected { bytes, over: false })) => Ok(Body::Whole(bytes)),
        Some(Err(refusal)) => Err(refusal),
        None => {
            let detail =
                "the body did not arrive whole in time (limits.bodyTimeout and the rule's restart.deadline)";
            Err(Refusal { reason: Reason::RequestTimeout, detail: detail.to_owned() })
        }
    }
}

struct Collected {
    bytes: Bytes,
    over: bool,
}

async fn collect(body: &mut Arriving, limit: u64, room: &Room) -> Result<Collected, Refusal> {
    let broken = |error: Unreadable| Refusal { reason: Reason::Malformed, detail: error.to_string() };
    let mut pieces = Pieces::of(body.declared());
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(broken)?;
        if body.declared().is_some_and(|left| left > 0) {
            // All of it fits, and is read to where it is kept.
            pieces.push(piece);
            body.rest(pieces.open()).await.map_err(broken)?;
            break;
        }
        let length = (pieces.len() + piece.len()) as u64;
        if length > room.held() && !room.grow(length - room.held()) {
            return Err(overloaded());
        }
        pieces.push(piece);
        if length > limit {
            return Ok(Collected { bytes: pieces.join(), over: true });
        }
    }
    Ok(Collected { bytes: pieces.join(), over: false })
}

/// What has arrived of a body. One that comes in a single piece is not copied; further ones are put behind it, since
/// small pieces kept by themselves would take many times the memory that is reserved for their bytes.
struct Pieces {
    /// Of the whole, where the sender said so; no more than the limit.
    length: usize,
    first: Bytes,
    joined: BytesMut,
}

impl Pieces {
    fn of(declared: Option<u64>) -> Self {
        let length = declared.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        Self { length, first: Bytes::new(), joined: BytesMut::new() }
    }

    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
        } else {
            self.open().extend_from_slice(&piece);
        }
    }

    /// Where further pieces go.
    fn open(&mut self) -> &mut BytesMut {
        // All at once: a buffer that grows takes up to twice its bytes.
        self.joined.reserve(self.length.saturating_sub(self.joined.len()));
        self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        &mut self.joined
    }

    fn join(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}

fn overloaded() -> Refusal {
    Refusal {
        reason: Reason::RouterOverloaded,
        detail: "the memory for request bodies is used up (limits.bufferTotal)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_small_pieces_takes_no_more_memory_than_its_bytes_by_a_small_factor() {
        let mut pieces = Pieces::of(None);
        // Each by itself would take an allocation and a handle of four words.
        (0..10_000).for_each(|place: u32| pieces.push(Bytes::copy_from_slice(&[place as u8])));
        assert!(pieces.first.is_empty() && pieces.joined.capacity() <= 2 * 10_000);
        let expected: Vec<u8> = (0..10_000).map(|place: u32| place as u8).collect();
        assert!(pieces.join() == expected);
    }

    #[test]
    fn a_body_of_known_length_takes_its_length() {
        let mut pieces = Pieces::of(Some(65_536));
        (0..8).for_each(|_| pieces.push(Bytes::from_static(&[b'b'; 8_192])));
        assert_eq!((pieces.joined.len(), pieces.joined.capacity()), (65_536, 65_536));
    }

    #[test]
    fn a_body_that_comes_at_once_is_not_copied() {
        let whole = Bytes::from_static(b"at once");
        let mut pieces = Pieces::of(Some(7));
        pieces.push(whole.clone());
        assert_eq!(pieces.join().as_ptr(), whole.as_ptr());
    }
}
