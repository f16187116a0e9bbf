//! What the tests on a real cluster share: the cluster, waiting for a state, traffic, and processes of pods. The
//! tests themselves are in `e2e/`, one binary.

pub mod audit;
pub mod eventually;
pub mod network;
pub mod pods;
pub mod stall;
pub mod traffic;
pub mod world;

pub use eventually::{eventually, holds_for};
pub use network::Network;
pub use world::World;
