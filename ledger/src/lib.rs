//! The router's record of effects outside the cells: what it is about to send to a destination is on the disk before the
//! first byte goes out, and what became of it afterwards. Nothing in it says what a message meant. The format, and what
//! each fault leads to, is in `docs/ledger.md`; what a standing means for a request is the router's.
//!
//! From the outside in: [`Ledger`] is the handle, `writer` writes segments on a thread of its own, `index` holds what can
//! be asked for, `opening` reads it all at the start. `record`, `frame`, `segment`, `effect` and `judgement` are pure.

mod compaction;
mod damage;
pub mod disk;
mod effect;
mod frame;
mod history;
mod index;
mod judgement;
mod ledger;
mod metrics;
mod opening;
mod options;
mod queue;
mod record;
mod refusal;
mod segment;
mod shared;
mod thread;
mod time;
pub mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use damage::{Damage, Kind, TornTail};
pub use effect::{Effect, Standing, State};
pub use history::{History, Keep, ReadError};
pub use ledger::{Intended, Ledger, ResolveError};
pub use opening::{OpenError, Recovery};
pub use options::Options;
pub use record::{Intent, MAX_CELL, MAX_DESTINATION, MAX_NOTE, Outcome, Resolution};
pub use refusal::Refusal;
pub use time::{Clock, SystemClock};
