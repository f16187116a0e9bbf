//! Problem documents (RFC 9457): how a router says what it decided, apart from what a cell answered.

use serde::{Deserialize, Serialize};

use crate::reason::Reason;

/// The body of an answer that the router or a cell-runtime made itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `about:blank`: the reason says more than a URI would.
    pub r#type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// One of [`Reason`]'s words.
    pub reason: String,
    /// The transaction, where it had an id already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
}

impl Problem {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            r#type: "about:blank".to_owned(),
            title: reason.title().to_owned(),
            status: reason.status(),
            detail: detail.into(),
            reason: reason.as_str().to_owned(),
            transaction: None,
        }
    }
}
