//! Bodies as they arrive: slices of the buffer, without the marks around them.

use bytes::{Bytes, BytesMut};

use crate::chunked::{Chunked, Step};
use crate::error::Error;
use crate::fields::Fields;
use crate::framing::Framing;

/// What comes next of a body.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// Never empty.
    Data(Bytes),
    /// The end, with the trailers that a chunked body may have.
    End(Option<Fields>),
}

/// Reads one body off a buffer that grows.
#[derive(Debug)]
pub struct Decoder(State);

#[derive(Debug)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

impl Decoder {
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::default()),
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// Whether all of it was read.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Bytes that are still to come, where that is known.
    pub fn left(&self) -> Option<u64> {
        match self.0 {
            State::Done => Some(0),
            State::Length(left) => Some(left),
            State::Chunked(_) | State::UntilClose => None,
        }
    }

    /// Takes what comes next off the buffer; none while that has not arrived.
    ///
    /// # Errors
    /// What of it is no HTTP. There is no telling then where the next message begins.
    pub fn read(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, Error> {
        match &mut self.0 {
            State::Done => Ok(Some(Piece::End(None))),
            _ if buffer.is_empty() => Ok(None),
            State::UntilClose => Ok(Some(Piece::Data(buffer.split().freeze()))),
            State::Length(left) => {
                let data = take(buffer, left);
                if *left == 0 {
                    self.0 = State::Done;
                }
                Ok(Some(Piece::Data(data)))
            }
            State::Chunked(chunked) => match chunked.step(buffer)? {
                Step::More => Ok(None),
                Step::Data(data) => Ok(Some(Piece::Data(data))),
                Step::End(trailers) => {
                    self.0 = State::Done;
                    Ok(Some(Piece::End(trailers)))
                }
            },
        }
    }

    /// The connection is closed: whether that is the body's end, and not before it.
    pub fn close(&mut self) -> bool {
        if matches!(self.0, State::UntilClose) {
            self.0 = State::Done;
        }
        self.is_done()
    }

    /// Counts bytes of a body of known length that were read past the buffer.
    pub fn skip(&mut self, bytes: u64) {
        if let State::Length(left) = &mut self.0 {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.0 = State::Done;
            }
        }
    }
}

/// As much as there is of what is left.
pub(crate) fn take(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_known_length_ends_with_its_last_byte() {
        let mut decoder = Decoder::new(Framing::Length(5));
        let mut buffer = BytesMut::from("heyo");
        assert_eq!(decoder.read(&mut buffer), Ok(Some(Piece::Data(Bytes::from("heyo")))));
        assert_eq!((decoder.read(&mut buffer), decoder.left()), (Ok(None), Some(1)));
        assert!(!decoder.close(), "it ends before its end");
        buffer.extend_from_slice(b"!GET");
        assert_eq!(decoder.read(&mut buffer), Ok(Some(Piece::Data(Bytes::from("!")))));
        assert_eq!(decoder.read(&mut buffer), Ok(Some(Piece::End(None))));
        assert_eq!(&buffer[..], b"GET");
    }

    #[test]
    fn a_body_until_the_connection_closes_ends_there() {
        let mut decoder = Decoder::new(Framing::UntilClose);
        let mut buffer = BytesMut::from("hey");
        assert_eq!(decoder.read(&mut buffer), Ok(Some(Piece::Data(Bytes::from("hey")))));
        assert_eq!(decoder.read(&mut buffer), Ok(None));
        assert!(decoder.close() && decoder.is_done());
    }

    #[test]
    fn bytes_that_were_read_elsewhere_count() {
        let mut decoder = Decoder::new(Framing::Length(5));
        decoder.skip(4);
        assert_eq!(decoder.left(), Some(1));
        decoder.skip(1);
        assert!(decoder.is_done());
    }
}
