//! What goes on to a cell of a request that was read, as the router's edge writes it: in origin form, without what speaks of
//! the client's connection, and with one word on how its body ends.

use bulkhead_http1::{Chunk, Fields, Framing, LAST_CHUNK, field, has_token, length, request_line};
use http::{Method, Uri};

use crate::reading::{Message, Reading};

/// How a body goes on: with its length where it was read whole, in chunks where it is sent as it arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Whole,
    Chunked,
}

/// What a cell must see: method, target and body.
pub(crate) type Seen = (String, String, Vec<u8>);

/// The bytes that go on, and what whoever reads them must see. CONNECT is refused, and with it ends its
/// connection.
pub(crate) fn forward(reading: &Reading, form: Form) -> (Vec<u8>, Vec<Seen>) {
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    for message in reading.messages.iter().filter(|message| message.whole) {
        let (method, target) = parts(message);
        if method == Method::CONNECT {
            break;
        }
        write(&mut out, message, &method, &target, form);
        let origin = origin(&target);
        seen.push((method.to_string(), origin, message.body.clone()));
    }
    (out, seen)
}

pub(crate) fn parts(message: &Message) -> (Method, Uri) {
    let (method, target) = message.line.split_once(' ').expect("a request has both");
    (method.parse().expect("was read"), target.parse().expect("was read"))
}

fn origin(target: &Uri) -> String {
    let origin = target.path_and_query().map_or("/", |origin| origin.as_str());
    format!("{}{origin}", if origin.starts_with('?') { "/" } else { "" })
}

fn write(out: &mut Vec<u8>, message: &Message, method: &Method, target: &Uri, form: Form) {
    let fields = &message.fields;
    request_line(out, method, &origin(target));
    let host = target.authority().map(|authority| authority.as_str().as_bytes()).or(fields.get("host"));
    field(out, b"host", host.unwrap_or_default());
    fields.write(out, |_, name, _| goes_on(fields, name));
    match (form, message.framing) {
        // A request without a body says nothing of its length, unless its method has one by its nature.
        (_, Framing::Length(0)) if *method != Method::POST => out.extend_from_slice(b"\r\n"),
        (Form::Chunked, Framing::Chunked) => {
            field(out, b"transfer-encoding", b"chunked");
            out.extend_from_slice(b"\r\n");
            for chunk in message.body.chunks(7) {
                out.extend_from_slice(Chunk::of(chunk.len()).as_bytes());
                out.extend_from_slice(chunk);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(LAST_CHUNK);
        }
        _ => {
            length(out, message.body.len() as u64);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&message.body);
        }
    }
}

fn goes_on(fields: &Fields, name: &[u8]) -> bool {
    const ENDS_HERE: [&str; 11] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let named = |name: &str| has_token(fields.get_all("connection"), name);
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    !ENDS_HERE.contains(&name.as_str()) && !named(&name)
}
