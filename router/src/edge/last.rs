//! The last answer on a connection on which hyper has none to give: a head and a problem document, as bytes.

use bytes::Bytes;
use http::header;

use crate::message::{Answer, AnswerBody};

/// The answer on the wire, which also says that the connection ends.
pub(crate) fn last_answer(answer: Answer) -> Bytes {
    let Answer { status, mut headers, body } = answer;
    let body = match body {
        AnswerBody::Whole { data, .. } => data,
        // A cell's answer is hyper's to write.
        AnswerBody::Stream { .. } => Bytes::new(),
    };
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    headers.insert(header::CONTENT_LENGTH, body.len().into());
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in &headers {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes.into()
}
