//! Whole cell-runtimes in this process: services, cell-runtime and router's side on loopback. Nothing here needs
//! Kubernetes; the API server is a few routes of our own.

#![allow(clippy::panic, reason = "a test says so when the world is not as it must be")]

mod calls;
mod discovery;
mod drain;
mod egress;
mod entry;
mod halt;
mod harness;
mod health;
mod script;
mod steps;
mod traffic;
