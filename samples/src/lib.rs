//! What stands in for users' things in examples, tests and benches: a sample service, a load generator, and probes of
//! walls. Nothing of the product depends on it.

pub mod dns;
pub mod load;
pub mod probe;
pub mod workload;
