//! Header fields between router and cell. A client's fields with this prefix are stripped before anything reads them.

/// Every field of ours begins with this.
pub const PREFIX: &str = "bulkhead-";
/// To the cell and back to the client: the transaction's id, the same over every attempt.
pub const TRANSACTION: &str = "bulkhead-transaction";
/// To the cell: 1 for the first attempt, then 2, and so on.
pub const ATTEMPT: &str = "bulkhead-attempt";
/// To the cell: the cell that the router means; another answers 421. To the client under `explain`: the cell that answered.
pub const CELL: &str = "bulkhead-cell";
/// To the cell: milliseconds left until the caller's deadline.
pub const DEADLINE: &str = "bulkhead-deadline";
/// From the cell: what became of the attempt, one of the `OUTCOME_` values.
pub const OUTCOME: &str = "bulkhead-outcome";
/// From the cell, beside [`OUTCOME`]: why, as a [`crate::Reason`].
pub const REASON: &str = "bulkhead-reason";
/// The orchestrator gives the transaction back: start it again elsewhere from the original bytes.
pub const OUTCOME_RESTART: &str = "restart";
/// To the client under `explain`: `NAMESPACE/POLICY/RULE` that decided.
pub const RULE: &str = "bulkhead-rule";
/// To the client under `explain`: number of attempts made.
pub const ATTEMPTS: &str = "bulkhead-attempts";
/// Content type of [`crate::Problem`] documents (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";
