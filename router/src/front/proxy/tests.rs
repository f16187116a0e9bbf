//! Headers as the specification writes them, split anywhere, and whatever else may come.

use proptest::prelude::*;

use super::*;

fn whole(length: usize, source: Option<&str>) -> Result<Header, Wrong> {
    Ok(Header::Whole { length, source: source.map(|text| text.parse().expect("an address")) })
}

#[track_caller]
fn check_line(line: &str, source: Option<&str>) {
    let bytes = [line.as_bytes(), b"GET / HTTP/1.1\r\n"].concat();
    assert_eq!(read(&bytes), whole(line.len(), source), "{line:?}");
    for end in 0..line.len() {
        assert_eq!(read(&bytes[..end]), Ok(Header::Partial), "{:?}", &line[..end]);
    }
}

#[test]
fn a_line_says_who_connected_to_the_proxy() {
    check_line("PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", Some("192.0.2.1"));
    check_line("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", Some("255.255.255.255"));
    check_line("PROXY TCP6 2001:db8::1 ::1 0 1\r\n", Some("2001:db8::1"));
    check_line("PROXY TCP6 ::ffff:c000:201 ::1 1 1\r\n", Some("192.0.2.1"));
    check_line("PROXY UNKNOWN\r\n", None);
    let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let line = format!("PROXY UNKNOWN {longest} {longest} 65535 65535\r\n");
    assert_eq!(line.len(), MOST_LINE);
    check_line(&line, None);
}

#[track_caller]
fn check_wrong(bytes: &[u8], words: &str) {
    let wrong = read(bytes).expect_err("is no header").to_string();
    assert!(wrong.contains(words), "{wrong:?} does not contain {words:?}");
}

#[test]
fn a_line_that_differs_in_anything_is_refused() {
    check_wrong(b"GET / HTTP/1.1\r\n", "no PROXY header");
    check_wrong(b"\x16\x03\x01", "no PROXY header");
    check_wrong(b"PROXX", "no PROXY header");
    check_wrong(b"PROXY\r\n", "no PROXY header");
    check_wrong(b"PROXY SCTP 1.2.3.4 1.2.3.4 1 2\r\n", "neither for");
    check_wrong(b"PROXY UNKNOWNX\r\n", "neither for");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", "CR LF");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\rX", "CR LF");
    check_wrong(b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n", "no address");
    check_wrong(b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n", "no address");
    check_wrong(b"PROXY TCP4 ::1 ::1 1 2\r\n", "no address");
    check_wrong(b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "no address");
    check_wrong(b"PROXY TCP6 ::ffff:1.2.3.4 ::1 1 2\r\n", "no address");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "no port");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "no port");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", "no port");
    check_wrong(b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n", "goes on");
    check_wrong(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 93]].concat(), "107");
    check_wrong(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92], b"\r"].concat(), "107");
    check_wrong(b"PROXY \xff\r\n", "no ASCII");
}

/// Version 2 with that command and family, and these bytes after them.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("is short");
    [SIGNATURE.as_slice(), &[command, family], &length.to_be_bytes(), rest].concat()
}

const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 7, 220, 4, 1, 187];

fn v6(source: &str) -> Vec<u8> {
    let source: Ipv6Addr = source.parse().expect("an address");
    [source.octets().as_slice(), &[0; 16], &[0, 1, 0, 2]].concat()
}

fn field(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("is short");
    [&[kind], length.to_be_bytes().as_slice(), value].concat()
}

#[track_caller]
fn check_binary(header: &[u8], source: Option<&str>) {
    let bytes = [header, b"\x16\x03\x01".as_slice()].concat();
    assert_eq!(read(&bytes), whole(header.len(), source), "{header:?}");
    for end in 0..header.len() {
        assert_eq!(read(&bytes[..end]), Ok(Header::Partial), "{end} bytes of {header:?}");
    }
}

#[test]
fn a_binary_header_says_who_connected_to_the_proxy() {
    check_binary(&binary(0x21, 0x11, &V4), Some("192.0.2.1"));
    check_binary(&binary(0x21, 0x21, &v6("2001:db8::1")), Some("2001:db8::1"));
    check_binary(&binary(0x21, 0x21, &v6("::ffff:192.0.2.1")), Some("192.0.2.1"));
    let fields = [field(0x04, &[0; 5]), field(0xE0, b""), field(0x20, b"anything")].concat();
    check_binary(&binary(0x21, 0x11, &[V4.as_slice(), &fields].concat()), Some("192.0.2.1"));
    let longest = field(0x04, &vec![0; MOST_REST - 12 - 3]);
    check_binary(&binary(0x21, 0x11, &[V4.as_slice(), &longest].concat()), Some("192.0.2.1"));
}

#[test]
fn where_the_proxy_names_no_client_by_tcp_the_connection_counts() {
    check_binary(&binary(0x20, 0x00, b""), None);
    check_binary(&binary(0x20, 0x11, &V4), None);
    check_binary(&binary(0x20, 0xFF, b"whatever"), None);
    check_binary(&binary(0x21, 0x00, b"whatever"), None);
    check_binary(&binary(0x21, 0x10, b""), None);
    check_binary(&binary(0x21, 0x12, &V4), None);
    check_binary(&binary(0x21, 0x31, &[0; 216]), None);
}

#[test]
fn a_binary_header_that_differs_in_anything_is_refused() {
    check_wrong(&binary(0x11, 0x11, &V4), "version");
    check_wrong(&binary(0x31, 0x11, &V4)[..13], "version");
    check_wrong(&binary(0x22, 0x11, &V4), "command");
    check_wrong(&binary(0x21, 0x41, &V4), "family");
    check_wrong(&binary(0x21, 0x13, &V4), "family");
    check_wrong(&binary(0x21, 0x11, &V4[..11]), "shorter");
    check_wrong(&binary(0x21, 0x21, &V4), "shorter");
    check_wrong(&binary(0x21, 0x31, &[0; 215]), "shorter");
    check_wrong(&binary(0x21, 0x11, &vec![0; MOST_REST + 1])[..FIXED], "4096");
    for cut in [&[4][..], &[4, 0], &[4, 0, 1], &[4, 255, 255, 0]] {
        check_wrong(&binary(0x21, 0x11, &[V4.as_slice(), cut].concat()), "cut off");
    }
}

#[test]
fn a_checksum_is_looked_at() {
    // RFC 3720, appendix B.4.
    assert_eq!(crc32c(&[0; 32], 32), 0x8A91_36AA);
    assert_eq!(crc32c(&[255; 32], 32), 0x62A8_AB43);
    let more = field(0x04, b"after");
    let rest = |sum: u32| [V4.as_slice(), &field(CRC32C, &sum.to_be_bytes()), &more].concat();
    let sum = crc32c(&binary(0x21, 0x11, &rest(0)), FIXED + 12 + 3);
    check_binary(&binary(0x21, 0x11, &rest(sum)), Some("192.0.2.1"));
    check_wrong(&binary(0x21, 0x11, &rest(sum ^ 1)), "checksum");
    let short = [V4.as_slice(), &field(CRC32C, &[0; 3])].concat();
    check_wrong(&binary(0x21, 0x11, &short), "checksum");
}

/// Bytes that get somewhere: anything behind a good beginning.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let begins = prop_oneof![
        Just(Vec::new()),
        Just(WORD.to_vec()),
        Just(b"PROXY TCP4 ".to_vec()),
        Just(b"PROXY UNKNOWN".to_vec()),
        Just([SIGNATURE.as_slice(), &[0x21, 0x11, 0, 40]].concat()),
        (any::<u8>(), any::<u8>(), 0..80_u16).prop_map(|(command, family, length)| [
            SIGNATURE.as_slice(),
            &[command, family],
            &length.to_be_bytes()
        ]
        .concat()),
    ];
    let goes_on = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "[0-9a-f:. \r\n]{0,120}".prop_map(String::into_bytes),
    ];
    (begins, goes_on).prop_map(|(begins, goes_on)| [begins, goes_on].concat())
}

proptest! {
    #[test]
    fn whatever_comes_is_read_the_same_however_it_is_split(bytes in nearly()) {
        let all = read(&bytes);
        let mut decided = None;
        for end in 0..=bytes.len() {
            match (read(&bytes[..end]), &decided) {
                (Ok(Header::Partial), None) => {}
                (Ok(Header::Partial), Some(before)) => prop_assert!(false, "{before:?} was taken back"),
                (read, None) => decided = Some(read),
                (read, Some(before)) => prop_assert_eq!(&read, before),
            }
        }
        prop_assert_eq!(&all, decided.as_ref().unwrap_or(&Ok(Header::Partial)));
        if let Ok(Header::Whole { length, .. }) = all {
            prop_assert!(length <= bytes.len() && length <= FIXED + MOST_REST);
        }
    }
}
