//! The operator: turns Cells into isolated namespaces with their workload, rolls templates out cell by cell, and keeps
//! every status. It is not on the path of any request.

mod ask;
mod cell;
mod client;
mod clock;
mod compare;
mod conditions;
mod config;
#[cfg(test)]
mod fixture;
mod kinds;
mod lease;
mod orchestrators;
mod pre_delete;
mod revision;
mod rollout;
mod routing_status;
mod running;
mod stores;
mod template;
mod tunnels;
mod unreadable;
mod watches;
mod writer;

pub use config::{Args, Command, Config, PullPolicy, Unenforced};
pub use pre_delete::pre_delete_check;
pub use running::run;
