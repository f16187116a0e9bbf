//! Reading a whole ledger: every segment in order, folded into transactions, and judged. It writes nothing and needs no
//! lock, so that a person may read while a router writes; what a router does with what it read is in `opening`.

use std::collections::{BTreeMap, HashMap};
use std::io;

use bulkhead_protocol::TransactionId;

use crate::damage::{Damage, TornTail};
use crate::disk::Disk;
use crate::effect::{self, Effect, State};
use crate::frame::{FORMAT, Wrong};
use crate::judgement::{Judgement, Reading, Testimony, judge};
use crate::record::Record;
use crate::segment::{self, ASIDE, Scan};
use crate::view::{Filter, ListView, Newest, TransactionView};

/// Which effects are kept of those that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    All,
    /// Those of one transaction.
    One(TransactionId),
    /// Those that can be asked for again or that a person has to see to.
    Standing,
}

/// What a ledger holds.
#[derive(Debug, Default)]
pub struct History {
    pub transactions: HashMap<TransactionId, Vec<Effect>>,
    pub damages: Vec<Damage>,
    pub torn: Vec<TornTail>,
    /// Segments with damage that were put aside when nothing in them was needed any longer.
    pub aside: Vec<String>,
    pub(crate) segments: BTreeMap<u64, Segment>,
    pub(crate) unended: Vec<(u64, u64)>,
    pub(crate) oldest: u64,
    /// The latest time in any record.
    pub(crate) newest_ms: u64,
}

/// What is known of a segment that is there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment {
    pub(crate) newest_ms: u64,
    pub(crate) bytes: u64,
    pub(crate) damaged: bool,
}

/// Why a ledger cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the ledger's folder cannot be read: {0}")]
    Folder(#[from] io::Error),
    #[error(
        "{name} has format {found}, and this program knows {FORMAT}: a newer Bulkhead wrote it; use that, or keep the \
         folder aside and start with an empty one"
    )]
    Format { name: String, found: u32 },
}

/// Reads all segments that are there.
///
/// # Errors
/// When the folder cannot be listed, or a segment is of another format. All else that is wrong is in
/// [`History::damages`].
pub(crate) fn read(disk: &dyn Disk, keep: Keep) -> Result<History, ReadError> {
    let mut history = History::default();
    let mut testimony = Testimony::default();
    let mut readings: BTreeMap<u64, Reading> = BTreeMap::new();
    // A router may add segments meanwhile; the list ends with one that holds nothing new.
    loop {
        let names = disk.list()?;
        history.aside = names.iter().filter(|name| name.ends_with(ASIDE)).cloned().collect();
        let known = readings.last_key_value().map_or(0, |(last, _)| *last);
        let mut new: Vec<_> = names.iter().filter_map(|name| segment::sequence_of(name)).collect();
        new.retain(|sequence| *sequence > known);
        new.sort_unstable();
        if new.is_empty() {
            break;
        }
        for sequence in new {
            let name = segment::file_name(sequence);
            let reading = match disk.read(&name) {
                Ok(bytes) => Ok(history.fold(&bytes, sequence, keep, &mut testimony)),
                // Compacted since it was listed, which a later segment says; else it is missing.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Err(error.to_string()),
            };
            if let Some(found) = reading.as_ref().ok().and_then(foreign) {
                return Err(ReadError::Format { name, found });
            }
            readings.insert(sequence, reading);
        }
    }
    history.conclude(&readings, &testimony);
    Ok(history)
}

fn foreign(scan: &Scan) -> Option<u32> {
    scan.flaws.iter().find_map(|flaw| match flaw.wrong {
        Wrong::Format(found) => Some(found),
        _ => None,
    })
}

impl History {
    /// What was read and matches, with what is to be said of the ledger.
    pub fn list(&self, filter: &Filter) -> ListView {
        let mut newest = Newest::new(*filter);
        self.transactions.iter().for_each(|(id, effects)| newest.offer(id, effects.iter()));
        let view = |id: &TransactionId| Some(TransactionView::new(id, self.transactions.get(id)?));
        let aside = self.aside.iter().map(|name| {
            format!("{name} was damaged and is no longer needed; remove it once you have looked at it")
        });
        ListView {
            damages: self.damages.iter().map(ToString::to_string).collect(),
            notes: self.torn.iter().map(ToString::to_string).chain(aside).collect(),
            ..newest.list(view)
        }
    }

    /// Takes in one segment.
    fn fold(&mut self, bytes: &[u8], sequence: u64, keep: Keep, testimony: &mut Testimony) -> Scan {
        let scan = segment::scan(bytes, sequence, |record| match &record {
            Record::Ended { segment, trusted_to } => {
                testimony.ended.insert(*segment, *trusted_to);
            }
            Record::Compacted { through } => testimony.oldest = testimony.oldest.max(through + 1),
            _ => self.take(&record, sequence, keep),
        });
        if let Some(header) = &scan.header {
            testimony.oldest = testimony.oldest.max(header.oldest);
        }
        if keep == Keep::Standing {
            // What a later record could change is kept: only open and unknown effects change.
            self.transactions.retain(|id, effects| {
                effects.retain(|effect| stands(id, effect));
                !effects.is_empty()
            });
        }
        self.newest_ms = self.newest_ms.max(scan.newest_ms);
        let segment = Segment { newest_ms: scan.newest_ms, bytes: scan.length, damaged: false };
        self.segments.insert(sequence, segment);
        scan
    }

    fn take(&mut self, record: &Record, sequence: u64, keep: Keep) {
        let Some(id) = effect::transaction(record) else { return };
        if matches!(keep, Keep::One(wanted) if wanted != id) {
            return;
        }
        let effects = self.transactions.entry(id).or_insert_with(|| Vec::with_capacity(1));
        effect::apply(effects, record, sequence);
    }

    fn conclude(&mut self, readings: &BTreeMap<u64, Reading>, testimony: &Testimony) {
        let Judgement { damages, torn, unended } = judge(readings, testimony);
        for damage in &damages {
            if damage.kind != crate::damage::Kind::Missing {
                self.segments.entry(damage.segment).or_default().damaged = true;
            }
        }
        self.oldest = testimony.oldest.max(1);
        (self.damages, self.torn, self.unended) = (damages, torn, unended);
    }
}

/// Whether an effect says anything to whoever asks for its transaction again. Who is answered for a router's own id
/// never asks.
pub(crate) fn stands(id: &TransactionId, effect: &Effect) -> bool {
    match effect.state {
        State::Open | State::Unknown => true,
        State::Answered { .. } => id.is_from_key(),
        State::NotSent => false,
    }
}
