//! Bytes of a segment: its header, and the frames around records with length, number and checksum. Pure. A frame that
//! follows damage can be found again; how a whole segment is read is in `segment`.

use crate::record::{MAX_RECORD, Record};

/// Opens every segment, so that no other file is taken for one.
const MAGIC: [u8; 8] = *b"BHLEDGER";
/// Version of all that this file and `record` describe.
pub(crate) const FORMAT: u32 = 1;
/// `magic 8 | format 4 | sequence 8 | oldest 8 | created 8 | checksum 4`
pub(crate) const HEADER: usize = 40;
/// `length 2 | length inverted 2 | number 4 | checksum 4`, then the record.
pub(crate) const FRAME: usize = 12;

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) sequence: u64,
    /// The lowest segment that was there when this one was made: below it, none is missing.
    pub(crate) oldest: u64,
    pub(crate) created_ms: u64,
}

/// Why bytes are no header or no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The file ends within it: what a write leaves that was cut short.
    Short,
    /// Nothing but zeros up to the file's end: what a file system leaves that lost power before it wrote.
    Zeros,
    /// A header that is none, or another segment's.
    Header,
    /// A header of another format than this program's.
    Format(u32),
    /// The two lengths contradict each other, or no record is so long.
    Length,
    Checksum,
    /// The checksum is right, and there is no such record.
    Record,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.oldest.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.created_ms.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header of the segment that the file's name says this is.
    ///
    /// # Errors
    /// When it is not that segment's header.
    pub(crate) fn decode(bytes: &[u8], sequence: u64) -> Result<Self, Wrong> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(Wrong::Short);
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(Wrong::Zeros);
        }
        if header[..8] != MAGIC || crc32fast::hash(&header[..36]) != u32_at(header, 36) {
            return Err(Wrong::Header);
        }
        if u32_at(header, 8) != FORMAT {
            return Err(Wrong::Format(u32_at(header, 8)));
        }
        let found =
            Self { sequence: u64_at(header, 12), oldest: u64_at(header, 20), created_ms: u64_at(header, 28) };
        if found.sequence == sequence { Ok(found) } else { Err(Wrong::Header) }
    }
}

/// Appends the frame of a record, which is number `number` of segment `sequence`.
pub(crate) fn write(to: &mut Vec<u8>, sequence: u64, number: u32, record: &Record) {
    let start = to.len();
    to.extend([0; FRAME]);
    record.encode(to);
    let length = u16::try_from(to.len() - start - FRAME).expect("no record is longer than MAX_RECORD");
    let checksum = checksum(sequence, number, &to[start + FRAME..]);
    to[start..start + 2].copy_from_slice(&length.to_le_bytes());
    to[start + 2..start + 4].copy_from_slice(&(!length).to_le_bytes());
    to[start + 4..start + 8].copy_from_slice(&number.to_le_bytes());
    to[start + 8..start + 12].copy_from_slice(&checksum.to_le_bytes());
}

/// A frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) number: u32,
    pub(crate) record: Record,
    /// Bytes that it takes, itself included.
    pub(crate) length: usize,
}

/// Reads the frame at the start of `bytes`, which go on to the end of the file and are not empty.
///
/// # Errors
/// When there is none.
pub(crate) fn read(bytes: &[u8], sequence: u64) -> Result<Frame, Wrong> {
    let Some((frame, rest)) = bytes.split_first_chunk::<FRAME>() else {
        return Err(Wrong::Short);
    };
    let (length, inverted) = (u16_at(frame, 0), u16_at(frame, 2));
    if length != !inverted || usize::from(length) > MAX_RECORD {
        return Err(if bytes.iter().all(|byte| *byte == 0) { Wrong::Zeros } else { Wrong::Length });
    }
    let record = rest.get(..usize::from(length)).ok_or(Wrong::Short)?;
    let number = u32_at(frame, 4);
    if checksum(sequence, number, record) != u32_at(frame, 8) {
        return Err(Wrong::Checksum);
    }
    let record = Record::decode(record).ok_or(Wrong::Record)?;
    Ok(Frame { number, record, length: FRAME + usize::from(length) })
}

/// The next frame after damage: how far away it begins, and itself. It is told from chance by two lengths that agree, a
/// checksum over the segment's own sequence number, a record that parses, and a number that is not yet taken; no text
/// of a record can imitate it, because one byte of the two lengths is no printable character.
pub(crate) fn find(bytes: &[u8], sequence: u64, least: u32) -> Option<(usize, Frame)> {
    (1..bytes.len()).find_map(|skipped| {
        let frame = read_if_likely(&bytes[skipped..], sequence)?;
        (frame.number >= least).then_some((skipped, frame))
    })
}

/// Looks at the lengths alone first, so that a search stays one pass over the bytes.
fn read_if_likely(bytes: &[u8], sequence: u64) -> Option<Frame> {
    let lengths = bytes.first_chunk::<4>()?;
    if u16_at(lengths, 0) != !u16_at(lengths, 2) {
        return None;
    }
    read(bytes, sequence).ok()
}

/// CRC-32 over the sequence of the segment too, so that a block of another segment is not taken for one of this.
fn checksum(sequence: u64, number: u32, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(record);
    hasher.finalize()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the header or frame is that long"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the header or frame is that long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_OF_7: Header = Header { sequence: 7, oldest: 3, created_ms: 11 };

    fn framed(sequence: u64, numbers: std::ops::Range<u32>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in numbers {
            write(&mut bytes, sequence, number, &Record::Compacted { through: 5 });
        }
        bytes
    }

    #[test]
    fn a_header_is_its_own_segments_alone() {
        let bytes = HEADER_OF_7.encode();
        assert_eq!(Header::decode(&bytes, 7), Ok(HEADER_OF_7));
        assert_eq!(Header::decode(&bytes, 8), Err(Wrong::Header));
        assert_eq!(Header::decode(&bytes[..HEADER - 1], 7), Err(Wrong::Short));
        assert_eq!(Header::decode(&[0; HEADER], 7), Err(Wrong::Zeros));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = HEADER_OF_7.encode();
        bytes[8] = 2;
        assert_eq!(Header::decode(&bytes, 7), Err(Wrong::Header), "a flipped bit is no newer format");
        let checksum = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Header::decode(&bytes, 7), Err(Wrong::Format(2)));
    }

    #[test]
    fn every_flipped_bit_of_a_header_and_of_a_frame_is_detected() {
        let header = HEADER_OF_7.encode();
        let frame = framed(7, 0..1);
        assert!(read(&frame, 7).is_ok());
        for bit in 0..header.len() * 8 {
            let mut flipped = header;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&flipped, 7).is_err(), "bit {bit} of the header");
        }
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped, 7).is_err(), "bit {bit} of the frame");
        }
    }

    #[test]
    fn a_frame_of_another_segment_is_none_of_this() {
        assert_eq!(read(&framed(8, 0..1), 7), Err(Wrong::Checksum));
    }

    #[test]
    fn a_cut_frame_is_short_wherever_it_is_cut_and_zeros_are_told_from_garbage() {
        let frame = framed(7, 0..1);
        for length in 1..frame.len() {
            assert_eq!(read(&frame[..length], 7), Err(Wrong::Short), "{length} bytes");
        }
        assert_eq!(read(&[0; 100], 7), Err(Wrong::Zeros));
        assert_eq!(read(&[1; 100], 7), Err(Wrong::Length));
    }

    #[test]
    fn the_next_frame_after_damage_is_found_and_an_older_one_is_not_taken_for_it() {
        let mut bytes = framed(7, 4..8);
        let one = bytes.len() / 4;
        bytes[5] ^= 1;
        let (skipped, frame) = find(&bytes, 7, 4).expect("three are whole");
        assert_eq!((skipped, frame.number), (one, 5));
        let (skipped, frame) = find(&bytes, 7, 7).expect("one is new enough");
        assert_eq!((skipped, frame.number), (3 * one, 7));
        assert_eq!(find(&bytes, 7, 8), None);
    }
}
