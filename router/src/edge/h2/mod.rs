//! HTTP/2 (RFC 9113) at the edge. Frames, streams and flow control are the `h2` crate's; what goes in and out of a stream is
//! brought here to what the path knows: requests and answers as HTTP/1.1 has them.

mod answering;
mod arriving;
mod call;
mod channels;
mod io;
mod meter;
mod server;

use std::cell::RefCell;
use std::rc::Rc;

pub(super) use arriving::Body;
pub(super) use call::{Call, Head, Returning};
pub(crate) use channels::{Channels, NoPlace, Place};
pub(crate) use server::{Allowed, Fault, serve_http2};

use super::wire::Wire;
use crate::front::Stream;

/// A connection in HTTP/2, of which nothing was read beyond what its wire holds.
pub(crate) struct Beginning(pub(super) Rc<RefCell<Wire<Stream>>>);

impl Beginning {
    /// One of which nothing was read at all.
    pub(crate) fn of(stream: Stream) -> Self {
        Self(Wire::new(stream))
    }
}

/// How a client begins that speaks HTTP/2 (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether what has arrived is that, as far as it goes.
pub(super) fn is_preface(arrived: &[u8]) -> bool {
    let length = arrived.len().min(PREFACE.len());
    length > 0 && arrived[..length] == PREFACE[..length]
}
