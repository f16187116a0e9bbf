//! A cell for proxies that know no destinations: it works a while, calls the issuer itself, works a while more, and
//! answers. What it did is lost with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bulkhead_process::Shutdown;
use bytes::Bytes;
use clap::Args;
use tokio::net::TcpListener;

use crate::caller::Caller;
use crate::load::{parse_duration, parse_target};
use crate::workload::CELL_HEADER;

/// The client's id of a transaction.
const TRANSACTION: &str = "x-transaction";
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

#[derive(Args, Clone, Debug)]
pub struct Config {
    /// `http://ADDRESS:PORT` of the issuer.
    #[arg(long, value_parser = parse_target)]
    pub issuer: SocketAddr,
    /// What the cell calls itself.
    #[arg(long, default_value = "direct")]
    pub cell: String,
    /// How long it works before it calls the issuer, and again after that.
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    pub delay: Duration,
}

struct Cell {
    config: Config,
    issuer: Caller,
}

/// Serves `POST` of any path, and `GET /readyz`, until the shutdown.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(config: Config, listener: TcpListener, shutdown: Shutdown) -> std::io::Result<()> {
    let issuer = Caller::new(config.issuer);
    let routes = Router::new()
        .route("/readyz", get(|| async { "ready\n" }))
        .fallback(transact)
        .with_state(Arc::new(Cell { config, issuer }));
    axum::serve(listener, routes).with_graceful_shutdown(shutdown.requested()).await
}

async fn transact(State(cell): State<Arc<Cell>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(id) = headers.get(TRANSACTION).and_then(|id| id.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "the field x-transaction is missing: send an id in it\n")
            .into_response();
    };
    tokio::time::sleep(cell.config.delay).await;
    let key = format!("{id}/1");
    let (status, answer) = match cell.issuer.call(Method::POST, "/authorise", &[(KEY, &key)], body).await {
        Ok(answered) => answered,
        Err(error) => return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response(),
    };
    tokio::time::sleep(cell.config.delay).await;
    (status, [(CELL_HEADER, cell.config.cell.clone())], answer).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issuer::{self, Issuer};
    use bulkhead_process::Port;

    #[tokio::test]
    async fn a_transaction_is_executed_once_by_the_clients_id() {
        let (issuer, port) = (Issuer::new(issuer::Config::default()), Port::free().expect("one is free"));
        tokio::spawn(issuer.clone().serve(port.address, Shutdown::new()));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let caller = Caller::new(listener.local_addr().expect("is bound"));
        let config = Config { issuer: port.address, cell: "a".to_owned(), delay: Duration::from_millis(1) };
        tokio::spawn(serve(config, listener, Shutdown::new()));

        let (status, _) = caller.call(Method::POST, "/", &[], Bytes::new()).await.expect("is answered");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let id = [(HeaderName::from_static(TRANSACTION), "t-1")];
        let mut status = StatusCode::BAD_GATEWAY;
        // The issuer listens in a moment.
        while status == StatusCode::BAD_GATEWAY {
            (status, _) = caller.call(Method::POST, "/", &id, Bytes::new()).await.expect("is answered");
        }
        assert_eq!(status, StatusCode::OK);
        assert_eq!(issuer.book().executions()["t-1/1"].executed, 1);
    }
}
