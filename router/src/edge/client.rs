//! The upstream side of the edge: one HTTP/1.1 connection to a pod, and what can go wrong on it, told apart by whether
//! anything was sent.

use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_process::Connector;
use bulkhead_process::connect::{http1, say_chunked};
use futures::future::LocalBoxFuture;
use http::{HeaderMap, Method, StatusCode, Uri};
use hyper::client::conn::http1::SendRequest;

use super::body::{Outgoing, UpstreamBody};
use super::upgrade::UpgradedCell;

/// How long a connection that was just given back may take to be ready again.
const SETTLE: Duration = Duration::from_millis(20);

/// A connection to one pod.
pub(crate) struct Connection {
    sender: SendRequest<Outgoing>,
}

/// Why no answer came through a connection.
#[derive(thiserror::Error)]
pub(crate) enum AttemptError {
    #[error("the connection was closed before anything was sent")]
    Stale { body: Outgoing },
    #[error("the connection broke: {0}")]
    Reset(#[source] hyper::Error),
    #[error("what came back is no HTTP: {0}")]
    Protocol(#[source] hyper::Error),
}

impl std::fmt::Debug for AttemptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the body, which is a client's.
        write!(f, "{self}")
    }
}

/// The head of a pod's answer, and its body still arriving.
pub(crate) struct UpstreamHead {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: UpstreamBody,
    /// Set where the pod agreed to leave HTTP.
    pub(crate) upgrade: Option<UpgradedCell>,
}

impl Connection {
    /// # Errors
    /// What the kernel said. Nothing of any request was sent.
    pub(crate) async fn open(
        connector: &Connector,
        address: SocketAddr,
        timeout: Duration,
    ) -> std::io::Result<Self> {
        let stream = connector.connect(address, timeout).await?;
        let sender = http1(stream).await.map_err(std::io::Error::other)?;
        Ok(Self { sender })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Whether the connection takes another request. It notices a close by the other side that has arrived here.
    pub(crate) async fn is_usable(&mut self) -> bool {
        if self.sender.is_closed() {
            return false;
        }
        self.sender.is_ready()
            || matches!(tokio::time::timeout(SETTLE, self.sender.ready()).await, Ok(Ok(())))
    }

    /// Sends a request; what is given waits for the head of the answer, and is the connection's last use until then.
    ///
    /// # Errors
    /// Only [`AttemptError::Stale`] says that nothing was sent; it gives the body back.
    pub(crate) fn send(
        &mut self,
        method: &Method,
        target: Uri,
        headers: HeaderMap,
        body: Outgoing,
    ) -> Sending {
        let mut request = hyper::Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = headers;
        say_chunked(&mut request);
        let sent = self.sender.try_send_request(request);
        Box::pin(async move {
            match sent.await {
                Ok(mut response) => {
                    let upgrade = UpgradedCell::agreed(&mut response);
                    let (parts, incoming) = response.into_parts();
                    Ok(UpstreamHead {
                        status: parts.status,
                        headers: parts.headers,
                        body: UpstreamBody::new(incoming),
                        upgrade,
                    })
                }
                Err(mut failed) => match failed.take_message() {
                    Some(request) => Err(AttemptError::Stale { body: request.into_body() }),
                    None if failed.error().is_parse() => Err(AttemptError::Protocol(failed.into_error())),
                    None => Err(AttemptError::Reset(failed.into_error())),
                },
            }
        })
    }
}

/// A request on its way to an answer's head. It outlives whoever gives it up.
pub(crate) type Sending = LocalBoxFuture<'static, Result<UpstreamHead, AttemptError>>;
