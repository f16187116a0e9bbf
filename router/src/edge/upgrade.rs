//! Connections that leave HTTP (WebSocket and the like, RFC 9110, section 7.8): once a cell has agreed, bytes are
//! copied both ways untouched until either side ends.

use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// A client's side of a connection that may leave HTTP.
pub(crate) struct Upgrade(OnUpgrade);

impl Upgrade {
    pub(super) fn asked(request: &mut hyper::Request<Incoming>) -> Option<Self> {
        request.headers().contains_key(http::header::UPGRADE).then(|| Self(hyper::upgrade::on(request)))
    }

    /// Copies bytes between the two until one ends.
    pub(crate) async fn join(self, cell: UpgradedCell) {
        let (Ok(client), Ok(upstream)) = tokio::join!(self.0, cell.0) else { return };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut upstream).await {
            tracing::debug!(%error, "an upgraded connection ended with an error");
        }
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
