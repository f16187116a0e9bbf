//! Connections that leave HTTP (WebSocket and the like, RFC 9110, section 7.8): once a cell has agreed, bytes are
//! copied both ways untouched until either side ends.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;

use bulkhead_http1::{Known, Request, has_token};
use bulkhead_process::connect::Stream;
use futures::future::LocalBoxFuture;

use super::wire::{Tap, Wire};
use crate::attempt::Lease;
use crate::front;

/// What is left to do on a client's connection after it has left HTTP.
pub(super) type Afterwards = Rc<RefCell<Option<LocalBoxFuture<'static, ()>>>>;

/// A client's side of a connection that may leave HTTP.
pub(crate) struct Upgrade {
    client: Rc<RefCell<Wire<front::Stream>>>,
    afterwards: Afterwards,
}

impl Upgrade {
    pub(super) fn new(client: &Rc<RefCell<Wire<front::Stream>>>, afterwards: &Afterwards) -> Self {
        Self { client: Rc::clone(client), afterwards: Rc::clone(afterwards) }
    }

    /// Has the client's connection copy bytes between the two, once the answer is written, until one ends or the cell is
    /// drained and the time for that is over. What is held is let go of then.
    pub(crate) fn join(self, cell: UpgradedCell, mut lease: Lease) {
        let Self { client, afterwards } = self;
        *afterwards.borrow_mut() = Some(Box::pin(async move {
            let (mut client, mut cell) = (Tap(client), Tap(cell.0));
            let ended = tokio::select! {
                biased;
                ended = tokio::io::copy_bidirectional(&mut client, &mut cell) => ended,
                () = poll_fn(|context| lease.poll_cut(context)) => return,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an upgraded connection ended with an error");
            }
        }));
    }
}

/// A cell's side.
pub(crate) struct UpgradedCell(Rc<RefCell<Wire<Stream>>>);

impl UpgradedCell {
    pub(super) fn new(wire: Rc<RefCell<Wire<Stream>>>) -> Self {
        Self(wire)
    }
}

/// Whether a client asks to leave HTTP. HTTP/1.0 cannot (RFC 9110, section 7.8), nor without saying so in `connection`.
/// h2c is HTTP still: its requests would pass all rules by.
pub(super) fn is_asked(request: &Request) -> bool {
    let fields = &request.fields;
    !request.http10
        && fields.get_known(Known::Upgrade).is_some()
        && has_token(fields.all_known(Known::Connection), "upgrade")
        && !has_token(fields.all_known(Known::Upgrade), "h2c")
}

#[cfg(test)]
mod tests {
    use bulkhead_http1::RequestReader;
    use bytes::BytesMut;

    use super::*;

    #[track_caller]
    fn check(version: &str, fields: &str, expected: bool) {
        let text = format!("GET / {version}\r\nhost: a\r\n{fields}\r\n");
        let read = RequestReader::default().read(&mut BytesMut::from(text.as_str()), 1024);
        let request = read.expect("is HTTP").expect("is whole");
        assert_eq!(is_asked(&request), expected, "{text}");
    }

    #[test]
    fn a_client_leaves_http_only_by_the_letter_and_never_for_h2c() {
        let (connection, upgrade) = ("connection: keep-alive, Upgrade\r\n", "upgrade: websocket\r\n");
        check("HTTP/1.1", &format!("{connection}{upgrade}"), true);
        check("HTTP/1.0", &format!("{connection}{upgrade}"), false);
        check("HTTP/1.1", connection, false);
        check("HTTP/1.1", upgrade, false);
        check("HTTP/1.1", &format!("connection: close\r\n{upgrade}"), false);
        check("HTTP/1.1", &format!("{connection}upgrade: websocket, H2C\r\n"), false);
        check("HTTP/1.1", "connection: upgrade, http2-settings\r\nupgrade: h2c\r\n", false);
    }
}
