//! Transactions under way by the ids of their clients' keys, over all threads of the process, so that a repetition joins
//! the first or is told of it. Requests without a key never come here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_crds::router::OnRepeat;
use bulkhead_protocol::{Reason, TransactionId};
use bulkhead_routing::Refusal;
use tokio::sync::watch;

use crate::message::Held;

/// Locks among which ids are spread.
const SHARDS: usize = 64;

/// What a request is, so that the same key with another one is told apart. A hash of method, target and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u128);

/// How the first of them ended, for those that joined it.
#[derive(Clone)]
pub(crate) enum Ended {
    Answered(Arc<Held>),
    Refused(Refusal),
    /// The answer was too long to be kept, or went out piece by piece.
    NotKept,
}

type Shard = Mutex<HashMap<TransactionId, Flight>>;

struct Flight {
    digest: Digest,
    ended: watch::Receiver<Option<Ended>>,
}

/// Every transaction under way that has a key.
pub(crate) struct UnderWay(Vec<Shard>);

impl Default for UnderWay {
    fn default() -> Self {
        Self(std::iter::repeat_with(Shard::default).take(SHARDS).collect())
    }
}

/// The first request of an id; the id is free again when this goes.
pub(crate) struct Claim {
    under_way: Arc<UnderWay>,
    id: TransactionId,
    ended: watch::Sender<Option<Ended>>,
}

/// What a request with a key is.
pub(crate) enum Claimed {
    First(Claim),
    /// The first has ended so.
    Joined(Ended),
}

impl UnderWay {
    /// Claims the id, or waits with those that have it for its end.
    ///
    /// # Errors
    /// `KeyReused` when it is another request's, `InFlight` where the listener lets nobody join.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        id: TransactionId,
        digest: Digest,
        on_repeat: OnRepeat,
    ) -> Result<Claimed, Refusal> {
        loop {
            let mut ended = match self.try_claim(id, digest, on_repeat)? {
                Ok(claim) => return Ok(Claimed::First(claim)),
                Err(ended) => ended,
            };
            // Without an end the first was given up by its client before anything happened: the next takes its place.
            if let Ok(end) = ended.wait_for(Option::is_some).await
                && let Some(end) = end.clone()
            {
                return Ok(Claimed::Joined(end));
            }
        }
    }

    fn try_claim(
        self: &Arc<Self>,
        id: TransactionId,
        digest: Digest,
        on_repeat: OnRepeat,
    ) -> Result<Result<Claim, watch::Receiver<Option<Ended>>>, Refusal> {
        let mut shard = self.shard(&id).lock().unwrap_or_else(PoisonError::into_inner);
        match shard.entry(id) {
            Entry::Vacant(place) => {
                let (sender, ended) = watch::channel(None);
                place.insert(Flight { digest, ended });
                Ok(Ok(Claim { under_way: Arc::clone(self), id, ended: sender }))
            }
            Entry::Occupied(flight) if flight.get().digest != digest => Err(Refusal {
                reason: Reason::KeyReused,
                detail: "a request with this idempotency key and another method, target or body is under way"
                    .to_owned(),
            }),
            Entry::Occupied(_) if on_repeat == OnRepeat::Conflict => Err(in_flight()),
            Entry::Occupied(flight) => Ok(Err(flight.get().ended.clone())),
        }
    }

    fn shard(&self, id: &TransactionId) -> &Shard {
        // Ids are hashes, so that any of their bytes spreads them.
        &self.0[usize::from(id.as_bytes()[15]) % SHARDS]
    }
}

pub(crate) fn in_flight() -> Refusal {
    Refusal {
        reason: Reason::InFlight,
        detail: "a request with this idempotency key is under way; ask for it again later".to_owned(),
    }
}

impl Claim {
    /// Tells those that joined.
    pub(crate) fn end(self, ended: Ended) {
        self.ended.send_replace(Some(ended));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.under_way.shard(&self.id).lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Digest = Digest(1);

    fn id() -> TransactionId {
        TransactionId::of_key("http", b"", b"7")
    }

    async fn first(under_way: &Arc<UnderWay>) -> Claim {
        match under_way.claim(id(), ONE, OnRepeat::Join).await {
            Ok(Claimed::First(claim)) => claim,
            _ => panic!("the id is free"),
        }
    }

    async fn refusal(under_way: &Arc<UnderWay>, digest: Digest, on_repeat: OnRepeat) -> Option<Reason> {
        under_way.claim(id(), digest, on_repeat).await.err().map(|refusal| refusal.reason)
    }

    #[tokio::test]
    async fn a_repetition_is_refused_or_waits_for_the_first() {
        let under_way = Arc::new(UnderWay::default());
        let claim = first(&under_way).await;
        assert_eq!(refusal(&under_way, ONE, OnRepeat::Conflict).await, Some(Reason::InFlight));
        assert_eq!(refusal(&under_way, Digest(2), OnRepeat::Join).await, Some(Reason::KeyReused));
        let joins = under_way.claim(id(), ONE, OnRepeat::Join);
        let ends = async { claim.end(Ended::NotKept) };
        let (joined, ()) = tokio::join!(joins, ends);
        assert!(matches!(joined, Ok(Claimed::Joined(Ended::NotKept))));
        first(&under_way).await;
    }

    #[tokio::test]
    async fn who_joined_takes_the_place_of_a_first_that_was_given_up() {
        let under_way = Arc::new(UnderWay::default());
        let claim = first(&under_way).await;
        let joins = under_way.claim(id(), ONE, OnRepeat::Join);
        let (joined, ()) = tokio::join!(joins, async { drop(claim) });
        assert!(matches!(joined, Ok(Claimed::First(_))));
    }
}
