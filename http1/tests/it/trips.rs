//! What is written is read back as it was.

use bulkhead_http1::{
    Chunk, Fields, LAST_CHUNK, answer_line, field, length, number_field, request_line, trailers,
};
use http::{Method, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::reading::{Message, answers, requests};

type Pairs = Vec<(String, Vec<u8>)>;

/// Names that say nothing of the body or the connection, and values as they are read: without space around them.
fn fields() -> impl Strategy<Value = Pairs> {
    let name = vec(select(b"abXYZ019-_.!#$%&'*+^`|~".to_vec()), 1..12);
    let name = name.prop_map(|name| format!("x{}", String::from_utf8(name).expect("is ASCII")));
    let byte = prop_oneof![8 => b' '..127, 1 => 128_u8..=255, 1 => Just(b'\t')];
    let value = vec(byte, 0..24).prop_map(|value| value.trim_ascii().to_vec());
    vec((name, value), 0..8)
}

/// How a body is sent.
#[derive(Clone, Debug)]
enum Body {
    None,
    Plain(Vec<u8>),
    Chunked(Vec<Vec<u8>>, Pairs),
}

fn bodies() -> impl Strategy<Value = Body> {
    let chunks = vec(vec(any::<u8>(), 1..300), 0..5);
    prop_oneof![
        Just(Body::None),
        vec(any::<u8>(), 0..2000).prop_map(Body::Plain),
        (chunks, fields()).prop_map(|(chunks, trailers)| Body::Chunked(chunks, trailers)),
    ]
}

fn write(out: &mut Vec<u8>, fields: &Pairs, body: &Body) {
    let fields: Fields = fields.iter().map(|(name, value)| (name, value)).collect();
    fields.write(out, |_, _, _| true);
    match body {
        Body::None => out.extend_from_slice(b"\r\n"),
        Body::Plain(data) => {
            length(out, data.len() as u64);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
        }
        Body::Chunked(chunks, with) => {
            field(out, b"Transfer-Encoding", b"chunked");
            out.extend_from_slice(b"\r\n");
            for chunk in chunks {
                out.extend_from_slice(Chunk::of(chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            match with.as_slice() {
                [] => out.extend_from_slice(LAST_CHUNK),
                with => trailers(out, &with.iter().map(|(name, value)| (name, value)).collect()),
            }
        }
    }
}

fn pairs(fields: &Pairs) -> Vec<(&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect()
}

fn check(read: &Message, line: &str, fields: &Pairs, body: &Body) {
    assert_eq!(read.line, line);
    let own: Vec<_> = read.fields.iter().filter(|(name, _)| name.starts_with(b"x")).collect();
    assert_eq!(own, pairs(fields));
    let (expected, with) = match body {
        Body::None => (Vec::new(), None),
        Body::Plain(data) => (data.clone(), None),
        Body::Chunked(chunks, with) => (chunks.concat(), Some(with).filter(|with| !with.is_empty())),
    };
    let trailers = read.trailers.as_ref().map(|trailers| trailers.iter().collect());
    assert_eq!((&read.body, trailers), (&expected, with.map(pairs)));
    assert!(read.whole && read.keeps_alive);
}

proptest! {
    #[test]
    fn requests_are_read_back_one_after_the_other(
        sent in vec((select(vec!["GET", "POST", "M-SEARCH", "x!"]), "/[a-z?=&%]{0,20}", fields(), bodies()), 1..4),
    ) {
        let mut out = Vec::new();
        for (method, target, fields, body) in &sent {
            request_line(&mut out, &method.parse::<Method>().expect("a method"), target);
            number_field(&mut out, b"Host", 7);
            write(&mut out, fields, body);
        }
        let read = requests(&[&out]);
        prop_assert_eq!((read.error, read.messages.len(), read.left.len()), (None, sent.len(), 0));
        for (read, (method, target, fields, body)) in read.messages.iter().zip(&sent) {
            check(read, &format!("{method} {target}"), fields, body);
        }
    }

    #[test]
    fn answers_are_read_back(status in 200_u16..999, fields in fields(), body in bodies()) {
        let status = StatusCode::from_u16(status).expect("a status");
        let has_no_body = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
        // Without a length an answer lasts until its connection ends, which is another test's.
        let body = match body {
            _ if has_no_body => Body::None,
            Body::None => Body::Plain(Vec::new()),
            body => body,
        };
        let mut out = Vec::new();
        answer_line(&mut out, status);
        write(&mut out, &fields, &body);
        let read = answers(&[&out], &Method::GET);
        prop_assert_eq!((read.error, read.messages.len(), read.left.len()), (None, 1, 0));
        check(&read.messages[0], status.as_str(), &fields, &body);
    }
}
