//! What routers, cell-runtimes and the operator say to each other: header fields, the health stream, the state of a
//! router, problem documents and reasons. No I/O.

pub mod egress;
pub mod fields;
pub mod grpc;
pub mod health;
pub mod hop;
#[cfg(test)]
mod page;
pub mod problem;
pub mod reason;
pub mod serving;
pub mod transaction;

pub use egress::{Continue, Egress, EgressStatus};
pub use health::{Beat, HealthLine, Verdict};
pub use problem::Problem;
pub use reason::Reason;
pub use serving::Serving;
pub use transaction::TransactionId;
