//! A request and an answer as the request path sees them: a head, then a body whole or still arriving. How they look on
//! the wire is the edge's; what becomes of them is the path's.

use std::borrow::Cow;
use std::rc::Rc;

use bulkhead_http1::{Fields, Known};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Uri};

use crate::edge::{Arriving, Upgrade, UpstreamBody};
use crate::listener::{Permit, Room};
use crate::owned::Owned;
use crate::worker::RuleUse;

/// What a client asked for.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Arriving,
    /// Set where the client asked to leave HTTP on this connection.
    pub(crate) upgrade: Option<Upgrade>,
}

/// Everything of a request but its body.
pub(crate) struct Head {
    pub(crate) method: Method,
    /// As sent: origin form mostly, absolute form where the client takes the router for a proxy.
    pub(crate) target: Uri,
    pub(crate) fields: Fields,
    /// HTTP/1.0 may leave `host` out.
    pub(crate) http10: bool,
    /// A call of gRPC, which goes to cells as it came: in HTTP/2.
    pub(crate) grpc: bool,
}

impl Head {
    /// Path and query, as they go to the cell: in origin form, whatever the client sent.
    pub(crate) fn origin(&self) -> Cow<'_, str> {
        let sent = self.target.path_and_query().map_or("/", PathAndQuery::as_str);
        // Only the absolute form may leave the path out.
        if sent.starts_with('?') { Cow::Owned(format!("/{sent}")) } else { Cow::Borrowed(sent) }
    }

    /// Host with its port, from an absolute target before the header (RFC 9112, section 3.2.2). Empty where the request
    /// has none.
    pub(crate) fn host(&self) -> &[u8] {
        match self.target.authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => self.fields.get_known(Known::Host).unwrap_or_default(),
        }
    }
}

/// What goes back to the client.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: Fields,
    pub(crate) body: AnswerBody,
    /// The connection is of no more use to its client.
    pub(crate) close: bool,
}

pub(crate) enum AnswerBody {
    /// Made here, or held whole; with what the request holds until it is written.
    Whole { data: Bytes, trailers: Option<Fields>, holds: Option<Holds> },
    /// Still arriving from a cell, behind what has arrived already.
    Stream { begun: Bytes, rest: UpstreamBody },
}

impl AnswerBody {
    /// One that was made here.
    pub(crate) fn of(data: Bytes) -> Self {
        Self::Whole { data, trailers: None, holds: None }
    }
}

/// An answer that is held whole, so that whoever joined its transaction can have it too.
pub(crate) struct Held {
    pub(crate) status: StatusCode,
    pub(crate) fields: Fields,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Fields>,
}

/// What a request holds until its answer is written: its place in the listener, in its rule's budget and at its key's
/// owner, and its memory.
pub(crate) struct Holds {
    pub(crate) _permit: Permit,
    pub(crate) _in_rule: Option<RuleUse>,
    pub(crate) _room: Rc<Room>,
    pub(crate) _owned: Option<Owned>,
}
