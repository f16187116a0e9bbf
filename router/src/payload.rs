//! What of a request attempts send, and send again.

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bytes::Bytes;

use crate::edge::Outgoing;

/// A request's body, in the form in which attempts send it.
pub(crate) enum Payload {
    Whole(Bytes),
    /// Can be sent once; taken while it is under way.
    Once(Option<Outgoing>),
}

impl Payload {
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Once(_) => None,
        }
    }

    pub(crate) fn take(&mut self) -> Outgoing {
        match self {
            Self::Whole(bytes) => Outgoing::Whole(bytes.clone()),
            Self::Once(body) => body.take().unwrap_or(Outgoing::Whole(Bytes::new())),
        }
    }

    /// What an attempt did not begin to send may go out in another.
    pub(crate) fn give_back(&mut self, unsent: Option<Outgoing>) {
        if let Self::Once(body) = self {
            *body = unsent;
        }
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Once(body) => body.is_some(),
        }
    }
}

pub(crate) fn body_too_large(limit: u64) -> Refusal {
    let detail = format!("the body is larger than {limit} bytes (restart.bufferLimit)");
    Refusal { reason: Reason::BodyTooLarge, detail }
}
