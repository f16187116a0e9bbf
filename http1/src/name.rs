//! Names of fields that decide how a message is read and how far it goes. All others are only names.

/// A field that this crate, or whoever forwards a message, treats in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Connection,
    ContentLength,
    Expect,
    Host,
    Http2Settings,
    KeepAlive,
    ProxyConnection,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    Other,
}

impl Known {
    /// In small letters.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::ContentLength => "content-length",
            Self::Expect => "expect",
            Self::Host => "host",
            Self::Http2Settings => "http2-settings",
            Self::KeepAlive => "keep-alive",
            Self::ProxyConnection => "proxy-connection",
            Self::Te => "te",
            Self::Trailer => "trailer",
            Self::TransferEncoding => "transfer-encoding",
            Self::Upgrade => "upgrade",
            Self::Other => "",
        }
    }

    pub(crate) fn of(name: &[u8]) -> Self {
        let Some(first) = name.first() else { return Self::Other };
        let candidate = match (name.len(), first.to_ascii_lowercase()) {
            (2, b't') => Self::Te,
            (4, b'h') => Self::Host,
            (6, b'e') => Self::Expect,
            (7, b'u') => Self::Upgrade,
            (7, b't') => Self::Trailer,
            (10, b'c') => Self::Connection,
            (10, b'k') => Self::KeepAlive,
            (14, b'c') => Self::ContentLength,
            (14, b'h') => Self::Http2Settings,
            (16, b'p') => Self::ProxyConnection,
            (17, b't') => Self::TransferEncoding,
            _ => return Self::Other,
        };
        if name.eq_ignore_ascii_case(candidate.as_str().as_bytes()) { candidate } else { Self::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case_and_no_others_are() {
        for known in [
            Known::Connection,
            Known::ContentLength,
            Known::Expect,
            Known::Host,
            Known::Http2Settings,
            Known::KeepAlive,
            Known::ProxyConnection,
            Known::Te,
            Known::Trailer,
            Known::TransferEncoding,
            Known::Upgrade,
        ] {
            assert_eq!(Known::of(known.as_str().as_bytes()), known);
            assert_eq!(Known::of(known.as_str().to_ascii_uppercase().as_bytes()), known);
        }
        for other in ["", "x", "hosts", "post", "content-lengt", "accept-charset"] {
            assert_eq!(Known::of(other.as_bytes()), Known::Other);
        }
    }
}
