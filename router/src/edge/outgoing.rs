//! A body on its way to a cell or a destination.

use bytes::Bytes;

use super::request_body::Arriving;

pub(crate) enum Outgoing {
    /// Held whole: it can be sent again.
    Whole(Bytes),
    /// What was read already, then the rest as it arrives: it can be sent once.
    Rest { read: Bytes, rest: Arriving },
}

impl Outgoing {
    /// Its length, where it is known.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Rest { read, rest } => rest.declared().map(|left| read.len() as u64 + left),
        }
    }

    /// What can be sent at once.
    pub(super) fn begin(&self) -> &Bytes {
        match self {
            Self::Whole(bytes) | Self::Rest { read: bytes, .. } => bytes,
        }
    }
}
