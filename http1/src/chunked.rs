//! The chunked coding (RFC 9112, section 7.1), as it arrives.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::body::take;
use crate::error::Error;
use crate::fields::Fields;
use crate::head::{self, Progress};

/// Bytes of a chunk's extensions, which nobody reads.
const MOST_EXTENSION: usize = 256;
/// Hexadecimal digits of a size, so that none is too large for a number.
const MOST_DIGITS: usize = 15;
/// Bytes of trailers.
const MOST_TRAILERS: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) enum Chunked {
    #[default]
    Size,
    Data(u64),
    /// Behind a chunk's last byte.
    DataEnd,
    Trailers(Progress),
}

pub(crate) enum Step {
    More,
    Data(Bytes),
    End(Option<Fields>),
}

impl Chunked {
    pub(crate) fn step(&mut self, buffer: &mut BytesMut) -> Result<Step, Error> {
        loop {
            match self {
                Self::Size => match size(buffer)? {
                    None => return Ok(Step::More),
                    Some(0) => *self = Self::Trailers(Progress::default()),
                    Some(size) => *self = Self::Data(size),
                },
                Self::Data(_) if buffer.is_empty() => return Ok(Step::More),
                Self::Data(left) => {
                    let data = take(buffer, left);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                    return Ok(Step::Data(data));
                }
                Self::DataEnd => {
                    let end = &buffer[..buffer.len().min(2)];
                    if !b"\r\n".starts_with(end) {
                        return Err(Error::ChunkEnd);
                    }
                    if end.len() < 2 {
                        return Ok(Step::More);
                    }
                    buffer.advance(2);
                    *self = Self::Size;
                }
                Self::Trailers(progress) => return trailers(buffer, progress),
            }
        }
    }
}

/// Takes the line with a chunk's size off the buffer.
fn size(buffer: &mut BytesMut) -> Result<Option<u64>, Error> {
    let digits = buffer.iter().take(MOST_DIGITS + 1).take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits > MOST_DIGITS || (digits == 0 && !buffer.is_empty()) {
        return Err(Error::ChunkSize);
    }
    let Some(end) = line_end(&buffer[digits..])? else { return Ok(None) };
    let size = buffer[..digits].iter().fold(0_u64, |size, digit| size << 4 | u64::from(value(*digit)));
    buffer.advance(digits + end);
    Ok(Some(size))
}

/// Where the line ends that begins behind a size, if that has arrived. The first byte that is wrong tells what is, so that it
/// does not matter how many have arrived behind it.
fn line_end(rest: &[u8]) -> Result<Option<usize>, Error> {
    let mut is_extension = false;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            // Space alone is no extension.
            b'\r' if at > 0 && !is_extension => return Err(Error::ChunkSize),
            b'\r' => {
                return match rest.get(at + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some(at + 2)),
                    Some(_) => Err(Error::LineEnd),
                };
            }
            b'\n' => return Err(Error::LineEnd),
            _ if at == MOST_EXTENSION => return Err(Error::ChunkExtension),
            b'\t' | b' ' => {}
            b';' => is_extension = true,
            _ if !is_extension => return Err(Error::ChunkSize),
            0..b' ' | 127 => return Err(Error::ChunkExtension),
            _ => {}
        }
    }
    Ok(None)
}

fn value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

fn trailers(buffer: &mut BytesMut, progress: &mut Progress) -> Result<Step, Error> {
    match &buffer[..] {
        [] | [b'\r'] => return Ok(Step::More),
        [b'\r', b'\n', ..] => {
            buffer.advance(2);
            return Ok(Step::End(None));
        }
        [b'\r' | b'\n', ..] => return Err(Error::LineEnd),
        _ => {}
    }
    if !progress.is_due(buffer, MOST_TRAILERS) {
        return Ok(Step::More);
    }
    let bytes = head::within(buffer, MOST_TRAILERS);
    let mut headers = [httparse::EMPTY_HEADER; head::MOST_FIELDS];
    match httparse::parse_headers(bytes, &mut headers).map_err(|_| Error::Trailers)? {
        httparse::Status::Partial if bytes.len() == MOST_TRAILERS => Err(Error::Trailers),
        httparse::Status::Partial => Ok(Step::More),
        httparse::Status::Complete((length, headers)) => {
            let mut fields = head::fields(&bytes[..length], headers)?;
            head::take(buffer, length, &mut fields);
            Ok(Step::End(Some(fields)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Decoder, Piece};
    use crate::framing::Framing;

    fn read(text: &[u8]) -> Result<(Vec<u8>, Option<Option<Fields>>), Error> {
        let (mut decoder, mut buffer) = (Decoder::new(Framing::Chunked), BytesMut::from(text));
        let mut data = Vec::new();
        loop {
            match decoder.read(&mut buffer)? {
                None => return Ok((data, None)),
                Some(Piece::Data(piece)) => data.extend_from_slice(&piece),
                Some(Piece::End(trailers)) => return Ok((data, Some(trailers))),
            }
        }
    }

    #[track_caller]
    fn check(text: &str, expected: Error) {
        assert_eq!(read(text.as_bytes()).expect_err(text), expected, "{text:?}");
    }

    #[test]
    fn chunks_are_joined_and_their_extensions_left_out() {
        let read = read(b"3\r\nhey\r\n0a ;x=\"1\"\r\n0123456789\r\n0\r\n\r\n").expect("is chunked");
        assert_eq!(read, (b"hey0123456789".to_vec(), Some(None)));
    }

    #[test]
    fn trailers_are_fields() {
        let (data, trailers) = read(b"1\r\nx\r\n0\r\nX-Sum: 7\r\n\r\n").expect("is chunked");
        let expected = [("X-Sum", "7")].into_iter().collect();
        assert_eq!((data, trailers), (b"x".to_vec(), Some(Some(expected))));
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for text in
            ["x\r\n", "-1\r\n", "+1\r\n", "0x1\r\n", " 1\r\n", "1 \r\n", "\r\n", "1000000000000000\r\n"]
        {
            check(text, Error::ChunkSize);
        }
        check("1;\u{1}\r\n", Error::ChunkExtension);
        check(&format!("1;{}\r\n", "x".repeat(256)), Error::ChunkExtension);
        for text in ["1\nx", "1;a\nx", "0\r\n\n", "0\r\nx: 1\n\r\n"] {
            check(text, Error::LineEnd);
        }
        check("1;a\rb\r\n", Error::LineEnd);
        check("1\r\nxy\r\n", Error::ChunkEnd);
        check("1\r\nx\n", Error::ChunkEnd);
        check("0\r\nx y: 1\r\n\r\n", Error::Trailers);
        check(&format!("0\r\nx: {}", "1".repeat(MOST_TRAILERS)), Error::Trailers);
    }

    #[test]
    fn what_has_not_arrived_is_waited_for() {
        let whole = b"3;x\r\nhey\r\n0\r\na: 1\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]).expect("may go on").1, None, "{length}");
        }
        assert!(read(whole).expect("is chunked").1.is_some());
    }
}
