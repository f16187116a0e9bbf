//! The edge: where our requests and answers become bytes and back. hyper serves here for now; nothing outside this
//! folder names it, so that another codec can take its place.

mod body;
mod client;
mod last;
mod server;
mod upgrade;
mod watched;

pub(crate) use body::{Arriving, Collected, Outgoing, Unread, UpstreamBody};
pub(crate) use client::{AttemptError, Connection, Sending, UpstreamHead};
pub(crate) use last::last_answer;
pub(crate) use server::{Kick, Phase, Watch, serve_connection};
pub(crate) use upgrade::{Upgrade, UpgradedCell};
