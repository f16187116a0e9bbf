//! Connections that leave HTTP (WebSocket and the like, RFC 9110, section 7.8): once a cell has agreed, bytes are
//! copied both ways untouched until either side ends.

use std::cell::RefCell;
use std::rc::Rc;

use futures::future::LocalBoxFuture;
use http::header::{self, HeaderMap, HeaderName};
use http::{StatusCode, Version};
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
        is_asked(request.version(), request.headers())
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

/// Whether a client asks to leave HTTP. HTTP/1.0 cannot (RFC 9110, section 7.8), nor without saying so in `connection`.
/// h2c is HTTP still: its requests would pass all rules by.
fn is_asked(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11
        && headers.contains_key(header::UPGRADE)
        && has_token(headers, header::CONNECTION, "upgrade")
        && !has_token(headers, header::UPGRADE, "h2c")
}

fn has_token(headers: &HeaderMap, field: HeaderName, token: &str) -> bool {
    let mut tokens =
        headers.get_all(field).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.any(|one| one.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
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
        (response.status() == StatusCode::SWITCHING_PROTOCOLS).then(|| Self(hyper::upgrade::on(response)))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(version: Version, fields: &[(HeaderName, &'static str)], expected: bool) {
        let fields = fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        assert_eq!(is_asked(version, &fields.collect()), expected);
    }

    #[test]
    fn a_client_leaves_http_only_by_the_letter_and_never_for_h2c() {
        let (connection, upgrade) = (header::CONNECTION, header::UPGRADE);
        let asked = [(connection.clone(), "keep-alive, Upgrade"), (upgrade.clone(), "websocket")];
        check(Version::HTTP_11, &asked, true);
        check(Version::HTTP_10, &asked, false);
        check(Version::HTTP_11, &asked[..1], false);
        check(Version::HTTP_11, &asked[1..], false);
        check(Version::HTTP_11, &[(connection.clone(), "close"), (upgrade.clone(), "websocket")], false);
        check(
            Version::HTTP_11,
            &[(connection.clone(), "upgrade"), (upgrade.clone(), "websocket, H2C")],
            false,
        );
        check(Version::HTTP_11, &[(connection, "upgrade, http2-settings"), (upgrade, "h2c")], false);
    }
}
