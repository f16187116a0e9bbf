//! Why the ledger takes no intent, and the switch that says so to everybody at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::effect::State;

/// Why an intent was not taken. Nothing of it counts: the effect may not be sent, and leaves no standing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{waiting} intents wait for the ledger's disk already; it is too slow for the load")]
    Overloaded { waiting: usize },
    #[error(
        "the ledger holds {transactions} transactions in memory, its limit; give it a larger limit or a shorter window"
    )]
    Full { transactions: usize },
    #[error("the ledger's disk has {free} bytes free, less than its reserve of {reserve}; make room on it")]
    DiskLow { free: u64, reserve: u64 },
    #[error("the ledger cannot be written: {0}; a new segment is tried every second")]
    Disk(Arc<str>),
    #[error("the ledger is closed, because the process stops")]
    Closed,
    /// Each effect is intended once, unless it was not sent.
    #[error("this effect has an intent already, and is {0:?}")]
    Known(State),
    #[error(
        "{0}: names in the ledger are printable, of at most 50 bytes for a cell and 253 for a destination"
    )]
    Name(Arc<str>),
}

impl Refusal {
    pub const REASONS: [&str; 7] = ["Overloaded", "Full", "DiskLow", "DiskFailed", "Closed", "Known", "Name"];

    /// One CamelCase word, for a metric's label and a problem document.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Overloaded { .. } => "Overloaded",
            Self::Full { .. } => "Full",
            Self::DiskLow { .. } => "DiskLow",
            Self::Disk(_) => "DiskFailed",
            Self::Closed => "Closed",
            Self::Known(_) => "Known",
            Self::Name(_) => "Name",
        }
    }
}

/// Whether intents are taken. One atomic load while all is well.
#[derive(Debug, Default)]
pub(crate) struct Accepting {
    refuses: AtomicBool,
    why: Mutex<Option<Refusal>>,
}

impl Accepting {
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.refuses.load(Ordering::Acquire) {
            return Ok(());
        }
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// From now on refuses for this reason, or accepts. A closed ledger stays closed. Says whether that is a change of
    /// reason.
    pub(crate) fn set(&self, why: Option<Refusal>) -> bool {
        let mut held = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if *held == Some(Refusal::Closed) {
            return false;
        }
        let reason = |refusal: &Option<Refusal>| refusal.as_ref().map(Refusal::reason);
        let changed = reason(&held) != reason(&why);
        self.refuses.store(why.is_some(), Ordering::Release);
        *held = why;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_closed_stays_closed_and_changes_are_told_once() {
        let accepting = Accepting::default();
        assert_eq!(accepting.check(), Ok(()));
        assert!(accepting.set(Some(Refusal::Disk("first".into()))));
        assert!(!accepting.set(Some(Refusal::Disk("second".into()))));
        assert_eq!(accepting.check(), Err(Refusal::Disk("second".into())));
        assert!(accepting.set(None));
        assert!(accepting.set(Some(Refusal::Closed)));
        assert!(!accepting.set(None));
        assert_eq!(accepting.check(), Err(Refusal::Closed));
    }
}
