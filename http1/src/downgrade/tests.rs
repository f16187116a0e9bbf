use bytes::BytesMut;
use http::Request;
use http::uri::{Authority, PathAndQuery, Scheme};
use proptest::prelude::*;

use super::*;
use crate::{RequestReader, request_line};

/// A head as it came, with `:authority` where it has one.
fn head(method: &str, authority: Option<&str>, path: &str, fields: &[(&str, &[u8])]) -> Option<Parts> {
    let mut uri = http::uri::Parts::default();
    if let Some(authority) = authority {
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(Authority::try_from(authority).ok()?);
    }
    uri.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    let mut request = Request::builder().method(method).uri(Uri::from_parts(uri).ok()?);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    Some(request.body(()).ok()?.into_parts().0)
}

/// As HTTP/1.1 writes it.
fn written(head: &Downgraded) -> BytesMut {
    let mut out = Vec::new();
    let target = head.target.path_and_query().expect("is there");
    request_line(&mut out, &head.method, target.as_str());
    head.fields.write(&mut out, |_, _, _| true);
    out.extend_from_slice(b"\r\n");
    BytesMut::from(&out[..])
}

#[track_caller]
fn check(method: &str, authority: Option<&str>, path: &str, fields: &[(&str, &[u8])], expected: Malformed) {
    let parts = head(method, authority, path, fields).expect("the library takes it");
    assert_eq!(downgrade(&parts).expect_err("is refused"), expected);
}

#[test]
fn a_head_says_the_same_in_http_1_1() {
    let fields: [(&str, &[u8]); 6] = [
        ("x-partner", b"acme"),
        ("cookie", b"a=1"),
        ("te", b"trailers"),
        ("cookie", b"b=2; c=3"),
        ("content-length", b"3"),
        ("expect", b"100-continue"),
    ];
    let parts = head("POST", Some("shop.example:8443"), "/pay?x=1", &fields).expect("is one");
    let head = downgrade(&parts).expect("may be passed on");
    assert_eq!((head.length, head.expects_continue), (Some(3), true));
    let text = String::from_utf8(written(&head).to_vec()).expect("is text");
    assert!(text.starts_with("POST /pay?x=1 HTTP/1.1\r\nhost: shop.example:8443\r\n"), "{text}");
    assert!(text.contains("\r\ncookie: a=1; b=2; c=3\r\n") && text.matches("cookie").count() == 1, "{text}");
}

#[test]
fn the_host_is_said_once_and_never_in_two_ways() {
    let host = |name: &'static str| ("host", name.as_bytes());
    let named = |authority, fields: &[(&str, &[u8])]| {
        let head =
            downgrade(&head("GET", authority, "/", fields).expect("is one")).expect("may be passed on");
        String::from_utf8_lossy(head.fields.get("host").expect("is there")).into_owned()
    };
    assert_eq!(named(Some("shop"), &[]), "shop");
    assert_eq!(named(Some("shop"), &[host("SHOP")]), "shop");
    assert_eq!(named(None, &[host("shop:80")]), "shop:80");
    check("GET", Some("shop"), "/", &[host("bank")], Malformed::AuthorityDiffers);
    check("GET", Some("shop"), "/", &[host("shop:443")], Malformed::AuthorityDiffers);
    check("GET", Some("shop"), "/", &[host("shop"), host("shop")], Malformed::Hosts);
    check("GET", Some("shop"), "/", &[host("")], Malformed::AuthorityDiffers);
    check("GET", None, "/", &[], Malformed::NoAuthority);
    check("GET", None, "/", &[host("")], Malformed::NoAuthority);
    check("GET", None, "/", &[host("a/b")], Malformed::Authority);
    check("GET", Some("me@shop"), "/", &[], Malformed::Authority);
    check("GET", None, "/", &[host("shop:x")], Malformed::Authority);
    check("GET", None, "/", &[host(":80")], Malformed::Authority);
}

#[test]
fn what_http_1_1_would_read_in_another_way_is_refused() {
    let shop = Some("shop");
    for name in
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "http2-settings"]
    {
        check("GET", shop, "/", &[(name, b"x")], Malformed::ConnectionField);
    }
    check("GET", shop, "/", &[("te", b"gzip")], Malformed::Te);
    check("GET", shop, "/", &[("te", b"trailers, gzip")], Malformed::Te);
    for value in [&b" a"[..], b"a ", b"\ta", b"a\t"] {
        check("GET", shop, "/", &[("x-a", value)], Malformed::FieldValue);
    }
    for value in [&b""[..], b"+1", b"-1", b"0x1", b"18446744073709551616", b"9223372036854775809"] {
        check("POST", shop, "/", &[("content-length", value)], Malformed::Length);
    }
    check("POST", shop, "/", &[("content-length", b"1, 1")], Malformed::Lengths);
    let twice: [(&str, &[u8]); 2] = [("content-length", b"1"), ("content-length", b"1")];
    check("POST", shop, "/", &twice, Malformed::Lengths);
    check("GET", shop, "*", &[], Malformed::Path);
    let tunnel = Request::connect("shop:443").body(()).expect("is one").into_parts().0;
    assert_eq!(downgrade(&tunnel).expect_err("is refused"), Malformed::Connect);
    let names: Vec<String> = (0..100).map(|number| format!("x-{number}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"1"[..])).collect();
    check("GET", shop, "/", &many, Malformed::TooManyFields);
}

#[test]
fn the_page_names_every_refusal() {
    let page = include_str!("../../../docs/http2.md");
    for malformed in Malformed::ALL {
        let row = format!("| {} | {} |", malformed.doc().trim().trim_end_matches('.'), malformed.rule());
        assert!(page.contains(&row), "docs/http2.md lacks this row: {row}");
    }
}

#[test]
fn options_of_the_server_itself_is_asked_for_with_a_star() {
    let parts = head("OPTIONS", Some("shop"), "*", &[]).expect("is one");
    assert!(written(&downgrade(&parts).expect("may be passed on")).starts_with(b"OPTIONS * HTTP/1.1\r\n"));
}

const NAMES: &str = "host|cookie|te|content-length|expect|x-[a-z]{0,3}|[!-~]{1,6}";

fn value() -> impl Strategy<Value = Vec<u8>> {
    let text = "[a-z]{0,4}|[0-9]{1,20}|trailers|[ -~\u{80}-\u{ff}]{0,12}".prop_map(String::into_bytes);
    prop_oneof![4 => text, 1 => proptest::collection::vec(any::<u8>(), 0..12)]
}

proptest! {
    #[test]
    fn http_1_1_reads_what_http_2_said_and_nothing_else(
        method in "GET|OPTIONS|POST|[!-~]{1,8}",
        authority in proptest::option::of("[a-z:@.%]{0,6}|[ -~]{0,12}"),
        path in "/[a-z?#%*]{0,9}|[/*]?[ -~\u{80}-\u{ff}]{0,20}",
        fields in proptest::collection::vec((NAMES, value()), 0..6),
    ) {
        let fields: Vec<(&str, &[u8])> = fields.iter().map(|(name, value)| (&**name, &value[..])).collect();
        let Some(parts) = head(&method, authority.as_deref(), &path, &fields) else { return Ok(()) };
        let Ok(head) = downgrade(&parts) else { return Ok(()) };
        let mut buffer = written(&head);
        let read = RequestReader::default().read(&mut buffer, 1 << 16);
        let read = read.map_err(|error| TestCaseError::fail(format!("{error}: {:?}", written(&head))))?;
        let read = read.ok_or_else(|| TestCaseError::fail("is not whole"))?;
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(&read.method, &head.method);
        prop_assert_eq!(read.target.path_and_query(), head.target.path_and_query());
        prop_assert_eq!(&read.fields, &head.fields);
        prop_assert_eq!(read.framing.length(), Some(head.length.unwrap_or(0)));
    }
}
