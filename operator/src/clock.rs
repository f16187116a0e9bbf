//! The time as conditions and leases write it. Decisions take it as a value.

use bulkhead_process::clock::now_unix_millis;
use jiff::Timestamp;

/// Now, by the wall clock.
pub(crate) fn now() -> Timestamp {
    i64::try_from(now_unix_millis())
        .ok()
        .and_then(|millis| Timestamp::from_millisecond(millis).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// As `metav1.Time` writes it: RFC 3339 in whole seconds.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_whole_seconds() {
        let time = Timestamp::from_millisecond(1_700_000_000_999).expect("in range");
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20Z");
    }
}
