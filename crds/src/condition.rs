//! Conditions in the manner of `metav1.Condition`, as kstatus and `kubectl wait` read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One statement about an object, with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is stated, such as `Ready`.
    #[schemars(length(max = 64))]
    pub r#type: String,
    pub status: ConditionStatus,
    /// One CamelCase word for why, for machines.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// A sentence for people: what is so, and what to do about it.
    #[schemars(length(max = 4096))]
    pub message: String,
    /// When `status` last changed, in RFC 3339.
    #[schemars(length(max = 40))]
    pub last_transition_time: String,
    /// The generation of the object that this was stated of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// `Unknown` means that it cannot be told now; it is never treated as safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The condition of that type, if it was ever stated.
pub fn find<'a>(conditions: &'a [Condition], r#type: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.r#type == r#type)
}

/// Whether the condition of that type was stated and holds.
pub fn is_true(conditions: &[Condition], r#type: &str) -> bool {
    find(conditions, r#type).is_some_and(|condition| condition.status == ConditionStatus::True)
}

/// Puts `next` in its place, keeping the time of the last transition where the status stays the same.
pub fn set(conditions: &mut Vec<Condition>, mut next: Condition) {
    match conditions.iter_mut().find(|condition| condition.r#type == next.r#type) {
        Some(last) => {
            if last.status == next.status {
                next.last_transition_time.clone_from(&last.last_transition_time);
            }
            *last = next;
        }
        None => conditions.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: ConditionStatus, time: &str) -> Condition {
        Condition {
            r#type: "Ready".to_owned(),
            status,
            reason: "Test".to_owned(),
            message: String::new(),
            last_transition_time: time.to_owned(),
            observed_generation: None,
        }
    }

    #[test]
    fn the_time_changes_only_with_the_status() {
        let mut conditions = vec![ready(ConditionStatus::True, "first")];
        set(&mut conditions, ready(ConditionStatus::True, "second"));
        assert_eq!(conditions[0].last_transition_time, "first");
        set(&mut conditions, ready(ConditionStatus::False, "third"));
        assert_eq!(conditions[0].last_transition_time, "third");
        assert_eq!(conditions.len(), 1);
    }
}
