//! The router: the way into the cells. A request path on threads of its own, and beside it, each on its thread, what
//! feeds it: sources, tables, health, admin. What is decided is in `bulkhead_routing`.

mod accept;
mod admin;
mod answer;
mod attempt;
mod body;
mod builder;
mod config;
mod disk;
mod edge;
#[allow(dead_code, unused_imports, reason = "the request path takes it up next")]
mod egress;
mod headers;
mod health;
pub mod ledger_admin;
mod listener;
mod listening;
mod live;
mod load;
mod message;
mod metrics;
mod names;
mod objects;
mod pool;
mod random;
mod request;
mod running;
mod snapshot;
mod source;
mod stream;
mod table_file;
mod threads;
mod transaction;
mod tried;
mod view;
mod worker;

pub use config::{Config, ListenPort, Source};
pub use running::{Running, run, start};
