//! Heads and chunks as bytes, appended to a buffer of the caller's. Names and values are taken as they are: what could end
//! a line got no further than [`crate::Fields`].

use http::{Method, StatusCode};

use crate::fields::Fields;

/// What ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The first line of a request, in HTTP/1.1.
pub fn request_line(out: &mut Vec<u8>, method: &Method, target: &str) {
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// The first line of an answer, in HTTP/1.1, with the phrase that the status code has.
pub fn answer_line(out: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    for part in ["HTTP/1.1 ", status.as_str(), " ", status.canonical_reason().unwrap_or_default(), "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A field whose value is a number.
pub fn number_field(out: &mut Vec<u8>, name: &[u8], number: u64) {
    field(out, name, decimal(number, &mut [0; 20]));
}

/// The field with the length of the body.
pub fn length(out: &mut Vec<u8>, length: u64) {
    number_field(out, b"content-length", length);
}

/// A number in decimal digits.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// What goes before a chunk of that many bytes; `\r\n` goes behind it.
pub struct Chunk {
    bytes: [u8; 18],
    length: usize,
}

impl Chunk {
    pub fn of(length: usize) -> Self {
        let mut chunk = Self { bytes: [0; 18], length: 0 };
        let digits = (64 - (length as u64 | 1).leading_zeros()).div_ceil(4);
        for place in (0..digits).rev() {
            chunk.push(b"0123456789abcdef"[(length as u64 >> (4 * place) & 15) as usize]);
        }
        chunk.push(b'\r');
        chunk.push(b'\n');
        chunk
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What ends a chunked body with these trailers.
pub fn trailers(out: &mut Vec<u8>, trailers: &Fields) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.iter() {
        field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_written_by_the_letter() {
        let mut out = Vec::new();
        request_line(&mut out, &Method::POST, "/pay?x=1");
        field(&mut out, b"X-Partner", b"acme");
        length(&mut out, 1024);
        assert_eq!(out, b"POST /pay?x=1 HTTP/1.1\r\nX-Partner: acme\r\ncontent-length: 1024\r\n");
        let check = |status: u16, expected: &str| {
            let mut out = Vec::new();
            answer_line(&mut out, StatusCode::from_u16(status).expect("a status"));
            assert_eq!(out, expected.as_bytes());
        };
        check(200, "HTTP/1.1 200 OK\r\n");
        check(503, "HTTP/1.1 503 Service Unavailable\r\n");
        check(799, "HTTP/1.1 799 \r\n");
    }

    #[test]
    fn lengths_are_decimal_and_chunks_hexadecimal() {
        for number in [0, 9, 10, 255, 256, 65_536, u64::MAX] {
            let mut out = Vec::new();
            length(&mut out, number);
            assert_eq!(out, format!("content-length: {number}\r\n").into_bytes());
            let chunk = Chunk::of(number as usize);
            assert_eq!(chunk.as_bytes(), format!("{number:x}\r\n").into_bytes());
        }
    }

    #[test]
    fn trailers_end_a_body() {
        let mut out = Vec::new();
        trailers(&mut out, &[("x-sum", "7")].into_iter().collect());
        assert_eq!(out, b"0\r\nx-sum: 7\r\n\r\n");
    }
}
