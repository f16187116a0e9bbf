//! Tests of the ledger as a whole. Most drive the writer job by job on a disk that fails when it is told to, so that
//! nothing depends on how fast a thread is; `real` has the thread and the file system.

mod compaction;
mod crashes;
mod damage;
mod failures;
mod fault_disk;
mod model;
mod real;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::TransactionId;
use futures::FutureExt;

use self::fault_disk::FaultDisk;
use crate::ledger::{Intended, Ledger, ResolveError};
use crate::opening::{self, Recovery};
use crate::options::Options;
use crate::queue::Taken;
use crate::record::{Intent, Outcome, Resolution};
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::time::manual::ManualClock;
use crate::writer::Writer;

const ANSWERED: Outcome = Outcome::Answered { status: Some(200) };

/// An id that a client may ask for again.
fn keyed(number: u8) -> TransactionId {
    id(8, number)
}

/// An id that a router made.
fn minted(number: u8) -> TransactionId {
    id(7, number)
}

fn id(version: u8, number: u8) -> TransactionId {
    let mut bytes = [number; 16];
    bytes[6] = version << 4;
    TransactionId::from_bytes(bytes)
}

fn intent(id: TransactionId, n: u32) -> Intent {
    Intent { id, n, attempt: 1, cell: "payments-a".into(), destination: "visa".into() }
}

/// Segments that hold a few records each, and a window that is never over unless time passes on purpose.
fn small() -> Options {
    Options { segment_bytes: 400, reserve_bytes: 0, ..Options::new("") }
}

/// A ledger whose writer moves only when it is told to.
struct Stage {
    ledger: Ledger,
    shared: Arc<Shared>,
    writer: Writer,
    clock: Arc<ManualClock>,
}

impl Stage {
    fn open(disk: &FaultDisk, options: &Options) -> (Self, Recovery) {
        Self::open_at(disk, options, ManualClock::at(1_000_000))
    }

    fn open_at(disk: &FaultDisk, options: &Options, clock: Arc<ManualClock>) -> (Self, Recovery) {
        let opened = opening::open(Box::new(disk.clone()), options, clock.clone());
        let (shared, writer, recovery) = opened.expect("the disk can be read");
        let ledger = Ledger::of(Arc::clone(&shared), true, None);
        (Self { ledger, shared, writer, clock }, recovery)
    }

    /// Lets the writer write what waits.
    fn pump(&mut self) {
        if let Taken::Jobs(jobs) = self.shared.queue.take(usize::MAX, Duration::ZERO) {
            self.writer.write(jobs);
        }
    }

    fn intend(&mut self, id: TransactionId, n: u32) -> Result<Intended, Refusal> {
        let ledger = self.ledger.clone();
        let mut intending = Box::pin(ledger.intend(intent(id, n)));
        if let Some(refused) = (&mut intending).now_or_never() {
            return refused;
        }
        self.pump();
        intending.now_or_never().expect("whoever waits is told")
    }

    fn resolve(&mut self, id: TransactionId, n: u32, resolution: Resolution) -> Result<(), ResolveError> {
        let ledger = self.ledger.clone();
        let mut resolving = Box::pin(ledger.resolve(id, n, resolution, "the scheme says so"));
        if let Some(refused) = (&mut resolving).now_or_never() {
            return refused;
        }
        self.pump();
        resolving.now_or_never().expect("whoever waits is told")
    }

    /// Intends an effect, ends it, and lets the writer write that.
    fn whole(&mut self, id: TransactionId, n: u32, outcome: Outcome) {
        self.intend(id, n).expect("is taken").end(outcome);
        self.pump();
    }

    fn close(mut self) {
        self.shared.queue.close();
        self.pump();
        self.writer.close();
    }
}
