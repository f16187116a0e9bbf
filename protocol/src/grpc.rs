//! What gRPC asks of whoever stands between its callers and its services: how its requests are known, how long they may take,
//! and what they are told in the place of a problem document
//! (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).

use std::fmt::Write as _;
use std::time::Duration;

use crate::Reason;

/// How a call ended (https://grpc.io/docs/guides/status-codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

impl Code {
    /// As the list of codes has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Aborted => "ABORTED",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
        }
    }

    /// What a refusal says. Clients send again what is `UNAVAILABLE`, so that it is said only where nothing happened, and
    /// whatever may have been worked on is `UNKNOWN`.
    pub const fn of(reason: Reason) -> Self {
        match reason {
            Reason::AllDrained
            | Reason::NoHealthyCell
            | Reason::OwnerUnavailable
            | Reason::OwnerMoving
            | Reason::Capacity
            | Reason::RouterOverloaded
            | Reason::Draining
            | Reason::ConnectFailed
            | Reason::DestinationUnavailable
            | Reason::LedgerUnavailable
            | Reason::CellRestart
            | Reason::ServiceNotReady
            | Reason::WrongCell => Self::Unavailable,
            Reason::UpstreamReset
            | Reason::UpstreamProtocol
            | Reason::CellDisabled
            | Reason::PodGone
            | Reason::ServiceFailed
            | Reason::OutcomeUnknown
            | Reason::DecidedUnknown => Self::Unknown,
            Reason::Timeout | Reason::RequestTimeout => Self::DeadlineExceeded,
            Reason::NoRule => Self::Unimplemented,
            Reason::Decided => Self::AlreadyExists,
            Reason::InFlight => Self::Aborted,
            Reason::KeyReused | Reason::Malformed => Self::InvalidArgument,
            Reason::DestinationForbidden => Self::PermissionDenied,
            Reason::BodyTooLarge | Reason::HeadTooLarge => Self::ResourceExhausted,
            Reason::Internal => Self::Internal,
        }
    }
}

/// The media type of gRPC. That of messages may follow it, behind `+`.
pub const MEDIA_TYPE: &str = "application/grpc";
pub const STATUS: &str = "grpc-status";
pub const MESSAGE: &str = "grpc-message";
pub const TIMEOUT: &str = "grpc-timeout";

/// Whether a `content-type` is gRPC's; gRPC-Web is not, which HTTP/1.1 can carry.
pub fn is_grpc(content_type: Option<&[u8]>) -> bool {
    let Some((begin, rest)) = content_type.and_then(|value| value.split_at_checked(MEDIA_TYPE.len())) else {
        return false;
    };
    begin.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes())
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// How long the caller waits: up to eight digits, and a letter for what they count.
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// What a call is told that is refused: the fields of an answer of status 200 that has no body, and ends with its head.
pub fn refusal(reason: Reason, detail: &str) -> [(&'static str, String); 3] {
    [
        ("content-type", MEDIA_TYPE.to_owned()),
        (STATUS, (Code::of(reason) as u8).to_string()),
        (MESSAGE, percent_encoded(&format!("{reason}: {detail}"))),
    ]
}

/// What is no visible character of ASCII, and `%`, as `%` and two digits.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            // A String takes all text.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_did_not_happen_may_be_sent_again() {
        for reason in Reason::ALL {
            let untouched = reason.status() == 503 || *reason == Reason::WrongCell;
            assert_eq!(Code::of(*reason) == Code::Unavailable, untouched, "{reason}");
        }
        assert_eq!(Code::of(Reason::OutcomeUnknown), Code::Unknown);
    }

    #[test]
    fn calls_are_known_by_their_media_type() {
        let check = |value: &str, expected| assert_eq!(is_grpc(Some(value.as_bytes())), expected, "{value}");
        check("application/grpc", true);
        check("Application/gRPC+proto", true);
        check("application/grpc; charset=utf-8", true);
        check("application/grpc-web", false);
        check("application/grp", false);
        check("application/json", false);
        assert!(!is_grpc(None));
    }

    #[test]
    fn a_timeout_is_a_number_and_what_it_counts() {
        let check = |value: &str, expected: Option<Duration>| {
            assert_eq!(timeout(value.as_bytes()), expected, "{value}")
        };
        check("1H", Some(Duration::from_secs(3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("99999999S", Some(Duration::from_secs(99_999_999)));
        check("250m", Some(Duration::from_millis(250)));
        check("7u", Some(Duration::from_micros(7)));
        check("7n", Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "1s", "100000000S", "-1S", "1 S", "1.5S"] {
            check(wrong, None);
        }
    }

    #[test]
    fn what_no_field_may_say_is_encoded() {
        let [_, status, message] = refusal(Reason::NoHealthyCell, "100 % of it\r\nis \u{e4}");
        assert_eq!(status, (STATUS, "14".to_owned()));
        assert_eq!(message, (MESSAGE, "NoHealthyCell: 100 %25 of it%0D%0Ais %C3%A4".to_owned()));
    }
}
