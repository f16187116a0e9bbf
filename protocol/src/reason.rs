//! The one list of reasons why a request was not served by a cell. Each word is a problem document's `reason`, a
//! metric's label and the value of `bulkhead-reason` at once.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal, $title:literal;)+) => {
        /// Why a request was not served by a cell.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The word itself.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Status code of the answer.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// A short sentence, the same for every occurrence.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// What the reason means, for the documentation.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

reasons! {
    /// No rule of this listener matches the request.
    NoRule = 404, "No rule matches this request";
    /// Every cell of the rule has weight 0, is drained or is disabled.
    AllDrained = 503, "Every cell of the rule is drained";
    /// Every cell of the rule is out, and none is drained on purpose alone.
    NoHealthyCell = 503, "No cell of the rule is healthy";
    /// The cell that owns the key is out, and no other may serve it.
    OwnerUnavailable = 503, "The cell that owns this key is out";
    /// An edit of the policy moves this key to another cell, or may, and not every router is known to have it. Served again once `status.settledGeneration` of the policy is the edit's.
    OwnerMoving = 503, "This key is moving to another cell";
    /// Every cell that could take the request is at its capacity, or has half of what the listener may have under way (limits.inFlight).
    Capacity = 503, "The cells are at their capacity";
    /// This router is at one of its own limits.
    RouterOverloaded = 503, "The router is at its limit";
    /// The router or the cell is stopping and takes no new work.
    Draining = 503, "Draining";
    /// No connection to any pod of the cell could be made.
    ConnectFailed = 503, "The cell could not be reached";
    /// The cell or the destination closed the connection before it had answered, and what was sent may have been processed.
    UpstreamReset = 502, "The cell closed the connection before it answered";
    /// The cell or the destination answered with something that is no HTTP ([http.md](http.md)).
    UpstreamProtocol = 502, "The cell's answer is not valid HTTP";
    /// The attempt or the whole request ran out of time, and the request may have been processed.
    Timeout = 504, "No answer in time";
    /// The cell was disabled while it had the request, or drained for longer than the Router's drainTimeout. It may have been processed.
    CellDisabled = 502, "The cell was disabled";
    /// The pod went away while it had the request, which may have been processed.
    PodGone = 502, "The cell's pod is gone";
    /// The transaction may have had an effect at a destination, and what came of it cannot be told here. Ask for it by its id; sending it again is not safe.
    OutcomeUnknown = 500, "The outcome is unknown";
    /// A transaction of this id has had its effect; it is not run again.
    Decided = 409, "The transaction was decided before";
    /// A transaction of this id may have had its effect, and nobody knows; it is not run again, and a person decides.
    DecidedUnknown = 409, "The outcome of the transaction is unknown";
    /// A transaction of this id is under way.
    InFlight = 409, "The transaction is under way";
    /// A transaction of this id is known with another request.
    KeyReused = 422, "The idempotency key belongs to another request";
    /// The cell may not reach that destination, or there is none of that name.
    DestinationForbidden = 403, "The cell may not reach this destination";
    /// The destination could not be reached, or is at its limit; nothing was sent to it.
    DestinationUnavailable = 503, "The destination is not available";
    /// The ledger takes no record now (full or failing disk), so that nothing with an effect may begin.
    LedgerUnavailable = 503, "The ledger is not available";
    /// The orchestrator gave the transaction back.
    CellRestart = 503, "The cell gave the transaction back";
    /// A service that the cell needs is not ready.
    ServiceNotReady = 503, "A service that the cell needs is not ready";
    /// A service of the cell did not answer, or not in time.
    ServiceFailed = 502, "A service of the cell failed";
    /// The request was meant for another cell, or goes on from a context that this pod does not know. It was not touched.
    WrongCell = 421, "The request was meant for another cell";
    /// The body is larger than the rule's bufferLimit, or a destination's answer than its limits.answerBytes.
    BodyTooLarge = 413, "The body is too large";
    /// The request's head is larger than the listener's limit.
    HeadTooLarge = 431, "The request's head is too large";
    /// The request is no valid HTTP ([http.md](http.md)), or its body is not what a rule needs to read.
    Malformed = 400, "The request is malformed";
    /// The client did not send its request in time.
    RequestTimeout = 408, "The request did not arrive in time";
    /// Something broke that should not; the log has more.
    Internal = 500, "Internal error";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Reason {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::grpc::Code;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/reasons.md");
    const OPENING: &str = "\
<!-- Made from protocol/src/reason.rs; `BLESS=1 cargo test -p bulkhead-protocol` refreshes it. -->

# Reasons

Why a request was not served by a cell. The word is the `reason` of the answer's problem document (RFC 9457), a label of metrics, and the value of
`bulkhead-reason` at once. An answer of 503 means that nothing happened: it is safe to try again. Calls of gRPC are told the code of the third
column, with the word before their message; `UNAVAILABLE` means the same as 503.

| reason | status | gRPC | what it says | meaning |
|---|---|---|---|---|
";

    #[test]
    fn the_reference_names_every_reason() {
        let mut page = OPENING.to_owned();
        for reason in Reason::ALL {
            let doc = reason.doc().trim();
            let (status, title, code) = (reason.status(), reason.title(), Code::of(*reason).as_str());
            writeln!(page, "| `{reason}` | {status} | {code} | {title} | {doc} |")
                .expect("a String takes all text");
        }
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, &page).expect("the page can be written");
        }
        let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert!(committed == page, "{PAGE} is stale: run BLESS=1 cargo test -p bulkhead-protocol");
    }

    #[test]
    fn every_reason_is_read_back_from_its_word() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        assert_eq!("allDrained".parse::<Reason>(), Err(()));
    }
}
