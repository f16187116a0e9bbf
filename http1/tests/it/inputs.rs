//! Bytes as a connection might bring them, most of them nearly HTTP.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::cases::{ANSWERS, REQUESTS};
use crate::reading::LIMIT;

/// Parts of messages, some of them wrong.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let parts: Vec<&[u8]> = vec![
        b"GET / HTTP/1.1\r\n",
        b"POST /pay?x=1 HTTP/1.1\r\n",
        b"PUT http://b/ HTTP/1.0\r\n",
        b"GET /\x01 HTTP/1.1\r\n",
        b"GET /\xff HTTP/1.1\r\n",
        b"GET  /",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 404\r\n",
        b"HTTP/1.1 103 Early\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Expect: 100-continue\r\n",
        b"X: \xe4 1\r\n",
        b"X:\r\n",
        b"X : 1\r\n",
        b" folded\r\n",
        b"a:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\na:\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"hello",
        b"5\r\nhello\r\n",
        b"5;a=\"b\"\r\nhello\r\n",
        b"5 ;\x01a",
        b"5 x;",
        b"2\r\nhi",
        b"0\r\n",
        b"0\r\n\r\n",
        b"X-Sum: 7\r\n\r\n",
        b"1000000000000000\r\n",
        b"fffffffffffffff\r\n",
        b"\0",
        b"\x7f",
        b"\t",
        b";",
        b":",
    ];
    let long = (select(vec![b'a', b'0', b' ', b':', b';', b'\t']), 0..2 * LIMIT);
    let long = long.prop_map(|(byte, times)| vec![byte; times]);
    prop_oneof![12 => select(parts).prop_map(<[u8]>::to_vec), 1 => long, 1 => vec(any::<u8>(), 0..4)]
}

/// Cases whole or broken at one place, and parts of messages in any order.
pub(crate) fn inputs() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<&[u8]> =
        REQUESTS.iter().chain(ANSWERS.iter().map(|(_, case)| case)).map(|case| case.bytes).collect();
    let bytes = select(vec![b'\r', b'\n', b' ', b'\t', b':', b';', b',', b'0', b'a', 0, 127, 255]);
    let broken = (select(all), any::<Index>(), bytes, 0..3).prop_map(|(case, place, byte, how)| {
        let (mut case, place) = (case.to_vec(), place.index(case.len()));
        match how {
            0 => case[place] = byte,
            1 => case.insert(place, byte),
            _ => drop(case.remove(place)),
        }
        case
    });
    let parts = vec(lines(), 1..24).prop_map(|lines| lines.concat());
    vec(prop_oneof![broken, parts], 1..4).prop_map(|inputs| inputs.concat())
}
