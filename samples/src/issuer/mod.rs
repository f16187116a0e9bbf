//! The issuer simulator: a destination that counts what it executes and can be slow, silent, closing or gone. Counts
//! and behaviour are read and changed on a port of their own, which stays open while the other refuses.

mod behaviour;
pub mod book;
mod control;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_process::Shutdown;
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub use behaviour::{Answer, Behaviour};
pub use book::{Book, Entry, Stats};

/// How long to wait when the kernel has no connection to give for want of files.
const NO_FILES: Duration = Duration::from_millis(10);

#[derive(Args, Clone, Debug)]
pub struct Config {
    /// What the issuer calls itself.
    #[arg(long, default_value = "issuer")]
    pub name: String,
    /// Header field with the key of a message, `ID/N`.
    #[arg(long, default_value = "idempotency-key")]
    pub key_header: HeaderName,
    #[command(flatten)]
    pub behaviour: Behaviour,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "issuer".to_owned(),
            key_header: HeaderName::from_static("idempotency-key"),
            behaviour: Behaviour::default(),
        }
    }
}

/// One issuer. Clones are the same one.
#[derive(Clone)]
pub struct Issuer(Arc<State>);

struct State {
    name: String,
    key_header: HeaderName,
    behaviour: watch::Sender<Behaviour>,
    book: Mutex<Book>,
}

/// The connection ends here, with or without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the issuer was told to close")]
struct Closed;

/// Of a message, what the issuer looks at. The rest is for real ones.
#[derive(Default, Deserialize)]
struct Message {
    reference: Option<String>,
    #[serde(default)]
    amount: Value,
}

impl Issuer {
    pub fn new(config: Config) -> Self {
        Self(Arc::new(State {
            name: config.name,
            key_header: config.key_header,
            behaviour: watch::Sender::new(config.behaviour),
            book: Mutex::default(),
        }))
    }

    pub fn behaviour(&self) -> Behaviour {
        self.0.behaviour.borrow().clone()
    }

    /// From the next message on; what is under way keeps what it began with.
    pub fn behave(&self, behaviour: Behaviour) {
        self.0.behaviour.send_replace(behaviour);
    }

    /// The counts, locked while they are looked at.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        // Counting cannot panic half way.
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes messages at that address until the shutdown. Who fears for the port while the issuer refuses keeps it
    /// with [`bulkhead_process::Port`].
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub async fn serve(self, address: SocketAddr, shutdown: Shutdown) -> io::Result<()> {
        loop {
            let listener = TcpListener::bind(address).await?;
            tokio::select! {
                () = self.accept(&listener) => {}
                () = self.until(|behaviour| behaviour.answer == Answer::Refuse) => {}
                () = shutdown.requested() => return Ok(()),
            }
            drop(listener);
            tokio::select! {
                () = self.until(|behaviour| behaviour.answer != Answer::Refuse) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// Behaviour and counts over HTTP, until the shutdown: `PUT` and `GET /control`, `GET` and `DELETE /stats`,
    /// `GET /executions`.
    ///
    /// # Errors
    /// When the listener fails for good.
    pub async fn serve_control(self, listener: TcpListener, shutdown: Shutdown) -> io::Result<()> {
        axum::serve(listener, control::router(self)).with_graceful_shutdown(shutdown.requested()).await
    }

    async fn until(&self, wanted: fn(&Behaviour) -> bool) {
        // It cannot close: the sender lives in this issuer.
        let _ = self.0.behaviour.subscribe().wait_for(wanted).await;
    }

    /// Takes connections for as long as it is let.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clone().converse(stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(NO_FILES).await;
                }
            }
        }
    }

    /// Serves one connection until it ends, or refusing ends it after the message that is under way.
    async fn converse(self, stream: TcpStream) {
        // Answers are small and waited for; without it they would only be later.
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| self.answer(request));
        let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = self.until(|behaviour| behaviour.answer == Answer::Refuse) => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Closed> {
        let behaviour = self.behaviour();
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
        if behaviour.answer == Answer::CloseBefore {
            return Err(Closed);
        }
        let Some(key) = self.key(&head.headers) else {
            let detail = format!("the field {} is missing: send ID/N in it", self.0.key_header);
            return Ok(reply(StatusCode::BAD_REQUEST, &json!({"detail": detail})));
        };
        let message: Message = serde_json::from_slice(&body).unwrap_or_default();
        let decision = self.book().enter(key, message.reference.as_deref(), &behaviour);
        tokio::time::sleep(Duration::from_millis(behaviour.delay_ms)).await;
        match behaviour.answer {
            Answer::Silent => std::future::pending().await,
            Answer::Close | Answer::CloseBefore => return Err(Closed),
            Answer::Approve | Answer::Decline | Answer::Refuse => {}
        }
        let mut answer = json!({
            "approved": decision.approved,
            "issuer": self.0.name,
            "key": key,
            "reference": message.reference,
            "amount": message.amount,
        });
        if decision.duplicate {
            answer["duplicate"] = true.into();
        }
        Ok(reply(StatusCode::OK, &answer))
    }

    fn key<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        headers.get(&self.0.key_header)?.to_str().ok().filter(|key| !key.is_empty())
    }
}

fn reply(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.to_string().into()));
    *response.status_mut() = status;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests;
