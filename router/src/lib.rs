//! The router: the way into the cells. A request path on threads of its own, and beside it, each on its thread, what
//! feeds it: sources, tables, health, admin. What is decided is in `bulkhead_routing`.

mod accept;
mod admin;
mod answer;
mod attempt;
mod body;
mod builder;
mod caller;
mod cell_tls;
mod certificates;
mod config;
mod disk;
mod edge;
mod egress;
mod evidence;
mod forbidden;
mod forwarded;
mod front;
mod hands;
mod headers;
mod health;
mod held;
mod identity;
mod late;
pub mod ledger_admin;
mod link;
mod listener;
mod listening;
mod live;
mod load;
mod message;
mod metrics;
mod names;
mod objects;
mod orphans;
mod owned;
mod pool;
mod random;
mod request;
mod running;
mod snapshot;
mod source;
mod stream;
mod table_file;
mod threads;
mod timers;
mod transaction;
mod tried;
mod tunnel;
mod under_way;
mod view;
mod worker;

#[cfg(feature = "failpoints")]
pub use config::BeforeSend;
pub use config::{Config, ListenPort, Source};
pub use running::{Running, run, start};
