//! How long a message's body is and whether its connection can be used again (RFC 9112, sections 6.3 and 9.3).

use http::{Method, StatusCode};

use crate::error::Error;
use crate::fields::{Fields, has_token};
use crate::name::Known;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes; 0 is no body.
    Length(u64),
    Chunked,
    /// With the connection; of answers alone.
    UntilClose,
}

impl Framing {
    pub const NONE: Self = Self::Length(0);

    /// A length that is known.
    pub fn length(self) -> Option<u64> {
        match self {
            Self::Length(length) => Some(length),
            Self::Chunked | Self::UntilClose => None,
        }
    }

    pub(crate) fn of_request(fields: &Fields, http10: bool) -> Result<Self, Error> {
        let length = length(fields)?;
        let chunked = is_chunked(fields, http10)?;
        match (length, chunked) {
            (Some(_), true) => Err(Error::LengthAndCoding),
            (Some((_, true)), false) => Err(Error::Lengths),
            (Some((length, false)), false) => Ok(Self::Length(length)),
            (None, true) => Ok(Self::Chunked),
            (None, false) => Ok(Self::NONE),
        }
    }

    pub(crate) fn of_answer(
        fields: &Fields,
        http10: bool,
        status: StatusCode,
        method: &Method,
    ) -> Result<Self, Error> {
        let length = length(fields)?;
        let chunked = is_chunked(fields, http10)?;
        if length.is_some() && chunked {
            return Err(Error::LengthAndCoding);
        }
        if has_no_body(status, method) {
            return Ok(Self::NONE);
        }
        Ok(match (length, chunked) {
            (_, true) => Self::Chunked,
            // The same one several times is borne from cells, whose frameworks write it so.
            (Some((length, _)), false) => Self::Length(length),
            (None, false) => Self::UntilClose,
        })
    }
}

/// Whether an answer ends with its head, whatever its fields say.
pub(crate) fn has_no_body(status: StatusCode, method: &Method) -> bool {
    *method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || leaves_http(status, method)
}

/// Whether what follows the answer is no HTTP: both sides agreed on another protocol, or on a tunnel.
pub(crate) fn leaves_http(status: StatusCode, method: &Method) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || (*method == Method::CONNECT && status.is_success())
}

/// The length that the fields give, and whether they do so more than once.
pub(crate) fn length(fields: &Fields) -> Result<Option<(u64, bool)>, Error> {
    let mut found = None;
    for value in fields.all_known(Known::ContentLength).flat_map(|value| value.split(|byte| *byte == b',')) {
        let length = number(value.trim_ascii())?;
        found = match found {
            None => Some((length, false)),
            Some((before, _)) if before == length => Some((length, true)),
            Some(_) => return Err(Error::Lengths),
        };
    }
    Ok(found)
}

/// Digits alone: no sign, no space.
fn number(digits: &[u8]) -> Result<u64, Error> {
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Error::Length);
    }
    let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    if number > i64::MAX as u64 { Err(Error::Length) } else { Ok(number) }
}

fn is_chunked(fields: &Fields, http10: bool) -> Result<bool, Error> {
    let mut codings = fields.all_known(Known::TransferEncoding);
    let Some(coding) = codings.next() else { return Ok(false) };
    if http10 {
        return Err(Error::OldCoding);
    }
    if codings.next().is_some() || !coding.eq_ignore_ascii_case(b"chunked") {
        return Err(Error::Coding);
    }
    Ok(true)
}

/// Whether the sender keeps the connection after this message, by its version and what it says.
pub fn keeps_alive(fields: &Fields, http10: bool) -> bool {
    let says = |token| has_token(fields.all_known(Known::Connection), token);
    !says("close") && (!http10 || says("keep-alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a request with these fields, and of an answer.
    type Both = (Result<Framing, Error>, Result<Framing, Error>);

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().copied().collect()
    }

    #[track_caller]
    fn check(pairs: &[(&str, &str)], request: Result<Framing, Error>, answer: Result<Framing, Error>) {
        let fields = fields(pairs);
        assert_eq!(Framing::of_request(&fields, false), request, "request");
        assert_eq!(Framing::of_answer(&fields, false, StatusCode::OK, &Method::GET), answer, "answer");
    }

    #[test]
    fn one_length_or_one_coding_says_where_a_body_ends() {
        check(&[], Ok(Framing::NONE), Ok(Framing::UntilClose));
        check(&[("content-length", "7")], Ok(Framing::Length(7)), Ok(Framing::Length(7)));
        check(&[("Transfer-Encoding", "Chunked")], Ok(Framing::Chunked), Ok(Framing::Chunked));
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let both = |error| (Err(error), Err(error));
        let table: [(&[(&str, &str)], Both); 14] = [
            (&[("content-length", "7"), ("transfer-encoding", "chunked")], both(Error::LengthAndCoding)),
            (&[("content-length", "7"), ("content-length", "8")], both(Error::Lengths)),
            (&[("content-length", "7, 8")], both(Error::Lengths)),
            (
                &[("content-length", "7"), ("content-length", "7")],
                (Err(Error::Lengths), Ok(Framing::Length(7))),
            ),
            (&[("content-length", "7, 7")], (Err(Error::Lengths), Ok(Framing::Length(7)))),
            (&[("content-length", "+7")], both(Error::Length)),
            (&[("content-length", "0x7")], both(Error::Length)),
            (&[("content-length", "")], both(Error::Length)),
            (&[("content-length", "-1")], both(Error::Length)),
            (&[("content-length", "9223372036854775808")], both(Error::Length)),
            (&[("transfer-encoding", "gzip, chunked")], both(Error::Coding)),
            (&[("transfer-encoding", "chunked, chunked")], both(Error::Coding)),
            (&[("transfer-encoding", "identity")], both(Error::Coding)),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], both(Error::Coding)),
        ];
        for (pairs, (request, answer)) in table {
            check(pairs, request, answer);
        }
    }

    #[test]
    fn the_old_version_has_no_codings() {
        let fields = fields(&[("transfer-encoding", "chunked")]);
        assert_eq!(Framing::of_request(&fields, true), Err(Error::OldCoding));
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        let fields = fields(&[("content-length", "7")]);
        let check = |status: u16, method| {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(Framing::of_answer(&fields, false, status, &method), Ok(Framing::NONE), "{status}");
        };
        check(200, Method::HEAD);
        check(200, Method::CONNECT);
        for status in [100, 101, 204, 304] {
            check(status, Method::GET);
        }
    }

    #[test]
    fn a_connection_lasts_by_its_version_unless_the_sender_says_otherwise() {
        let check = |value: Option<&str>, new, old| {
            let fields = value.into_iter().map(|value| ("connection", value)).collect();
            assert_eq!((keeps_alive(&fields, false), keeps_alive(&fields, true)), (new, old), "{value:?}");
        };
        check(None, true, false);
        check(Some("keep-alive"), true, true);
        check(Some("x, Close"), false, false);
        check(Some("keep-alive, close"), false, false);
    }
}
