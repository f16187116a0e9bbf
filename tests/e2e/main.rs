//! Tests on a real cluster, one binary: each module is one promise of the README. `cargo xtask test` starts them.

mod apply;
mod bad_objects;
mod chart;
mod clusters;
mod crds;
mod destinations;
mod drain;
mod edits;
mod health;
mod lifecycle;
mod outage;
mod owners;
mod ownership;
mod payments;
mod restarts;
mod roles;
mod rollout;
mod shares;
#[cfg(feature = "soak")]
mod soak;
mod steady;
mod transactions;
mod tunnels;
mod uninstall;
mod volumes;
mod walls;
