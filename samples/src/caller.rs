//! Calls one server over kept connections: what a simple service does when it needs another. It tries nothing twice.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_process::connect::{Connector, http1};
use bytes::Bytes;
use http::{HeaderName, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Caller {
    server: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("no connection to {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    #[error("{0} gave no answer: {1}")]
    Exchange(SocketAddr, hyper::Error),
    #[error("the request is malformed: {0}")]
    Malformed(#[from] http::Error),
}

impl Caller {
    pub fn new(server: SocketAddr) -> Self {
        Self { server, idle: Mutex::default() }
    }

    /// Sends JSON and gives the whole answer.
    ///
    /// # Errors
    /// When there is none.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        fields: &[(HeaderName, &str)],
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.server.to_string())
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in fields {
            request = request.header(name, *value);
        }
        let request = request.body(Full::new(body))?;
        let broken = |error| CallError::Exchange(self.server, error);
        let mut sender = self.connection().await?;
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = body.collect().await.map_err(broken)?.to_bytes();
        self.idle().push(sender);
        Ok((head.status, body))
    }

    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, CallError> {
        // One that the server closed meanwhile is passed over.
        while let Some(mut sender) = self.kept() {
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let stream = Connector::plain()
            .connect(self.server, PATIENCE)
            .await
            .map_err(|error| CallError::Connect(self.server, error))?;
        http1(stream).await.map_err(|error| CallError::Exchange(self.server, error))
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Full<Bytes>>>> {
        // Pushing and popping leaves the list whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
