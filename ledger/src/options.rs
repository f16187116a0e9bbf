//! What whoever opens a ledger chooses.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// The ledger's folder, its own alone. It is made if it is not there.
    pub dir: PathBuf,
    /// How long the standing of a finished transaction is kept, from its last outcome. A second chance of the client that
    /// comes later is a new transaction.
    pub window: Duration,
    /// A segment is ended once it is as large as this; 4 KiB and more. A single batch may go past it.
    pub segment_bytes: u64,
    /// Free bytes that are left for outcomes: below it no intent is accepted. On a small file system it is 1 % of that.
    pub reserve_bytes: u64,
    /// Intents that may wait for the disk at once; past it they are refused.
    pub queue: usize,
    /// Transactions of which the standing can be held in memory (`docs/ledger.md` has the bytes of each); past it intents
    /// are refused.
    pub transactions: usize,
    /// How long after a failure a new segment is tried.
    pub retry: Duration,
}

impl Options {
    /// The defaults: a window of an hour, segments of 64 MiB, a reserve of 64 MiB, 16,384 waiting intents, 2,000,000
    /// transactions, a new segment tried every second.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            window: Duration::from_secs(3600),
            segment_bytes: 64 << 20,
            reserve_bytes: 64 << 20,
            queue: 16_384,
            transactions: 2_000_000,
            retry: Duration::from_secs(1),
        }
    }
}
