//! Building conditions, and the few rules that all kinds share. What holds of an object is decided beside its kind.

use bulkhead_crds::condition::{self, Condition, ConditionStatus};

/// The API's limit for a message.
const MAX_MESSAGE: usize = 4000;

/// One statement, before it has a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub r#type: &'static str,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

pub(crate) fn statement(
    r#type: &'static str,
    status: impl Into<ConditionStatus>,
    reason: impl Into<String>,
    message: impl Into<String>,
) -> Statement {
    let message: String = message.into();
    let message = match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => message[..end].to_owned(),
        None => message,
    };
    Statement { r#type, status: status.into(), reason: reason.into(), message }
}

/// The conditions that follow from the last ones: a time changes only with its status, and what is no longer stated
/// goes.
pub(crate) fn state(
    last: &[Condition],
    statements: Vec<Statement>,
    generation: Option<i64>,
    now: &str,
) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = last
        .iter()
        .filter(|condition| statements.iter().any(|statement| statement.r#type == condition.r#type))
        .cloned()
        .collect();
    for Statement { r#type, status, reason, message } in statements {
        let next = Condition {
            r#type: r#type.to_owned(),
            status,
            reason,
            message,
            last_transition_time: now.to_owned(),
            observed_generation: generation,
        };
        condition::set(&mut conditions, next);
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_longer_stated_goes_and_the_rest_keeps_its_time() {
        let last = state(
            &[],
            vec![statement("Ready", true, "Fine", ""), statement("Old", true, "Fine", "")],
            Some(1),
            "first",
        );
        let next = state(&last, vec![statement("Ready", true, "Better", "")], Some(2), "second");
        assert_eq!(next.len(), 1);
        assert_eq!((next[0].last_transition_time.as_str(), next[0].reason.as_str()), ("first", "Better"));
        assert_eq!(next[0].observed_generation, Some(2));
    }

    #[test]
    fn a_message_beyond_the_limit_is_cut_at_a_character() {
        assert_eq!(statement("Ready", false, "Long", "é".repeat(5000)).message.chars().count(), MAX_MESSAGE);
    }
}
