//! The time of day as answers say it (RFC 9110, section 6.6.1), written once a second.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;

/// Seconds since 1970, and the same as text.
struct Written {
    second: u64,
    text: String,
}

thread_local! {
    static DATE: RefCell<Written> = const { RefCell::new(Written { second: u64::MAX, text: String::new() }) };
}

/// Puts the field behind a head's others. The time is the caller's, in milliseconds since 1970.
pub(super) fn field(out: &mut Vec<u8>, unix_millis: u64) {
    with_text(unix_millis, |text| bulkhead_http1::field(out, b"date", text.as_bytes()));
}

/// The field's value alone.
pub(super) fn value(unix_millis: u64) -> HeaderValue {
    let value = with_text(unix_millis, HeaderValue::from_str);
    value.expect("a date has no characters that a value may not have")
}

fn with_text<T>(unix_millis: u64, use_it: impl FnOnce(&str) -> T) -> T {
    DATE.with_borrow_mut(|written| {
        let second = unix_millis / 1000;
        if written.second != second {
            written.second = second;
            written.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        use_it(&written.text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_that_of_the_second() {
        let check = |unix_millis, expected: &str| {
            let mut out = Vec::new();
            field(&mut out, unix_millis);
            assert_eq!(String::from_utf8_lossy(&out), expected);
            assert_eq!(format!("date: {}\r\n", value(unix_millis).to_str().expect("is text")), expected);
        };
        check(1_796_047_399_999, "date: Mon, 30 Nov 2026 14:03:19 GMT\r\n");
        check(1_796_047_400_000, "date: Mon, 30 Nov 2026 14:03:20 GMT\r\n");
    }
}
