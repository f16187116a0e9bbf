//! Damage to the ledger as a value: where, what, and what that may mean. Found by `judgement`; nothing here repairs.

use std::fmt;

use serde::Serialize;

use crate::frame::{FORMAT, Wrong};
use crate::segment::file_name;

/// A place where the ledger is not what was written to it. Nothing is repaired or deleted because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Damage {
    pub segment: u64,
    /// Bytes from the start of the segment's file.
    pub offset: u64,
    /// Bytes that could not be read; 0 where something is missing.
    pub length: u64,
    pub kind: Kind,
    /// Records that are lost, where those around the damage tell.
    pub lost: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// The segment's header is not that of this segment.
    Header,
    /// Bytes are no record, or a record does not follow the one before.
    Record,
    /// A record's checksum is wrong.
    Checksum,
    /// The file ends before the segment did.
    Truncated,
    /// Zeros stand where records were.
    Zeros,
    /// Something was written behind the segment's seal.
    BehindSeal,
    /// The file is not there, and no compaction deleted it.
    Missing,
    /// The operating system could not read the file.
    Unreadable(String),
}

impl Kind {
    pub(crate) fn of(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Short => Self::Truncated,
            Wrong::Zeros => Self::Zeros,
            // One of another format ends the reading before it comes to this.
            Wrong::Header | Wrong::Format(_) => Self::Header,
            Wrong::Length | Wrong::Record => Self::Record,
            Wrong::Checksum => Self::Checksum,
        }
    }

    /// What may follow from it.
    pub const fn meaning(&self) -> &'static str {
        match self {
            Self::Header => "its records were read all the same",
            Self::Record | Self::Checksum => {
                "an intent that is lost lets its transaction be attempted again; an outcome that is lost leaves its \
                 effect unknown. At the very end of the newest segment it may be a write that a power failure cut, of \
                 which nothing was acknowledged"
            }
            Self::Truncated | Self::Zeros | Self::Missing | Self::Unreadable(_) => {
                "transactions whose intents are lost may be attempted again; only the destination's duplicate check \
                 stands between them and a second effect"
            }
            Self::BehindSeal => "somebody else wrote to this file; what stands before the seal is whole",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, offset, length, kind, lost } = self;
        let name = file_name(*segment);
        match kind {
            Kind::Missing => write!(f, "{name} is missing, and no compaction deleted it")?,
            Kind::Unreadable(error) => write!(f, "{name} cannot be read: {error}")?,
            Kind::Header => write!(f, "{name}: the header is not this segment's, of format {FORMAT}")?,
            Kind::Record => write!(f, "{name}: {length} bytes at {offset} are no record that belongs there")?,
            Kind::Checksum => write!(f, "{name}: {length} bytes at {offset} have a wrong checksum")?,
            Kind::Truncated => write!(f, "{name} ends at {offset}, in the midst of what was written")?,
            Kind::Zeros => write!(f, "{name}: {length} zeros at {offset} stand where records were")?,
            Kind::BehindSeal => write!(f, "{name}: {length} bytes at {offset} stand behind the seal")?,
        }
        if let Some(lost) = lost {
            write!(f, " ({lost} records lost)")?;
        }
        write!(f, "; {}", kind.meaning())
    }
}

/// The end of a segment that a crash cut short, before anybody was told that it was written. No damage, but worth a
/// note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TornTail {
    pub segment: u64,
    /// Bytes from the start of the file to where it was torn.
    pub offset: u64,
    /// Bytes that are left out.
    pub length: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = file_name(self.segment);
        write!(
            f,
            "{name}: a crash cut the last write; {} bytes from {} on are left out",
            self.length, self.offset
        )
    }
}
