//! Heads of requests that came in HTTP/2, as HTTP/1.1 says them (RFC 9113, section 8). Where the two could be read in
//! different ways, which is how requests are smuggled, there is no head but an error.

use http::request::Parts;
use http::{HeaderValue, Method, Uri, header};

use crate::error::Error;
use crate::fields::Fields;
use crate::framing;
use crate::head::MOST_FIELDS;
use crate::name::Known;
use crate::request::is_host;

/// A head that says the same in HTTP/1.1 as it did in HTTP/2.
#[derive(Debug)]
pub struct Downgraded {
    pub method: Method,
    /// In origin form, or `*`.
    pub target: Uri,
    /// `host` first, from `:authority` where there is one.
    pub fields: Fields,
    /// `content-length`, which the body has to have.
    pub length: Option<u64>,
    /// The client waits for `100` before it sends its body (RFC 9110, section 10.1.1).
    pub expects_continue: bool,
}

macro_rules! malformed {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $rule:literal;)+) => {
        /// Why the head of a request in HTTP/2 is none that may be passed on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum Malformed { $($(#[doc = $doc])+ #[error($text)] $name,)+ }

        impl Malformed {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Where the rule stands that was broken.
            pub const fn rule(self) -> &'static str {
                match self { $(Self::$name => $rule,)+ }
            }

            /// What of it was refused, for the documentation.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

malformed! {
    /// CONNECT, whether for a tunnel or, with `:protocol`, for WebSocket (RFC 8441).
    Connect = "CONNECT is not taken over HTTP/2", "RFC 9113, section 8.5, and RFC 8441, section 4";
    /// A `:path` that does not begin with `/`; `*` is OPTIONS' alone.
    Path = ":path does not begin with /", "RFC 9113, section 8.3.1";
    /// Neither `:authority` nor `host`, or an empty one.
    NoAuthority = "there is neither :authority nor host", "RFC 9113, section 8.3.1";
    /// A host that is no name or address with or without a port, such as one with somebody's name before `@`.
    Authority = ":authority or host is no host", "RFC 9113, section 8.3.1, and RFC 3986, section 3.2.2";
    /// `:authority` and `host` that name different hosts, in any case of letters.
    AuthorityDiffers = ":authority and host name different hosts", "RFC 9113, section 8.3.1";
    /// More than one `host`.
    Hosts = "host is given more than once", "RFC 9110, section 7.2";
    /// `connection`, `keep-alive`, `proxy-connection`, `transfer-encoding`, `upgrade` or `http2-settings`.
    ConnectionField = "a field speaks of one connection, which HTTP/2 has no fields for", "RFC 9113, section 8.2.2";
    /// `te` with anything but `trailers`.
    Te = "te says anything but trailers", "RFC 9113, section 8.2.2";
    /// A value with CR, LF, NUL or another control character, or with a space or tab before or behind it.
    FieldValue = "a field's value has characters that values do not have, or space around it", "RFC 9113, section 8.2.1";
    /// A `content-length` that is no number, or a number above 2^63.
    Length = "content-length is no length", "RFC 9110, section 8.6";
    /// A `content-length` that is given more than once.
    Lengths = "content-length is given more than once", "RFC 9110, section 8.6";
    /// More than 100 fields.
    TooManyFields = "the head has more than 100 fields", "RFC 6585, section 5";
}

impl Malformed {
    /// Whether it is about size alone.
    pub fn is_too_large(self) -> bool {
        self == Self::TooManyFields
    }
}

/// What a head says in HTTP/1.1.
///
/// # Errors
/// Why it says nothing there that may be passed on.
pub fn downgrade(parts: &Parts) -> Result<Downgraded, Malformed> {
    let Parts { method, uri, headers, .. } = parts;
    if *method == Method::CONNECT {
        return Err(Malformed::Connect);
    }
    // With cookies and the host in one field each, it is these that are written.
    if headers.len() >= MOST_FIELDS {
        return Err(Malformed::TooManyFields);
    }
    let target = target(method, uri)?;
    let mut fields = Fields::new();
    fields.push("host", host(parts)?);
    for (name, value) in headers {
        check(Known::of(name.as_str().as_bytes()), value)?;
        if name != header::HOST && name != header::COOKIE {
            fields.push(name.as_str(), value.as_bytes());
        }
    }
    if let Some(cookies) = cookies(parts) {
        fields.push("cookie", &cookies);
    }
    let length = length(&fields)?;
    let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    let expects_continue = headers.get(header::EXPECT).is_some_and(expects);
    Ok(Downgraded { method: method.clone(), target, fields, length, expects_continue })
}

fn target(method: &Method, uri: &Uri) -> Result<Uri, Malformed> {
    let path = uri.path_and_query().ok_or(Malformed::Path)?;
    match path.as_str() {
        "*" if *method == Method::OPTIONS => {}
        // What was a fragment alone, which the library takes off, is also written so.
        "/" => return Ok(Uri::from_static("/")),
        other if other.starts_with('/') => {}
        _ => return Err(Malformed::Path),
    }
    Ok(Uri::from(path.clone()))
}

/// Whom the request is for, said once.
fn host(parts: &Parts) -> Result<&[u8], Malformed> {
    let mut hosts = parts.headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Malformed::Hosts);
    }
    let authority = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let named = match (authority, host) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            return Err(Malformed::AuthorityDiffers);
        }
        (Some(name), _) | (None, Some(name)) if !name.is_empty() => name,
        _ => return Err(Malformed::NoAuthority),
    };
    if is_host(named) { Ok(named) } else { Err(Malformed::Authority) }
}

fn check(known: Known, value: &HeaderValue) -> Result<(), Malformed> {
    let bytes = value.as_bytes();
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_control = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 127;
    if is_space(bytes.first()) || is_space(bytes.last()) || bytes.iter().any(is_control) {
        return Err(Malformed::FieldValue);
    }
    match known {
        Known::Connection
        | Known::Http2Settings
        | Known::KeepAlive
        | Known::ProxyConnection
        | Known::TransferEncoding
        | Known::Upgrade => Err(Malformed::ConnectionField),
        Known::Te if bytes != b"trailers" => Err(Malformed::Te),
        Known::Te | Known::ContentLength | Known::Expect | Known::Host | Known::Trailer | Known::Other => {
            Ok(())
        }
    }
}

/// The parts that HTTP/2 may send cookies in, put together again (RFC 9113, section 8.2.3).
fn cookies(parts: &Parts) -> Option<Vec<u8>> {
    let crumbs = parts.headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    let crumbs = crumbs.filter(|crumb| !crumb.is_empty());
    crumbs.map(<[u8]>::to_vec).reduce(|joined, crumb| [&joined[..], b"; ", &crumb].concat())
}

fn length(fields: &Fields) -> Result<Option<u64>, Malformed> {
    match framing::length(fields) {
        Ok(None) => Ok(None),
        Ok(Some((length, false))) => Ok(Some(length)),
        Ok(Some((_, true))) | Err(Error::Lengths) => Err(Malformed::Lengths),
        Err(_) => Err(Malformed::Length),
    }
}

#[cfg(test)]
mod tests;
