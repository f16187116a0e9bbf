//! The operator: turns Cells into isolated namespaces with their workload, rolls templates out cell by cell, and keeps
//! every status. It is not on the path of any request.

mod cell;
mod clock;
mod compare;
mod conditions;
mod config;
mod kinds;
mod lease;
mod revision;
mod rollout;
mod routing_status;
mod running;
mod stores;
mod template;
mod writer;

pub use config::{Config, PullPolicy, Unenforced};
pub use running::run;
