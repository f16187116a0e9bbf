//! A request and an answer as the request path sees them: a head, then a body whole or still arriving. How they look on
//! the wire is the edge's; what becomes of them is the path's.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::edge::{Arriving, Upgrade, UpstreamBody};

/// What a client asked for.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Arriving,
    /// The client's address, as the kernel says.
    pub(crate) peer: IpAddr,
    /// Set where the client asked to leave HTTP on this connection.
    pub(crate) upgrade: Option<Upgrade>,
}

/// Everything of a request but its body.
pub(crate) struct Head {
    pub(crate) method: Method,
    /// As sent: origin form mostly, absolute form where the client takes the router for a proxy.
    pub(crate) target: Uri,
    pub(crate) headers: HeaderMap,
    /// HTTP/1.0 may leave `host` out.
    pub(crate) http10: bool,
}

impl Head {
    /// Path and query, as they go to the cell: in origin form, whatever the client sent.
    pub(crate) fn origin(&self) -> Uri {
        self.target.path_and_query().cloned().map_or_else(Uri::default, Uri::from)
    }

    /// Host with its port, from an absolute target before the header (RFC 9112, section 3.2.2).
    pub(crate) fn authority(&self) -> Option<&str> {
        match self.target.authority() {
            Some(authority) => Some(authority.as_str()),
            None => self.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()),
        }
    }
}

/// What goes back to the client.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: AnswerBody,
}

pub(crate) enum AnswerBody {
    /// Made here, or held whole.
    Whole(Bytes),
    /// Still arriving from a cell.
    Stream(UpstreamBody),
}
