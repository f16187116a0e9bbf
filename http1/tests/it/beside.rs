//! What others make of the same bytes, beside what is read here. Where they differ, the difference is in a list with its
//! reason, and nothing is in the list that does not differ.

use std::fmt::Write as _;

use crate::cases::REQUESTS;
use crate::forwarding::{Form, Seen, forward};
use crate::reading::{LIMIT, Message, Reading, requests, requests_within};

/// The last request of a connection: whoever sees it has taken everything before it for whole.
pub(crate) const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n";

/// What somebody made of a connection's bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sight {
    pub(crate) seen: Vec<Seen>,
    /// What came behind was refused.
    pub(crate) refused: bool,
}

/// Cases that somebody reads otherwise, and why that may be.
pub(crate) struct Difference {
    pub(crate) reason: &'static str,
    /// What is made of each, with [`LAST`] behind it, as [`Sight::told`] says it.
    pub(crate) cases: &'static [(&'static str, &'static str)],
}

impl Sight {
    pub(crate) fn of(reading: &Reading) -> Self {
        let whole = reading.messages.iter().filter(|message| message.whole);
        let seen = whole.map(|message| {
            let (method, target) = message.line.split_once(' ').expect("a request has both");
            (method.to_owned(), target.to_owned(), message.body.clone())
        });
        Self { seen: seen.collect(), refused: reading.error.is_some() }
    }

    /// `POST / <hello> | GET /last`, with `!` for what was refused.
    pub(crate) fn told(&self) -> String {
        let mut told = String::new();
        for (place, (method, target, body)) in self.seen.iter().enumerate() {
            let between = if place > 0 { " | " } else { "" };
            let body = if body.is_empty() { String::new() } else { format!(" <{}>", body.escape_ascii()) };
            write!(told, "{between}{method} {target}{body}").expect("a String takes all text");
        }
        match (self.refused, told.is_empty()) {
            (true, true) => told.push('!'),
            (true, false) => told.push_str(" | !"),
            (false, _) => {}
        }
        told
    }
}

/// Asserts that each case is read alike but for the differences that are listed.
pub(crate) fn check_cases(differences: &[Difference], theirs: impl Fn(&[u8]) -> Sight) {
    let mut wrong = Vec::new();
    for case in REQUESTS {
        let bytes = [case.bytes, LAST].concat();
        let (ours, theirs) = (Sight::of(&requests(&[&bytes])).told(), theirs(&bytes).told());
        let mut all = differences.iter().flat_map(|difference| difference.cases);
        let listed = all.find(|(name, _)| *name == case.name);
        let expected = listed.map_or(ours.as_str(), |(_, theirs)| *theirs);
        if theirs != expected || (listed.is_some() && theirs == ours) {
            wrong.push(format!("{}: {theirs:?} beside our {ours:?}, and listed is {expected:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for Difference { reason, cases } in differences {
        let unknown = cases.iter().find(|(name, _)| !REQUESTS.iter().any(|case| case.name == *name));
        assert!(unknown.is_none() && !reason.is_empty(), "{unknown:?} is no case");
    }
}

/// Asserts that who is sent what goes on of these bytes sees the requests that were read, and the last behind them; or
/// all before the first that it refuses for a reason of its own.
pub(crate) fn check_seen(
    bytes: &[u8],
    form: Form,
    refuses: impl Fn(&Message) -> bool,
    theirs: impl Fn(&[u8]) -> Sight,
) {
    let (sent, mut expected) = forward(&requests(&[bytes]), form);
    expected.push(("GET".to_owned(), "/last".to_owned(), Vec::new()));
    // A host may have been put in where there was none.
    let refused = requests_within(&[&sent], 2 * LIMIT).messages.iter().position(refuses);
    expected.truncate(refused.unwrap_or(expected.len()));
    let expected = Sight { seen: expected, refused: refused.is_some() };
    let theirs = theirs(&[&sent, LAST].concat());
    assert_eq!(theirs.told(), expected.told(), "of {:?}", sent.escape_ascii().to_string());
}
