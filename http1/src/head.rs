//! What heads of requests and answers have in common: when there is enough to read one, and the rules of lines that
//! `httparse` is lenient about.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};

use crate::error::Error;
use crate::fields::{Fields, Place, place};
use crate::name::Known;

/// Fields of one head.
pub(crate) const MOST_FIELDS: usize = 100;

pub(crate) type Slots<'b> = [MaybeUninit<httparse::Header<'b>>; MOST_FIELDS];

/// How far one head was looked at, so that one which arrives byte by byte is not read from its start each time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Bytes that were searched for the head's end.
    searched: usize,
    /// Bytes from which on it is read whether it has an end or not, so that nonsense is refused before it ends.
    due: usize,
}

impl Progress {
    /// Whether the bytes should be read now: their end has arrived, or twice as many as the last time, or as many as
    /// there may be.
    pub(crate) fn is_due(&mut self, bytes: &[u8], limit: usize) -> bool {
        // Three bytes before may be the begin of what ends it.
        let from = self.searched.saturating_sub(3).min(bytes.len());
        let new = &bytes[from..];
        let ends = memchr::memchr_iter(b'\n', new)
            .any(|at| matches!(&new[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]));
        self.searched = bytes.len();
        if ends || bytes.len() >= self.due.min(limit) {
            self.due = bytes.len() * 2;
            return true;
        }
        false
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// What of the buffer may be the head: what lies behind the limit is not looked at, so that it does not matter how much
/// of it has arrived.
pub(crate) fn within(buffer: &[u8], limit: usize) -> &[u8] {
    &buffer[..buffer.len().min(limit)]
}

/// A head that is not whole yet, or larger than it may be.
pub(crate) fn partial<T>(bytes: &[u8], limit: usize) -> Result<Option<T>, Error> {
    if bytes.len() >= limit { Err(Error::HeadTooLarge) } else { Ok(None) }
}

/// Bytes of the empty lines before a request, which are borne (RFC 9112, section 2.2).
pub(crate) fn empty_lines(bytes: &[u8]) -> usize {
    bytes.chunks_exact(2).take_while(|pair| *pair == b"\r\n").count() * 2
}

/// The fields by their places within the head's bytes, none of whose lines may end in another way than CRLF.
pub(crate) fn fields(bytes: &[u8], headers: &[httparse::Header<'_>]) -> Result<Fields, Error> {
    let begin = bytes.as_ptr() as usize;
    let within = |part: &[u8]| {
        let at = part.as_ptr() as usize - begin;
        (place(at), place(at + part.len()))
    };
    let mut fields = Fields::new();
    let places = fields.places_mut();
    places.reserve(headers.len() + 4);
    for header in headers {
        let name = within(header.name.as_bytes());
        if !ends_line(bytes, name.0 as usize) {
            return Err(Error::LineEnd);
        }
        // An empty value is a slice of its own, which need not lie within the bytes.
        let value = if header.value.is_empty() { (name.1, name.1) } else { within(header.value) };
        if let Some(before) = places.last_mut() {
            let before: &mut Place = before;
            before.end = name.0;
        }
        let known = Known::of(header.name.as_bytes());
        places.push(Place { name, value, end: place(bytes.len() - 2), known, added: false });
    }
    if !bytes.ends_with(b"\r\n\r\n") {
        return Err(Error::LineEnd);
    }
    Ok(fields)
}

fn ends_line(bytes: &[u8], at: usize) -> bool {
    at == 0 || bytes.get(..at).is_some_and(|before| before.ends_with(b"\r\n"))
}

/// The error of a field that could not be read, or of the first line.
pub(crate) fn error(error: httparse::Error, first_line: Error) -> Error {
    match error {
        httparse::Error::HeaderName => Error::FieldName,
        httparse::Error::HeaderValue => Error::FieldValue,
        httparse::Error::NewLine => Error::LineEnd,
        httparse::Error::TooManyHeaders => Error::TooManyFields,
        httparse::Error::Version => Error::Version,
        httparse::Error::Status | httparse::Error::Token => first_line,
    }
}

/// Takes the head's bytes off, to be read for as long as anybody needs its fields.
pub(crate) fn take(buffer: &mut BytesMut, length: usize, fields: &mut Fields) -> Bytes {
    let head = buffer.split_to(length).freeze();
    fields.arrive(head.clone());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_trickles_in_is_read_a_few_times_and_once_it_is_whole() {
        let head = [&b"GET / HTTP/1.1\r\nx: "[..], &[b'a'; 60_000], b"\r\n\r\n"].concat();
        let mut progress = Progress::default();
        let reads = (1..=head.len()).filter(|length| progress.is_due(&head[..*length], 65_536)).count();
        assert!(reads <= 20, "{reads}");
        let mut progress = Progress::default();
        assert!(progress.is_due(&head[..10], 65_536));
        assert!(progress.is_due(&head, 65_536), "its end has arrived");
    }

    #[test]
    fn a_head_is_read_once_it_is_as_long_as_it_may_be() {
        let mut progress = Progress::default();
        let due: Vec<_> = (1..=100).filter(|length| progress.is_due(&[b'a'; 100][..*length], 100)).collect();
        assert_eq!(due, [1, 2, 4, 8, 16, 32, 64, 100]);
    }

    #[test]
    fn the_end_is_found_wherever_it_is_cut() {
        for cut in 0..4 {
            let head = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n";
            let mut progress = Progress::default();
            progress.is_due(&head[..20], 1024);
            progress.is_due(&head[..head.len() - cut - 1], 1024);
            assert!(progress.is_due(head, 1024), "cut {cut} before the end");
        }
    }
}
