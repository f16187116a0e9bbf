//! Heads of HTTP/2 as HTTP/1.1 says them: nothing breaks, and whoever reads what is written reads what was said, once.

#![no_main]

use bulkhead_http1::{RequestReader, check_host, downgrade, request_line};
use bytes::BytesMut;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri};
use libfuzzer_sys::fuzz_target;

// A line each: method, authority or nothing, path, and fields, whose name ends at the first `=`.
fuzz_target!(|input: &[u8]| {
    let Some(request) = request(input) else { return };
    let Ok(head) = downgrade(&request.into_parts().0) else { return };
    let mut out = Vec::new();
    let target = head.target.path_and_query().expect("is there");
    request_line(&mut out, &head.method, target.as_str());
    head.fields.write(&mut out, |_, _, _| true);
    out.extend_from_slice(b"\r\n");
    let mut buffer = BytesMut::from(&out[..]);
    let read = RequestReader::default().read(&mut buffer, 1 << 16).expect("is HTTP").expect("is whole");
    check_host(&read.fields, false).expect("names one host");
    assert!(buffer.is_empty());
    assert_eq!((read.method, read.target.path_and_query()), (head.method, head.target.path_and_query()));
    assert_eq!(read.fields, head.fields);
    assert_eq!(read.framing.length(), Some(head.length.unwrap_or(0)));
});

/// A head as the library gives it.
fn request(input: &[u8]) -> Option<Request<()>> {
    let mut lines = input.split(|byte| *byte == b'\n');
    let method = lines.next()?;
    let mut uri = http::uri::Parts::default();
    match lines.next()? {
        [] => {}
        authority => {
            uri.scheme = Some(Scheme::HTTP);
            uri.authority = Some(Authority::try_from(authority).ok()?);
        }
    }
    uri.path_and_query = Some(PathAndQuery::try_from(lines.next()?).ok()?);
    let mut request = Request::builder().method(method).uri(Uri::from_parts(uri).ok()?);
    for line in lines {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b'=')?);
        request = request.header(name, &value[1..]);
    }
    request.body(()).ok()
}
