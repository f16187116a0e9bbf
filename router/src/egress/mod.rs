//! The way out: connections to destinations, and one message with its answer on each. Whether and when a message may be
//! sent is the transaction's; which cells reach which Destination is the table's.

mod address;
mod certificates;
mod destination;
mod exchange;
pub(crate) mod fields;
mod metrics;
pub(crate) mod path;
mod pool;
mod registry;

#[cfg(test)]
pub(crate) mod fixture;

pub(crate) use address::Bounds;
pub(crate) use certificates::ClientFolders;
pub(crate) use destination::{DestinationLive, Endpoint, Place};
pub(crate) use exchange::{Message, Ready, Returned};
pub(crate) use metrics::{EgressMetrics, EgressReadings};
pub(crate) use pool::{EgressPools, Tried};
pub(crate) use registry::{Destinations, Registry};
