//! Reading one segment's bytes: its records, and every place where they are not what was written. Pure. Whether such a
//! place is damage or what a crash leaves behind depends on the segments around it, which `judgement` knows.

use crate::frame::{self, FRAME, HEADER, Header, Wrong};
use crate::record::Record;

/// What files of segments are called, after their sequence number.
const SUFFIX: &str = ".segment";
/// What is added to the name of a damaged one when nothing in it is needed any longer.
pub(crate) const ASIDE: &str = ".damaged";

/// The file of a segment: 20 digits, so that names sort as numbers do.
pub(crate) fn file_name(sequence: u64) -> String {
    format!("{sequence:020}{SUFFIX}")
}

/// The sequence number in a file's name, if it is a segment's.
pub(crate) fn sequence_of(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_suffix(SUFFIX)?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// A place where a segment is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) wrong: Wrong,
    /// Records that are missing here, where later ones tell by their numbers.
    pub(crate) lost: Option<u32>,
}

/// A segment as it was read, without its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) header: Option<Header>,
    pub(crate) flaws: Vec<Flaw>,
    pub(crate) records: u32,
    /// Where the last readable record ends.
    pub(crate) end: u64,
    /// Bytes of the file.
    pub(crate) length: u64,
    /// Whether it ends with a seal, and if so, whether that says that a segment follows.
    pub(crate) seal: Option<Seal>,
    /// The latest time in any record.
    pub(crate) newest_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) successor: bool,
}

/// Reads the segment that is called `sequence` and hands each of its records to `take`, in order. Damage costs the
/// records that it covers: reading goes on with the next that can be told for certain.
pub(crate) fn scan(bytes: &[u8], sequence: u64, mut take: impl FnMut(Record)) -> Scan {
    let mut scan = Scan { length: bytes.len() as u64, ..Scan::default() };
    match Header::decode(bytes, sequence) {
        Ok(header) => {
            scan.newest_ms = header.created_ms;
            scan.header = Some(header);
        }
        Err(wrong @ (Wrong::Short | Wrong::Zeros)) => {
            scan.flaws.push(Flaw { offset: 0, length: scan.length, wrong, lost: None });
            return scan;
        }
        // The name says which segment it is, so that its records can be read without the header.
        Err(wrong) => scan.flaws.push(Flaw { offset: 0, length: HEADER as u64, wrong, lost: None }),
    }
    let (mut offset, mut number) = (HEADER, 0);
    scan.end = offset as u64;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let read = frame::read(rest, sequence).and_then(|frame| in_turn(frame, number));
        let (skipped, frame) = match read {
            Ok(frame) => (0, frame),
            Err(wrong) => {
                let found = frame::find(rest, sequence, number);
                scan.flaws.push(Flaw {
                    offset: offset as u64,
                    length: found.as_ref().map_or(rest.len(), |(skipped, _)| *skipped) as u64,
                    wrong,
                    lost: found.as_ref().map(|(_, frame)| frame.number - number),
                });
                let Some(found) = found else { break };
                found
            }
        };
        offset += skipped + frame.length;
        number = frame.number.saturating_add(1);
        scan.note(&frame.record, offset as u64);
        take(frame.record);
    }
    scan
}

/// A frame whose number is not the next stands where another was: a hole that was closed, or a copy.
fn in_turn(frame: frame::Frame, number: u32) -> Result<frame::Frame, Wrong> {
    if frame.number == number { Ok(frame) } else { Err(Wrong::Record) }
}

impl Scan {
    fn note(&mut self, record: &Record, end: u64) {
        self.records += 1;
        self.end = end;
        self.newest_ms = self.newest_ms.max(record.at_ms().unwrap_or(0));
        self.seal = match record {
            Record::Seal { successor, .. } => Some(Seal { successor: *successor }),
            _ => None,
        };
    }
}

/// A segment's header and first records, for a writer. Records are numbered from `*number` on, which is moved on.
pub(crate) fn encode(header: &Header, records: &[Record], number: &mut u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + records.len() * (FRAME + 64));
    bytes.extend_from_slice(&header.encode());
    append(&mut bytes, header.sequence, records, number);
    bytes
}

/// Appends the frames of records to `to`.
pub(crate) fn append<'a>(
    to: &mut Vec<u8>,
    sequence: u64,
    records: impl IntoIterator<Item = &'a Record>,
    number: &mut u32,
) {
    for record in records {
        frame::write(to, sequence, *number, record);
        *number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: u64 = 7;

    fn segment() -> Vec<u8> {
        let header = Header { sequence: SEQUENCE, oldest: 7, created_ms: 1 };
        let records: Vec<_> = (0..5)
            .map(|through| Record::Compacted { through })
            .chain([Record::Seal { at_ms: 2, successor: false }])
            .collect();
        encode(&header, &records, &mut 0)
    }

    /// The numbers that were read, and the flaws as (offset, length, wrong, lost).
    fn check(bytes: &[u8], expected: &[u64], flaws: &[(u64, u64, Wrong, Option<u32>)]) -> Scan {
        let mut read = Vec::new();
        let scan = scan(bytes, SEQUENCE, |record| {
            if let Record::Compacted { through } = record {
                read.push(through);
            }
        });
        assert_eq!(read, expected);
        let found: Vec<_> =
            scan.flaws.iter().map(|flaw| (flaw.offset, flaw.length, flaw.wrong, flaw.lost)).collect();
        assert_eq!(found, flaws);
        scan
    }

    /// Bytes of one of the records.
    const ONE: u64 = FRAME as u64 + 9;

    fn at(record: u64) -> u64 {
        HEADER as u64 + record * ONE
    }

    #[test]
    fn a_whole_segment_is_read_to_its_seal() {
        let scan = check(&segment(), &[0, 1, 2, 3, 4], &[]);
        assert_eq!((scan.seal, scan.newest_ms, scan.records), (Some(Seal { successor: false }), 2, 6));
        assert_eq!(scan.end, scan.length);
    }

    #[test]
    fn reading_goes_on_behind_a_damaged_record() {
        let mut bytes = segment();
        bytes[at(2) as usize + FRAME] ^= 1;
        check(&bytes, &[0, 1, 3, 4], &[(at(2), ONE, Wrong::Checksum, Some(1))]);
        bytes[at(1) as usize] ^= 1;
        check(&bytes, &[0, 3, 4], &[(at(1), 2 * ONE, Wrong::Length, Some(2))]);
    }

    #[test]
    fn a_damaged_header_costs_no_record() {
        let mut bytes = segment();
        bytes[0] ^= 1;
        check(&bytes, &[0, 1, 2, 3, 4], &[(0, HEADER as u64, Wrong::Header, None)]);
    }

    #[test]
    fn a_hole_that_was_closed_is_found_by_the_numbers() {
        let mut bytes = segment();
        bytes.drain(at(1) as usize..at(3) as usize);
        check(&bytes, &[0, 4], &[(at(1), ONE, Wrong::Record, Some(3))]);
    }

    #[test]
    fn a_cut_segment_is_read_to_the_cut() {
        let bytes = segment();
        let cut = at(3) as usize + 5;
        let scan = check(&bytes[..cut], &[0, 1, 2], &[(at(3), 5, Wrong::Short, None)]);
        assert_eq!((scan.seal, scan.end), (None, at(3)));
        check(&bytes[..HEADER], &[], &[]);
        check(&bytes[..5], &[], &[(0, 5, Wrong::Short, None)]);
        check(&[], &[], &[(0, 0, Wrong::Short, None)]);
    }

    #[test]
    fn what_stands_behind_a_seal_takes_the_seal_away() {
        let mut bytes = segment();
        bytes.extend([1; 30]);
        let scan = check(&bytes, &[0, 1, 2, 3, 4], &[(bytes.len() as u64 - 30, 30, Wrong::Length, None)]);
        assert!(scan.seal.is_some() && scan.end < scan.length);
    }

    #[test]
    fn names_sort_as_numbers_and_other_files_are_none() {
        assert_eq!(file_name(7), "00000000000000000007.segment");
        assert!(file_name(9) < file_name(10));
        assert_eq!(sequence_of(&file_name(u64::MAX)), Some(u64::MAX));
        for other in
            ["LOCK", "7.segment", "00000000000000000007.segment.damaged", "+0000000000000000007.segment"]
        {
            assert_eq!(sequence_of(other), None, "{other}");
        }
    }
}
