//! Egress and continuation: what a cell hands to the router for a destination, and what comes back to the cell. Here are
//! the heads and how a body splits; when any of it may be sent is decided elsewhere.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::fields;
use crate::reason::Reason;

/// Bytes of context and message together that a router takes from a cell.
pub const MAX_BODY: usize = 1024 * 1024;
/// Bytes of context. It is held until the transaction ends, and sent back with every answer.
pub const MAX_CONTEXT: usize = 64 * 1024;
/// Bytes of a context's version.
pub const MAX_VERSION: usize = 64;
/// Bytes of a Destination's name, as of any object in Kubernetes (RFC 1123).
pub const MAX_DESTINATION: usize = 253;
/// Bytes of a path that a cell asks for.
pub const MAX_PATH: usize = 1024;
const METHOD: &str = "a method, and not CONNECT";
const NAME: &str = "a Destination's name: 1 to 253 of a-z, 0-9, - and .";
const PATH: &str = "a path of at most 1024 bytes, which begins with /";
/// Egresses of one transaction: more are a workflow that goes in circles.
pub const MAX_EGRESSES: u32 = 32;

/// What became of an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EgressStatus {
    /// The destination answered; its answer follows the context.
    Answered,
    /// Provably nothing of it reached the destination.
    NotSent,
    /// It may have reached the destination, and no answer came.
    Unknown,
}

impl EgressStatus {
    pub const ALL: [Self; 3] = [Self::Answered, Self::NotSent, Self::Unknown];

    /// The word of `bulkhead-egress-status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NotSent => "not-sent",
            Self::Unknown => "unknown",
        }
    }
}

impl std::str::FromStr for EgressStatus {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|status| status.as_str() == word).ok_or(())
    }
}

/// Why a head does not say what it must.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is given more than once")]
    Repeated(&'static str),
    #[error("{0} is not {1}")]
    Wrong(&'static str, &'static str),
    #[error("the body has {length} bytes, less than the {context} of its context")]
    Short { length: usize, context: usize },
}

/// The head of a cell's answer that asks for an egress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    pub number: u32,
    pub destination: String,
    /// Its length in the body, and who can go on from it.
    pub context: Option<ContextHead>,
    pub method: Method,
    /// Absent: the Destination's own path.
    pub path: Option<String>,
}

/// The context that precedes a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextHead {
    pub length: usize,
    pub version: String,
}

impl Egress {
    /// # Errors
    /// Which field is missing, repeated or wrong.
    pub fn read(headers: &HeaderMap) -> Result<Self, Malformed> {
        let number = required(headers, fields::EGRESS)?;
        let number = parse(number, fields::EGRESS, "a number from 1 to 32")?;
        if number == 0 || number > MAX_EGRESSES {
            return Err(Malformed::Wrong(fields::EGRESS, "a number from 1 to 32"));
        }
        let path = one(headers, fields::EGRESS_PATH)?.map(str::to_owned);
        if path.as_ref().is_some_and(|path| !path.starts_with('/') || path.len() > MAX_PATH) {
            return Err(Malformed::Wrong(fields::EGRESS_PATH, PATH));
        }
        let method = match one(headers, fields::EGRESS_METHOD)? {
            None => Method::POST,
            Some(word) => parse(word, fields::EGRESS_METHOD, METHOD)?,
        };
        // What is asked for after it would be no message, and no path would hold it.
        if method == Method::CONNECT {
            return Err(Malformed::Wrong(fields::EGRESS_METHOD, METHOD));
        }
        Ok(Self {
            number,
            destination: destination(headers)?.ok_or(Malformed::Missing(fields::DESTINATION))?.to_owned(),
            context: context(headers)?,
            method,
            path,
        })
    }

    /// Puts the fields on, the outcome among them.
    pub fn write(&self, headers: &mut HeaderMap) {
        put(headers, fields::OUTCOME, fields::OUTCOME_EGRESS);
        put(headers, fields::EGRESS, &self.number.to_string());
        put(headers, fields::DESTINATION, &self.destination);
        if self.method != Method::POST {
            put(headers, fields::EGRESS_METHOD, self.method.as_str());
        }
        if let Some(path) = &self.path {
            put(headers, fields::EGRESS_PATH, path);
        }
        write_context(headers, self.context.as_ref());
    }
}

/// The head of the request that brings a cell the answer of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    pub number: u32,
    pub context: Option<ContextHead>,
    pub status: EgressStatus,
    /// Status code of the destination's answer, where there is one.
    pub answer: Option<u16>,
    /// Why it was not sent, or why its outcome is unknown.
    pub reason: Option<Reason>,
    /// Whether a message with effects may have reached a destination, this one or one before it. So it is taken to be where
    /// a router does not say, which promises least.
    pub committed: bool,
}

impl Continue {
    /// # Errors
    /// Which field is missing, repeated or wrong.
    pub fn read(headers: &HeaderMap) -> Result<Self, Malformed> {
        let status = required(headers, fields::EGRESS_STATUS)?;
        let answer = match one(headers, fields::DESTINATION_STATUS)? {
            None => None,
            Some(code) => Some(parse(code, fields::DESTINATION_STATUS, "a status code")?),
        };
        Ok(Self {
            number: parse(required(headers, fields::EGRESS)?, fields::EGRESS, "a number")?,
            context: context(headers)?,
            status: parse(status, fields::EGRESS_STATUS, "one of answered, not-sent and unknown")?,
            answer,
            // A router may give reasons that this cell does not know yet.
            reason: one(headers, fields::REASON)?.and_then(|word| word.parse().ok()),
            committed: match one(headers, fields::STAGE)? {
                Some(fields::STAGE_RESTARTABLE) => false,
                None | Some(fields::STAGE_COMMITTED) => true,
                Some(_) => return Err(Malformed::Wrong(fields::STAGE, "restartable or committed")),
            },
        })
    }

    /// Puts the fields on, the outcome among them.
    pub fn write(&self, headers: &mut HeaderMap) {
        put(headers, fields::OUTCOME, fields::OUTCOME_CONTINUE);
        put(headers, fields::EGRESS, &self.number.to_string());
        put(headers, fields::EGRESS_STATUS, self.status.as_str());
        if let Some(code) = self.answer {
            put(headers, fields::DESTINATION_STATUS, &code.to_string());
        }
        if let Some(reason) = self.reason {
            put(headers, fields::REASON, reason.as_str());
        }
        let stage = if self.committed { fields::STAGE_COMMITTED } else { fields::STAGE_RESTARTABLE };
        put(headers, fields::STAGE, stage);
        write_context(headers, self.context.as_ref());
    }
}

/// The Destination that a cell's answer is for, where it names one.
///
/// # Errors
/// When it is repeated, or not a name.
pub fn destination(headers: &HeaderMap) -> Result<Option<&str>, Malformed> {
    let name = one(headers, fields::DESTINATION)?;
    let legal = |name: &str| {
        let of_a_name = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        (1..=MAX_DESTINATION).contains(&name.len()) && name.bytes().all(of_a_name)
    };
    match name.is_none_or(legal) {
        true => Ok(name),
        false => Err(Malformed::Wrong(fields::DESTINATION, NAME)),
    }
}

/// Context and message of a body.
///
/// # Errors
/// When the body ends within the context.
pub fn split(mut body: Bytes, context: Option<&ContextHead>) -> Result<(Bytes, Bytes), Malformed> {
    let context = context.map_or(0, |context| context.length);
    if body.len() < context {
        return Err(Malformed::Short { length: body.len(), context });
    }
    let message = body.split_off(context);
    Ok((body, message))
}

fn context(headers: &HeaderMap) -> Result<Option<ContextHead>, Malformed> {
    const LENGTH: &str = "a number of bytes, at most 65536";
    let version = one(headers, fields::CONTEXT_VERSION)?;
    let Some(length) = one(headers, fields::CONTEXT_LENGTH)? else {
        return match version {
            None => Ok(None),
            Some(_) => Err(Malformed::Missing(fields::CONTEXT_LENGTH)),
        };
    };
    let length = parse(length, fields::CONTEXT_LENGTH, LENGTH)?;
    if length > MAX_CONTEXT {
        return Err(Malformed::Wrong(fields::CONTEXT_LENGTH, LENGTH));
    }
    let version = version.ok_or(Malformed::Missing(fields::CONTEXT_VERSION))?;
    if version.is_empty() || version.len() > MAX_VERSION {
        return Err(Malformed::Wrong(fields::CONTEXT_VERSION, "a word of 1 to 64 bytes"));
    }
    Ok(Some(ContextHead { length, version: version.to_owned() }))
}

fn write_context(headers: &mut HeaderMap, context: Option<&ContextHead>) {
    if let Some(context) = context {
        put(headers, fields::CONTEXT_LENGTH, &context.length.to_string());
        put(headers, fields::CONTEXT_VERSION, &context.version);
    }
}

fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    // What no header can hold was refused where it was read: names, numbers and words of ours always fit.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

fn required<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Malformed> {
    one(headers, name)?.ok_or(Malformed::Missing(name))
}

/// The value of a field that is given at most once.
///
/// # Errors
/// When it is repeated, or not visible ASCII.
pub fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Malformed> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Malformed::Repeated(name));
    }
    value.to_str().map(Some).map_err(|_| Malformed::Wrong(name, "visible ASCII"))
}

fn parse<T: std::str::FromStr>(text: &str, name: &'static str, what: &'static str) -> Result<T, Malformed> {
    text.parse().map_err(|_| Malformed::Wrong(name, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn egress() -> Egress {
        Egress {
            number: 2,
            destination: "visa".to_owned(),
            context: Some(ContextHead { length: 3, version: "s1".to_owned() }),
            method: Method::PUT,
            path: Some("/authorise".to_owned()),
        }
    }

    fn written() -> HeaderMap {
        let mut headers = HeaderMap::new();
        egress().write(&mut headers);
        headers
    }

    #[test]
    fn heads_survive_the_wire() {
        assert_eq!(written()[fields::OUTCOME], fields::OUTCOME_EGRESS);
        assert_eq!(Egress::read(&written()), Ok(egress()));
        for status in EgressStatus::ALL {
            let back = Continue {
                number: 1,
                context: egress().context,
                status,
                answer: Some(201),
                reason: Some(Reason::DestinationUnavailable),
                committed: status == EgressStatus::Unknown,
            };
            let mut headers = HeaderMap::new();
            back.write(&mut headers);
            assert_eq!(Continue::read(&headers), Ok(back));
        }
    }

    #[test]
    fn a_transaction_is_committed_unless_the_router_says_that_it_is_not() {
        let check = |stage: Option<&'static str>, expected: Result<bool, Malformed>| {
            let mut headers = HeaderMap::new();
            put(&mut headers, fields::EGRESS, "1");
            put(&mut headers, fields::EGRESS_STATUS, "answered");
            if let Some(stage) = stage {
                put(&mut headers, fields::STAGE, stage);
            }
            assert_eq!(Continue::read(&headers).map(|back| back.committed), expected, "{stage:?}");
        };
        check(Some("restartable"), Ok(false));
        check(Some("committed"), Ok(true));
        check(None, Ok(true));
        check(Some("new"), Err(Malformed::Wrong(fields::STAGE, "restartable or committed")));
    }

    #[track_caller]
    fn check(name: &'static str, value: Option<&str>, expected: Malformed) {
        let mut headers = written();
        match value {
            None => drop(headers.remove(name)),
            Some(value) => put(&mut headers, name, value),
        }
        assert_eq!(Egress::read(&headers), Err(expected));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        use fields::{CONTEXT_LENGTH, CONTEXT_VERSION, DESTINATION, EGRESS, EGRESS_PATH};
        check(DESTINATION, None, Malformed::Missing(DESTINATION));
        check(EGRESS, Some("0"), Malformed::Wrong(EGRESS, "a number from 1 to 32"));
        check(EGRESS, Some("33"), Malformed::Wrong(EGRESS, "a number from 1 to 32"));
        check(EGRESS, Some("-1"), Malformed::Wrong(EGRESS, "a number from 1 to 32"));
        check(EGRESS_PATH, Some("http://x"), Malformed::Wrong(EGRESS_PATH, PATH));
        check(EGRESS_PATH, Some(&format!("/{}", "x".repeat(1024))), Malformed::Wrong(EGRESS_PATH, PATH));
        for name in ["", "Visa", "visa/x", "visa_x", "a b", &"x".repeat(254)] {
            check(DESTINATION, Some(name), Malformed::Wrong(DESTINATION, NAME));
        }
        check(CONTEXT_LENGTH, None, Malformed::Missing(CONTEXT_LENGTH));
        check(CONTEXT_VERSION, None, Malformed::Missing(CONTEXT_VERSION));
        check(fields::EGRESS_METHOD, Some("CONNECT"), Malformed::Wrong(fields::EGRESS_METHOD, METHOD));
        let length = "a number of bytes, at most 65536";
        check(CONTEXT_LENGTH, Some("65537"), Malformed::Wrong(CONTEXT_LENGTH, length));
        let mut twice = written();
        twice.append(EGRESS, HeaderValue::from_static("3"));
        assert_eq!(Egress::read(&twice), Err(Malformed::Repeated(EGRESS)));
    }

    #[test]
    fn names_and_paths_may_be_as_long_as_they_may_be() {
        let longest = Egress {
            destination: format!("{}.0-9", "x".repeat(249)),
            path: Some(format!("/{}", "x".repeat(1023))),
            ..egress()
        };
        let mut headers = HeaderMap::new();
        longest.write(&mut headers);
        assert_eq!(Egress::read(&headers), Ok(longest));
    }

    #[test]
    fn a_body_splits_behind_its_context() {
        let head = ContextHead { length: 3, version: "1".to_owned() };
        let check = |body: &'static [u8], context, expected| {
            let parts = split(Bytes::from_static(body), context);
            assert_eq!(parts.map(|(context, message)| (context.to_vec(), message.to_vec())), expected);
        };
        check(b"abcde", Some(&head), Ok((b"abc".to_vec(), b"de".to_vec())));
        check(b"abc", Some(&head), Ok((b"abc".to_vec(), vec![])));
        check(b"abc", None, Ok((vec![], b"abc".to_vec())));
        check(b"ab", Some(&head), Err(Malformed::Short { length: 2, context: 3 }));
    }
}
