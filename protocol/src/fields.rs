//! Header fields between router and cell. A client's fields with this prefix are stripped before anything reads them.

/// Every field of ours begins with this.
pub const PREFIX: &str = "bulkhead-";
/// To the cell and back to the client: the transaction's id, the same over every attempt.
pub const TRANSACTION: &str = "bulkhead-transaction";
/// To the cell: 1 for the first attempt, then 2, and so on.
pub const ATTEMPT: &str = "bulkhead-attempt";
/// To the cell: the cell that the router means; another answers 421. To the client under `explain`: the cell that answered.
pub const CELL: &str = "bulkhead-cell";
/// To the cell: milliseconds that the router waits for the answer to this request. Once committed the caller's deadline has
/// no part in them.
pub const DEADLINE: &str = "bulkhead-deadline";
/// From the cell: what became of the attempt, one of the `OUTCOME_` values.
pub const OUTCOME: &str = "bulkhead-outcome";
/// From the cell, beside [`OUTCOME`]: why, as a [`crate::Reason`].
pub const REASON: &str = "bulkhead-reason";
/// The orchestrator gives the transaction back: start it again elsewhere from the original bytes.
pub const OUTCOME_RESTART: &str = "restart";
/// The body is a context, then a message that the router hands to a destination.
pub const OUTCOME_EGRESS: &str = "egress";
/// To the cell: the body is the context of an egress, then what the destination answered.
pub const OUTCOME_CONTINUE: &str = "continue";
/// Beside an egress: the name of the Destination. From a service to its cell-runtime: the Destination that its answer is for, in the place of the step's.
pub const DESTINATION: &str = "bulkhead-destination";
/// Number of the egress in its transaction, from 1. With the id it names one effect.
pub const EGRESS: &str = "bulkhead-egress";
/// Bytes of the body that are context; what follows is the message.
pub const CONTEXT_LENGTH: &str = "bulkhead-context-length";
/// What wrote the context, so that only who can read it gets it.
pub const CONTEXT_VERSION: &str = "bulkhead-context-version";
/// Method of the message for the destination; POST when absent.
pub const EGRESS_METHOD: &str = "bulkhead-egress-method";
/// Path of the message for the destination, in the place of the Destination's own.
pub const EGRESS_PATH: &str = "bulkhead-egress-path";
/// To the cell, coming back: what became of the egress, one of [`crate::EgressStatus`]'s words.
pub const EGRESS_STATUS: &str = "bulkhead-egress-status";
/// To the cell, coming back: whether the transaction may still start over, one of the `STAGE_` values.
pub const STAGE: &str = "bulkhead-stage";
/// Nothing outside the cells can have happened.
pub const STAGE_RESTARTABLE: &str = "restartable";
/// A message with effects may have reached a destination: from here on there is no way but forward.
pub const STAGE_COMMITTED: &str = "committed";
/// To the cell, coming back: the status code that the destination answered with.
pub const DESTINATION_STATUS: &str = "bulkhead-destination-status";
/// From a service that is a step, and to every step after it: what later steps are to know, at most [`MAX_STATE`] bytes of
/// visible ASCII. It is carried over egresses, and lost when the transaction starts again.
pub const STATE: &str = "bulkhead-state";
/// Bytes of [`STATE`].
pub const MAX_STATE: usize = 4 * 1024;
/// To the client under `explain`: `NAMESPACE/POLICY/RULE` that decided.
pub const RULE: &str = "bulkhead-rule";
/// To the client under `explain`: number of attempts made.
pub const ATTEMPTS: &str = "bulkhead-attempts";
/// Content type of [`crate::Problem`] documents (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";
