//! What becomes of each object in a table: the words that end in conditions, the same from every router and the operator.

use std::collections::HashSet;

use bulkhead_crds::RoutingPolicy;
use bulkhead_crds::policy::ParentRef;

/// Longest text that one verdict carries; a condition's message holds 4096 characters.
const MAX_MESSAGE: usize = 2048;

/// One statement, with the reason for it. The words, each of which ends in a condition:
///
/// | of | fine | else |
/// |---|---|---|
/// | `accepted` of a policy | `Accepted` | `RouterNotFound`, `ListenerNotFound`, `NamespaceNotAllowed`; of some rules: `InvalidRule`, `Conflict` |
/// | `resolved_refs` | `ResolvedRefs` | `CellNotFound`, `CellNamedTwice`, `UnsafeRestart` |
/// | `accepted` of a TrafficShift | `Accepted` | `InvalidShift`, `CellNotFound`, `RuleNotFound`, `OwnerRule` |
/// | `accepted` of a Destination | `Accepted` | `InvalidDestination` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub ok: bool,
    /// A CamelCase word: `Accepted` or `ResolvedRefs` when ok.
    pub reason: &'static str,
    /// Sentences: what is so, with which object, and what to do.
    pub message: String,
}

/// What one listener makes of one policy. Where `accepted` is false for some of the rules only, the others serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentVerdict {
    pub namespace: String,
    pub name: String,
    pub parent: ParentRef,
    pub accepted: Outcome,
    pub resolved_refs: Outcome,
}

/// What becomes of one TrafficShift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftVerdict {
    pub name: String,
    pub accepted: Outcome,
}

/// What becomes of one Destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationVerdict {
    pub name: String,
    pub accepted: Outcome,
}

impl Outcome {
    pub(crate) fn accepted() -> Self {
        Self { ok: true, reason: "Accepted", message: "accepted".to_owned() }
    }

    pub(crate) fn resolved() -> Self {
        Self { ok: true, reason: "ResolvedRefs", message: "every cell named exists".to_owned() }
    }

    pub(crate) fn refused(reason: &'static str, message: impl Into<String>) -> Self {
        Self { ok: false, reason, message: message.into() }
    }
}

/// Collects what is wrong. The first reason names the condition; every sentence is kept as far as there is room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints {
    reason: Option<&'static str>,
    message: String,
    left_out: usize,
}

impl Complaints {
    pub(crate) fn add(&mut self, reason: &'static str, sentence: &str) {
        self.reason.get_or_insert(reason);
        if self.message.len() + sentence.len() > MAX_MESSAGE {
            self.left_out += 1;
            return;
        }
        if !self.message.is_empty() {
            self.message.push_str("; ");
        }
        self.message.push_str(sentence);
    }

    pub(crate) fn into_outcome(self, fine: Outcome) -> Outcome {
        let Some(reason) = self.reason else { return fine };
        let mut message = self.message;
        if self.left_out > 0 {
            message.push_str(&format!("; and {} more", self.left_out));
        }
        Outcome { ok: false, reason, message }
    }
}

/// Verdicts for references to Routers that do not exist, which no table speaks for.
pub fn unknown_routers(known: &[&str], policies: &[&RoutingPolicy]) -> Vec<ParentVerdict> {
    let known: HashSet<&str> = known.iter().copied().collect();
    let mut verdicts = Vec::new();
    for policy in policies {
        let unknown = policy.spec.parent_refs.iter().filter(|parent| !known.contains(parent.router.as_str()));
        verdicts.extend(unknown.map(|parent| ParentVerdict {
            namespace: policy.metadata.namespace.clone().unwrap_or_default(),
            name: policy.metadata.name.clone().unwrap_or_default(),
            parent: parent.clone(),
            accepted: Outcome::refused(
                "RouterNotFound",
                format!("there is no Router {:?}; name one that exists, or make it", parent.router),
            ),
            resolved_refs: Outcome::resolved(),
        }));
    }
    verdicts
}
