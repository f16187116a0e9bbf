//! What is refused over HTTP/2, and that nothing of it reaches a cell.

use bulkhead_protocol::Problem;
use h2::Reason;

use super::serving::one;
use super::{
    DATA, END_HEADERS, END_STREAM, Frame, Frames, GET, GOAWAY, HEADERS, Http2, RST_STREAM, block, frame, get,
};
use crate::world::{World, eventually};

/// What a client hears of a request.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Reset(Reason),
    /// The connection ended, for that reason.
    Gone(Reason),
    /// Status and detail of a problem document.
    Problem(u16, String),
}

/// Sends frames of stream 1.
async fn send(world: &World, all: &[Vec<u8>]) -> Heard {
    let mut frames = Frames::begin(world.address).await;
    frames.send(&all.concat()).await;
    let mut text = Vec::new();
    loop {
        let Frame { kind, flags, payload, stream } = frames.next().await.expect("hears of it");
        match (kind, stream) {
            (RST_STREAM, 1) => {
                return Heard::Reset(u32::from_be_bytes(payload.try_into().expect("are four")).into());
            }
            (GOAWAY, _) => {
                let word = payload[4..8].try_into().expect("are four");
                return Heard::Gone(u32::from_be_bytes(word).into());
            }
            (DATA, 1) => text.extend_from_slice(&payload),
            _ => {}
        }
        if stream == 1 && kind == DATA && flags & END_STREAM != 0 {
            let problem: Problem = serde_json::from_slice(&text).expect("is a problem document");
            return Heard::Problem(problem.status, problem.detail);
        }
    }
}

fn head(fields: &[(&str, &str)]) -> Vec<Vec<u8>> {
    vec![frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(fields))]
}

fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&GET[..], more].concat()
}

/// The request with one of its first fields in another way, or without it.
fn instead(name: &'static str, value: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    let changed = GET.iter().filter_map(|(known, was)| match *known == name {
        true => value.map(|value| (name, value)),
        false => Some((*known, *was)),
    });
    changed.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_none_resets_its_stream() {
    let world = one("{}").await;
    let heads = [
        ("a field of the connection", with(&[("connection", "keep-alive")])),
        ("keep-alive", with(&[("keep-alive", "timeout=5")])),
        ("proxy-connection", with(&[("proxy-connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "websocket")])),
        ("te", with(&[("te", "gzip")])),
        ("no method", instead(":method", None)),
        ("no scheme", instead(":scheme", None)),
        ("an empty path", instead(":path", Some(""))),
        ("a pseudo-field of answers", with(&[(":status", "200")])),
        ("a pseudo-field twice", with(&[(":path", "/other")])),
        ("a pseudo-field behind others", [&[("x-a", "1")], &GET[..]].concat()),
        ("LF in the path", instead(":path", Some("/\nx"))),
        ("a space in the path", instead(":path", Some("/ HTTP/1.1"))),
        ("a protocol to change to", with(&[(":protocol", "websocket")])),
        ("no length", with(&[("content-length", "none")])),
        ("two lengths", with(&[("content-length", "1"), ("content-length", "2")])),
    ];
    for (what, fields) in heads {
        let heard = send(&world, &head(&fields)).await;
        assert_eq!(heard, Heard::Reset(Reason::PROTOCOL_ERROR), "{what}");
    }
    assert_eq!(world.hits(), [0]);
}

/// The table of HTTP/2's compression is the connection's: who writes such into it could mean anything by what follows.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_field_at_all_ends_the_connection() {
    let world = one("{}").await;
    let heads = [
        ("an unknown pseudo-field", with(&[(":other", "1")])),
        ("upper case", with(&[("X-Upper", "1")])),
        ("a colon in a name", with(&[("x:a", "1")])),
        ("a space in a name", with(&[("x a", "1")])),
        ("no method at all", instead(":method", Some("G T"))),
        ("CR LF in a value", with(&[("x-a", "1\r\nx-b: 2")])),
        ("NUL in a value", with(&[("x-a", "1\0")])),
    ];
    for (what, fields) in heads {
        let heard = send(&world, &head(&fields)).await;
        assert_eq!(heard, Heard::Gone(Reason::PROTOCOL_ERROR), "{what}");
    }
    assert_eq!(world.hits(), [0]);
    let line = "bulkhead_router_http2_faults_total{listener=\"http\",reason=\"Malformed\"} 7";
    eventually(line, async || world.metrics().await.contains(line)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_http_1_1_would_say_otherwise_is_answered_with_the_rule() {
    let world = one("{}").await;
    let heads = [
        ("AuthorityDiffers", with(&[("host", "bank")]), "different hosts (RFC 9113, section 8.3.1)"),
        ("Hosts", with(&[("host", "test"), ("host", "test")]), "more than once (RFC 9110, section 7.2)"),
        ("NoAuthority", instead(":authority", None), "neither :authority nor host"),
        ("Authority", instead(":authority", Some("me@test")), "is no host"),
        ("Path", instead(":path", Some("*")), ":path does not begin with /"),
        ("FieldValue", with(&[("x-a", " 1")]), "space around it"),
        ("FieldValue", with(&[("x-a", "1\t")]), "space around it"),
        ("Http2Settings", with(&[("http2-settings", "AAMAAABkAAQAAP__")]), "speaks of one connection"),
        ("Connect", vec![(":method", "CONNECT"), (":authority", "test:443")], "CONNECT is not taken"),
    ];
    for (what, fields, detail) in heads {
        match send(&world, &head(&fields)).await {
            Heard::Problem(400, heard) => assert!(heard.contains(detail), "{what}: {heard}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_another_length_than_it_says_is_refused() {
    let world = one("{}").await;
    let begun = |length| {
        let fields = [&[(":method", "POST"), ("content-length", length)], &GET[1..]].concat();
        // Pseudo-fields go first.
        let mut fields = fields;
        fields.sort_by_key(|(name, _)| !name.starts_with(':'));
        frame(HEADERS, END_HEADERS, 1, &block(&fields))
    };
    let ends = |data: &[u8]| frame(DATA, END_STREAM, 1, data);
    for (length, data) in [("3", &b"four"[..]), ("3", b"no"), ("0", b"x"), ("1", b"")] {
        let heard = send(&world, &[begun(length), ends(data)]).await;
        assert_eq!(heard, Heard::Reset(Reason::PROTOCOL_ERROR), "{length} for {data:?}");
    }
    let trailers = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block(&[("x-a", "1")]));
    let heard = send(&world, &[begun("3"), frame(DATA, 0, 1, b"no"), trailers]).await;
    assert_eq!(heard, Heard::Reset(Reason::PROTOCOL_ERROR), "trailers before the end");
    assert_eq!(world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_refused_and_the_connection_goes_on() {
    let world = one("{headerBytes: 2048}").await;
    let client = Http2::connect(world.address).await;
    let mut request = get("/");
    request.headers_mut().insert("x-a", "a".repeat(2_000).parse().expect("legal"));
    assert_eq!(client.send(request, "").await.status, 431);
    let mut request = get("/");
    for number in 0..100 {
        request.headers_mut().insert(
            format!("x-{number}").parse::<http::HeaderName>().expect("legal"),
            "".parse().expect("legal"),
        );
    }
    let world_of_many = one("{}").await;
    let answer = Http2::connect(world_of_many.address).await.send(request, "").await;
    assert_eq!(answer.problem(), (431, "HeadTooLarge".to_owned()));
    assert_eq!(client.send(get("/"), "").await.status, 200);
    assert_eq!((world.hits(), world_of_many.hits()), (vec![1], vec![0]));
}
