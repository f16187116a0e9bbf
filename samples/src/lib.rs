//! What stands in for users' things in examples, tests and benches: a sample service and the steps of a payment, an
//! issuer, a load generator, and probes of walls. Nothing of the product depends on it.

pub mod caller;
pub mod direct_cell;
pub mod dns;
pub mod issuer;
pub mod load;
pub mod payment;
pub mod probe;
pub mod workload;
