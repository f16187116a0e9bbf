//! The edge: where our requests and answers become bytes and back. Framing and heads are `bulkhead-http1`'s; sockets,
//! buffers and the order in which both sides are polled are here. What becomes of a request is the path's.

mod answering;
mod arriving;
mod buffers;
mod connection;
mod date;
mod h2;
mod outgoing;
mod request_body;
mod sending;
mod server;
mod turn;
mod upgrade;
mod upstream;
mod watch;
mod wire;

pub(crate) use answering::last_answer;
pub(crate) use arriving::Unreadable;
pub(crate) use connection::{Connection, Message};
pub(crate) use h2::{Allowed, Beginning, Channels, Fault, NoPlace, Place, serve_http2};
pub(crate) use outgoing::Outgoing;
pub(crate) use request_body::Arriving;
pub(crate) use sending::{AttemptError, Sending, UpstreamHead};
pub(crate) use server::serve_connection;
pub(crate) use turn::end_turns;
pub(crate) use upgrade::{Upgrade, UpgradedCell};
pub(crate) use upstream::{Collected, Unread, UpstreamBody};
pub(crate) use watch::{Kick, Phase, Watch};
