//! Pure decisions: which rule a request matches, which cell handles it, whether a cell is in, and why. No I/O, no
//! clock and no randomness: time, health and requests come in as values, so routers, operator and CLI all agree.

mod condition;
pub mod decide;
pub mod explain;
#[cfg(test)]
mod fixture;
pub mod health;
mod json;
pub mod request;
pub mod table;
pub mod transaction;

pub use decide::{CellStates, CellView, Choice, Key, Refusal};
pub use request::{RequestParts, RequestView};
pub use table::{Build, CellIndex, Inputs, Rule, Table};
