//! Bodies: nothing breaks, no byte is lost, where they are cut makes no difference, and what was read is read again when it
//! is written anew.

#![no_main]

use bulkhead_http1::{Chunk, Decoder, Error, Fields, Framing, LAST_CHUNK, Piece, trailers};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default, PartialEq)]
struct Read {
    data: Vec<u8>,
    end: Option<Option<Fields>>,
    error: Option<Error>,
    left: Vec<u8>,
}

// Two bytes say how the body ends and where it is cut.
fuzz_target!(|input: &[u8]| {
    let [framing, cut, bytes @ ..] = input else { return };
    let framing = match framing % 8 {
        0 => Framing::UntilClose,
        1 => Framing::Length(u64::from(framing / 8)),
        _ => Framing::Chunked,
    };
    let whole = read(framing, &[bytes]);
    let (first, rest) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    check_same(&whole, &read(framing, &[first, rest]));
    let each: Vec<_> = bytes.chunks(1).chain([&[][..]]).collect();
    check_same(&whole, &read(framing, &each));
    if framing == Framing::Chunked
        && let Some(end) = &whole.end
    {
        let again = read(framing, &[&written(&whole.data, end.as_ref())]);
        assert_eq!((again.data, again.error, again.left.len()), (whole.data, None, 0));
        assert_eq!(&again.end.expect("is whole"), end);
    }
});

/// Trailers that cannot become any may be waited on until they are as long as they may be.
fn check_same(whole: &Read, parts: &Read) {
    if parts.error.is_none() && whole.error.is_some() {
        assert_eq!((&parts.data, &parts.end, &parts.left), (&whole.data, &whole.end, &whole.left));
        return;
    }
    assert_eq!(whole, parts);
}

fn read(framing: Framing, parts: &[&[u8]]) -> Read {
    let (mut decoder, mut buffer, mut read) = (Decoder::new(framing), BytesMut::new(), Read::default());
    for part in parts {
        buffer.extend_from_slice(part);
        while read.error.is_none() && read.end.is_none() {
            match decoder.read(&mut buffer) {
                Ok(None) => break,
                Ok(Some(Piece::Data(data))) => read.data.extend_from_slice(&data),
                Ok(Some(Piece::End(trailers))) => read.end = Some(trailers),
                Err(error) => read.error = Some(error),
            }
        }
    }
    read.left = buffer.to_vec();
    read
}

fn written(data: &[u8], with: Option<&Fields>) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in data.chunks(3) {
        out.extend_from_slice(Chunk::of(chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    match with {
        Some(with) => trailers(&mut out, with),
        None => out.extend_from_slice(LAST_CHUNK),
    }
    out
}
