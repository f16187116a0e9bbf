//! From a folder to a ledger that is open: what was read becomes what is held, and what the first segment has to say.

use std::sync::Arc;

use crate::compaction::Segments;
use crate::damage::{Damage, TornTail};
use crate::disk::{Disk, FolderError};
use crate::effect::State;
use crate::history::{self, History, Keep, ReadError};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::record::{Outcome, Record};
use crate::shared::Shared;
use crate::time::{Clock, Time};
use crate::writer::{Inherited, Writer};

/// What the start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    pub segments: usize,
    pub bytes: u64,
    /// Transactions that have a standing.
    pub transactions: usize,
    /// Effects that a process left open: they are unknown now.
    pub left_open: usize,
    /// Effects that are unknown, those included.
    pub unknown: usize,
    /// Where the ledger is not what was written to it. Nothing was repaired.
    pub damages: Vec<Damage>,
    /// Ends of segments that a crash cut, and that nobody relied on.
    pub torn: Vec<TornTail>,
    /// Files of damaged segments that were put aside and wait for a person.
    pub aside: Vec<String>,
}

/// Why a ledger cannot be opened. Damage is no reason.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the ledger's thread cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("the ledger's metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Reads what is there and makes the writer, which has begun its own segment.
pub(crate) fn open(
    disk: Box<dyn Disk>,
    options: &Options,
    clock: Arc<dyn Clock>,
) -> Result<(Arc<Shared>, Writer, Recovery), OpenError> {
    let mut history = history::read(&*disk, Keep::Standing)?;
    let metrics = Metrics::new()?;
    let shared = Arc::new(Shared::new(options, Time::start(clock, history.newest_ms), metrics));
    let now_ms = shared.time.now_ms();
    let owed = end_what_was_left_open(&mut history, now_ms);
    let recovery = recovery(&history, owed.len());
    recovery.damages.iter().for_each(|damage| tracing::error!(%damage, "the ledger is damaged"));
    recovery.torn.iter().for_each(|torn| tracing::warn!(%torn, "the ledger has a torn tail"));
    shared.metrics.damages.set(i64::try_from(recovery.damages.len()).unwrap_or(i64::MAX));
    for (id, effects) in history.transactions {
        shared.index.load(id, effects, now_ms);
    }
    shared.index.loaded();
    let next_sequence = history.segments.last_key_value().map_or(1, |(last, _)| last + 1);
    let inherited = Inherited {
        // One that is missing at the end keeps its number.
        next_sequence: history.damages.iter().map(|damage| damage.segment + 1).fold(next_sequence, u64::max),
        segments: Segments::new(history.segments, history.oldest),
        unended: history.unended,
        owed,
    };
    let writer = Writer::start(disk, Arc::clone(&shared), options.clone(), inherited);
    Ok((shared, writer, recovery))
}

/// Whoever held these is gone, so that nobody will say what became of them.
fn end_what_was_left_open(history: &mut History, at_ms: u64) -> Vec<Record> {
    let mut owed = Vec::new();
    for (id, effects) in &mut history.transactions {
        for effect in effects.iter_mut().filter(|effect| effect.state == State::Open) {
            effect.state = State::Unknown;
            effect.since_ms = at_ms;
            owed.push(Record::Outcome { id: *id, n: effect.n, at_ms, outcome: Outcome::Unknown });
        }
    }
    owed
}

fn recovery(history: &History, left_open: usize) -> Recovery {
    let effects = history.transactions.values().flatten();
    Recovery {
        segments: history.segments.len(),
        bytes: history.segments.values().map(|segment| segment.bytes).sum(),
        transactions: history.transactions.len(),
        left_open,
        unknown: effects.filter(|effect| effect.state == State::Unknown).count(),
        damages: history.damages.clone(),
        torn: history.torn.clone(),
        aside: history.aside.clone(),
    }
}
