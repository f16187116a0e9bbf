//! How the issuer behaves, by flags and changed while it runs. What it counts is the book's.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything about the issuer that can change while it runs.
#[derive(Args, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Behaviour {
    /// Milliseconds from a message to its answer.
    #[arg(long, default_value_t = 15)]
    pub delay_ms: u64,
    /// What becomes of a message.
    #[arg(long, value_enum, default_value_t)]
    pub answer: Answer,
    /// Whether messages have an effect, which is then counted.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub executes: bool,
    /// Whether a key seen before gets the first answer again in the place of a second execution.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub duplicate_check: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "camelCase")]
pub enum Answer {
    #[default]
    Approve,
    Decline,
    /// Executes and never answers.
    Silent,
    /// Executes and closes the connection without an answer.
    Close,
    /// Closes the connection before it executes.
    CloseBefore,
    /// Nobody listens; what is under way is finished.
    Refuse,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { delay_ms: 15, answer: Answer::Approve, executes: true, duplicate_check: false }
    }
}

impl Behaviour {
    /// With the fields that `change` names; the others stay.
    ///
    /// # Errors
    /// When it is no object, or a field is unknown or malformed, with which.
    pub fn changed(&self, change: Value) -> serde_json::Result<Self> {
        let mut whole: serde_json::Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        let change: serde_json::Map<String, Value> = serde_json::from_value(change)?;
        whole.extend(change);
        serde_json::from_value(Value::Object(whole))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let slow = Behaviour { delay_ms: 2_000, ..Behaviour::default() };
        let changed = slow.changed(json!({"answer": "closeBefore"})).expect("is well-formed");
        assert_eq!(changed, Behaviour { answer: Answer::CloseBefore, ..slow });
    }

    #[test]
    fn a_change_of_something_unknown_is_refused_with_its_name() {
        let refused = |change| Behaviour::default().changed(change).expect_err("is malformed").to_string();
        assert!(refused(json!({"answers": "approve"})).contains("answers"));
        assert!(refused(json!({"answer": "maybe"})).contains("maybe"));
        assert!(!refused(json!([])).is_empty());
    }
}
