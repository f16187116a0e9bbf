//! What people and CI run around the code: a local Kubernetes and the images that go into it. Nothing of
//! the product depends on this crate.

pub mod bench;
pub mod cargo_tool;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod deny;
pub mod fuzz;
pub mod images;
pub mod packages;
pub mod progress;
pub mod tarball;
pub mod test;
