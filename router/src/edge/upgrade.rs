//! Connections that leave HTTP (WebSocket and the like, RFC 9110, section 7.8): once a cell has agreed, bytes are
//! copied both ways untouched until either side ends.

use std::cell::RefCell;
use std::rc::Rc;

use futures::future::LocalBoxFuture;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// What is left to do on a client's connection after it has left HTTP.
pub(super) type Afterwards = Rc<RefCell<Option<LocalBoxFuture<'static, ()>>>>;

/// A client's side of a connection that may leave HTTP.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    afterwards: Afterwards,
}

impl Upgrade {
    pub(super) fn asked(request: &mut hyper::Request<Incoming>, afterwards: &Afterwards) -> Option<Self> {
        request
            .headers()
            .contains_key(http::header::UPGRADE)
            .then(|| Self { client: hyper::upgrade::on(request), afterwards: Rc::clone(afterwards) })
    }

    /// Has the client's connection copy bytes between the two, once the answer is written, until one ends. What is held
    /// is let go of then.
    pub(crate) fn join<T: 'static>(self, cell: UpgradedCell, held: T) {
        let Self { client, afterwards } = self;
        *afterwards.borrow_mut() = Some(Box::pin(async move {
            copy(client, cell.0).await;
            drop(held);
        }));
    }
}

async fn copy(client: OnUpgrade, cell: OnUpgrade) {
    let (Ok(client), Ok(cell)) = tokio::join!(client, cell) else { return };
    let (mut client, mut cell) = (TokioIo::new(client), TokioIo::new(cell));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut cell).await {
        tracing::debug!(%error, "an upgraded connection ended with an error");
    }
}

/// A cell's side.
pub(crate) struct UpgradedCell(OnUpgrade);

impl UpgradedCell {
    pub(super) fn agreed(response: &mut hyper::Response<Incoming>) -> Option<Self> {
        (response.status() == http::StatusCode::SWITCHING_PROTOCOLS)
            .then(|| Self(hyper::upgrade::on(response)))
    }
}
