//! Heads and bodies of HTTP/1.1 as a router meets them, read and written again and again.

use std::hint::black_box;

use anyhow::{Context as _, Result};
use bulkhead_http1::{
    AnswerReader, Decoder, Fields, Framing, Known, Piece, RequestReader, field, length, request_line,
};
use bytes::BytesMut;
use http::{Method, Uri};

/// Bytes of a head at most, as a listener has it by default.
const LIMIT: usize = 16 * 1024;
const REQUEST: &[u8] = b"POST /v1/authorize HTTP/1.1\r\n\
    host: payments.example\r\nuser-agent: bench/1\r\naccept: */*\r\nx-partner: p123\r\n\
    x-transaction-id: 0192f0c1-0000-7000-8000-000000000000\r\ncontent-type: application/json\r\n\
    content-length: 512\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Mon, 02 Nov 2026 10:00:00 GMT\r\n\
    content-type: application/json\r\nserver: cell\r\ncontent-length: 64\r\n\r\n";
/// Of a chunked body, how many chunks there are and how long each is.
const CHUNKS: usize = 8;
const CHUNK: usize = 512;

pub(super) fn read_request(count: u64) -> Result<()> {
    let (mut reader, mut buffer) = (RequestReader::default(), BytesMut::with_capacity(LIMIT));
    for _ in 0..count {
        buffer.extend_from_slice(black_box(REQUEST));
        black_box(reader.read(&mut buffer, LIMIT)?.context("a head that is whole was not read")?);
    }
    Ok(())
}

pub(super) fn read_answer(count: u64) -> Result<()> {
    let (mut reader, mut buffer) = (AnswerReader::default(), BytesMut::with_capacity(LIMIT));
    for _ in 0..count {
        buffer.extend_from_slice(black_box(ANSWER));
        let read = reader.read(&mut buffer, &Method::POST, LIMIT)?;
        black_box(read.context("a head that is whole was not read")?);
    }
    Ok(())
}

/// As it goes on to a cell: without what is the connection's, and with fields of ours.
pub(super) fn write_request(count: u64) -> Result<()> {
    let mut reader = RequestReader::default();
    let request = reader.read(&mut BytesMut::from(REQUEST), LIMIT)?.context("the head is whole")?;
    let (fields, method, target): (Fields, Method, Uri) = (request.fields, request.method, request.target);
    let mut out = Vec::with_capacity(LIMIT);
    for _ in 0..count {
        out.clear();
        request_line(&mut out, black_box(&method), black_box(&target).path());
        black_box(&fields)
            .write(&mut out, |known, _, _| !matches!(known, Known::Connection | Known::ContentLength));
        field(&mut out, b"x-forwarded-for", b"192.0.2.7");
        length(&mut out, 512);
        out.extend_from_slice(b"\r\n");
        black_box(&out);
    }
    Ok(())
}

pub(super) fn read_chunks(count: u64) -> Result<()> {
    let mut chunks = Vec::new();
    for _ in 0..CHUNKS {
        chunks.extend_from_slice(format!("{CHUNK:x}\r\n").as_bytes());
        chunks.extend_from_slice(&[b'x'; CHUNK]);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    let mut buffer = BytesMut::with_capacity(2 * chunks.len());
    for _ in 0..count {
        buffer.extend_from_slice(black_box(&chunks));
        let mut decoder = Decoder::new(Framing::Chunked);
        while let Piece::Data(data) =
            decoder.read(&mut buffer)?.context("a body that is whole was not read")?
        {
            black_box(data);
        }
    }
    Ok(())
}
