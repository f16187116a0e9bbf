//! What a segment is made of: records, and their bytes. Pure; frames and checksums are in `frame`, what records
//! together mean is in `effect`.

use std::sync::Arc;

use bulkhead_protocol::TransactionId;

/// Longest name of a cell, in bytes: the API allows 50 characters of ASCII.
pub const MAX_CELL: usize = 50;
/// Longest name of a destination, in bytes: what Kubernetes allows for a name.
pub const MAX_DESTINATION: usize = 253;
/// Longest note to a resolution, in bytes.
pub const MAX_NOTE: usize = 256;
/// Longest record, in bytes; an intent with the longest names is it.
pub(crate) const MAX_RECORD: usize = 1 + 16 + 4 + 4 + 8 + (1 + MAX_CELL) + (1 + MAX_DESTINATION);

/// What became of an effect, as far as the router that sent it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination answered. The status is that of HTTP (100 to 999), absent where none is known.
    Answered { status: Option<u16> },
    /// Not one byte was handed to the kernel: nothing happened, and it may be tried again.
    NotSent,
    /// Something was handed to the kernel and no answer came. A person decides.
    Unknown,
}

/// One entry. Every record can be read without any other, so that damage costs no more than what it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// An effect is about to be sent.
    Intent(Intent, u64),
    /// What became of it.
    Outcome { id: TransactionId, n: u32, at_ms: u64, outcome: Outcome },
    /// What a person found out about an unknown effect.
    Resolution { id: TransactionId, n: u32, at_ms: u64, resolution: Resolution, note: Arc<str> },
    /// An older segment ended at this length. What it holds beyond was never acknowledged, and may be torn.
    Ended { segment: u64, trusted_to: u64 },
    /// Segments up to this one are no longer needed, and are missing because they were deleted.
    Compacted { through: u64 },
    /// The last record of a segment that was ended in order.
    Seal { at_ms: u64, successor: bool },
}

/// An effect that is about to be sent to a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub id: TransactionId,
    /// The number of this egress in its transaction, from 1.
    pub n: u32,
    /// The attempt of the transaction that asked for it, from 1.
    pub attempt: u32,
    /// At most [`MAX_CELL`] bytes of printable text.
    pub cell: Arc<str>,
    /// At most [`MAX_DESTINATION`] bytes of printable text.
    pub destination: Arc<str>,
}

/// What a person may say of an unknown effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    Answered,
    NotSent,
}

impl From<Resolution> for Outcome {
    fn from(resolution: Resolution) -> Self {
        match resolution {
            Resolution::Answered => Self::Answered { status: None },
            Resolution::NotSent => Self::NotSent,
        }
    }
}

/// Whether text may stand in a record: no more than `most` bytes, none of them a control character, so that it can be
/// shown on any terminal.
pub(crate) fn printable(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

const INTENT: u8 = 1;
const OUTCOME: u8 = 2;
const RESOLUTION: u8 = 3;
const ENDED: u8 = 4;
const COMPACTED: u8 = 5;
const SEAL: u8 = 6;

const ANSWERED: u8 = 1;
const NOT_SENT: u8 = 2;
const UNKNOWN: u8 = 3;

impl Record {
    /// When it was written, where the record says so.
    pub(crate) fn at_ms(&self) -> Option<u64> {
        match self {
            Self::Intent(_, at_ms)
            | Self::Outcome { at_ms, .. }
            | Self::Resolution { at_ms, .. }
            | Self::Seal { at_ms, .. } => Some(*at_ms),
            Self::Ended { .. } | Self::Compacted { .. } => None,
        }
    }

    /// Appends the record's bytes; integers are little-endian.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Intent(intent, at_ms) => {
                effect(to, INTENT, &intent.id, intent.n, *at_ms);
                to.extend(intent.attempt.to_le_bytes());
                text(to, &intent.cell);
                text(to, &intent.destination);
            }
            Self::Outcome { id, n, at_ms, outcome } => {
                effect(to, OUTCOME, id, *n, *at_ms);
                let (code, status) = code(*outcome);
                to.push(code);
                to.extend(status.to_le_bytes());
            }
            Self::Resolution { id, n, at_ms, resolution, note } => {
                effect(to, RESOLUTION, id, *n, *at_ms);
                to.push(code(Outcome::from(*resolution)).0);
                to.extend_from_slice(note.as_bytes());
            }
            Self::Ended { segment, trusted_to } => {
                to.push(ENDED);
                to.extend(segment.to_le_bytes());
                to.extend(trusted_to.to_le_bytes());
            }
            Self::Compacted { through } => {
                to.push(COMPACTED);
                to.extend(through.to_le_bytes());
            }
            Self::Seal { at_ms, successor } => {
                to.push(SEAL);
                to.extend(at_ms.to_le_bytes());
                to.push(u8::from(*successor));
            }
        }
    }

    /// Reads a record that takes all of `bytes`; `None` where they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Bytes(bytes);
        let record = match from.byte()? {
            INTENT => {
                let (id, n, at_ms) = from.effect()?;
                let attempt = from.u32()?;
                let cell = from.text(MAX_CELL)?;
                let destination = from.text(MAX_DESTINATION)?;
                Self::Intent(Intent { id, n, attempt, cell, destination }, at_ms)
            }
            OUTCOME => {
                let (id, n, at_ms) = from.effect()?;
                let outcome = outcome(from.byte()?, from.u16()?)?;
                Self::Outcome { id, n, at_ms, outcome }
            }
            RESOLUTION => {
                let (id, n, at_ms) = from.effect()?;
                let resolution = match from.byte()? {
                    ANSWERED => Resolution::Answered,
                    NOT_SENT => Resolution::NotSent,
                    _ => return None,
                };
                let length = from.0.len();
                Self::Resolution { id, n, at_ms, resolution, note: from.words(length, MAX_NOTE)? }
            }
            ENDED => Self::Ended { segment: from.u64()?, trusted_to: from.u64()? },
            COMPACTED => Self::Compacted { through: from.u64()? },
            SEAL => {
                let at_ms = from.u64()?;
                let successor = match from.byte()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Self::Seal { at_ms, successor }
            }
            _ => return None,
        };
        from.0.is_empty().then_some(record)
    }
}

fn effect(to: &mut Vec<u8>, kind: u8, id: &TransactionId, n: u32, at_ms: u64) {
    to.push(kind);
    to.extend_from_slice(id.as_bytes());
    to.extend(n.to_le_bytes());
    to.extend(at_ms.to_le_bytes());
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.push(u8::try_from(text.len()).expect("names were checked to be at most 253 bytes when they came in"));
    to.extend_from_slice(text.as_bytes());
}

fn code(outcome: Outcome) -> (u8, u16) {
    match outcome {
        Outcome::Answered { status } => (ANSWERED, status.unwrap_or(0)),
        Outcome::NotSent => (NOT_SENT, 0),
        Outcome::Unknown => (UNKNOWN, 0),
    }
}

fn outcome(code: u8, status: u16) -> Option<Outcome> {
    match (code, status) {
        (ANSWERED, 0) => Some(Outcome::Answered { status: None }),
        (ANSWERED, status) => Some(Outcome::Answered { status: Some(status) }),
        (NOT_SENT, 0) => Some(Outcome::NotSent),
        (UNKNOWN, 0) => Some(Outcome::Unknown),
        _ => None,
    }
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn effect(&mut self) -> Option<(TransactionId, u32, u64)> {
        Some((TransactionId::from_bytes(self.array()?), self.u32()?, self.u64()?))
    }

    fn text(&mut self, most: usize) -> Option<Arc<str>> {
        let length = usize::from(self.byte()?);
        self.words(length, most)
    }

    fn words(&mut self, length: usize, most: usize) -> Option<Arc<str>> {
        let (words, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(words).ok().filter(|text| printable(text, most)).map(Arc::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(record: &Record) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert!(bytes.len() <= MAX_RECORD, "{} bytes", bytes.len());
        assert_eq!(Record::decode(&bytes).as_ref(), Some(record));
        for short in 0..bytes.len() {
            // A note is as long as the record lets it be, so that a shorter one is a record of its own.
            let shorter = Record::decode(&bytes[..short]);
            assert!(
                shorter.is_none() || matches!(record, Record::Resolution { .. }),
                "{short} bytes of {record:?}"
            );
        }
        bytes.push(b'\n');
        assert_eq!(Record::decode(&bytes), None, "with a byte too many");
    }

    fn intent(cell: &str, destination: &str) -> Record {
        let id = TransactionId::from_bytes([7; 16]);
        Record::Intent(Intent { id, n: 1, attempt: 2, cell: cell.into(), destination: destination.into() }, 3)
    }

    #[test]
    fn every_kind_of_record_is_read_as_it_was_written() {
        let (id, n, at_ms) = (TransactionId::from_bytes([9; 16]), u32::MAX, u64::MAX);
        check(&intent("payments-a", "visa"));
        check(&intent(&"c".repeat(MAX_CELL), &"d".repeat(MAX_DESTINATION)));
        for outcome in [
            Outcome::Answered { status: Some(200) },
            Outcome::Answered { status: None },
            Outcome::NotSent,
            Outcome::Unknown,
        ] {
            check(&Record::Outcome { id, n, at_ms, outcome });
        }
        for resolution in [Resolution::Answered, Resolution::NotSent] {
            let note = "asked the scheme: § 4, case 77".into();
            check(&Record::Resolution { id, n, at_ms, resolution, note });
        }
        check(&Record::Ended { segment: 3, trusted_to: 4 });
        check(&Record::Compacted { through: 5 });
        check(&Record::Seal { at_ms, successor: true });
    }

    #[test]
    fn text_that_could_not_be_shown_is_no_record() {
        for (cell, destination) in [("a\u{1b}[2J", "visa"), ("a", "vi\nsa"), (&*"c".repeat(51), "visa")] {
            let mut bytes = Vec::new();
            intent(cell, destination).encode(&mut bytes);
            assert_eq!(Record::decode(&bytes), None, "{cell:?} {destination:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_that_are_a_record_are_written_as_they_were_read(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(record) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
