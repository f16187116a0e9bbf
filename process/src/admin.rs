//! The admin server of every binary: `/livez`, `/readyz`, `/metrics`, and routes of the binary's own. Never on the
//! request path.

use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::Registry;
use tokio::net::TcpListener;

use crate::metrics;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;

/// What the admin server shows.
#[derive(Clone, Default)]
pub struct Admin {
    pub registry: Registry,
    pub readiness: Readiness,
    /// Routes of the binary's own, with their state already given.
    pub routes: Router,
}

/// Serves until the shutdown. Give it one that is triggered last, so that the probes find it while the rest drains.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(listener: TcpListener, admin: Admin, shutdown: Shutdown) -> std::io::Result<()> {
    // Some routes are for those on this machine alone.
    let app = router(admin).into_make_service_with_connect_info::<SocketAddr>();
    tokio::select! {
        served = axum::serve(listener, app) => served,
        // Whoever still reads an answer is cut when the process ends.
        () = shutdown.requested() => Ok(()),
    }
}

/// The routes alone, for tests that need no socket.
pub fn router(admin: Admin) -> Router {
    let Admin { registry, readiness, routes } = admin;
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&readiness)))
        .route(
            "/metrics",
            get(async move || ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::encode(&registry))),
        )
        .merge(routes)
}

fn ready(readiness: &Readiness) -> impl IntoResponse + use<> {
    let closed = readiness.closed();
    if closed.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, closed.join("\n") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::extract::ConnectInfo;
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt, Empty};

    use super::*;
    use crate::connect::{Connector, http1};

    async fn ask(address: SocketAddr, path: &str) -> (u16, String) {
        let stream = Connector::plain().connect(address, Duration::from_secs(5)).await.expect("connects");
        let mut sender = http1(stream).await.expect("speaks HTTP");
        let request = Request::get(path).header("host", "admin").body(Empty::<Bytes>::new()).expect("valid");
        let response = sender.send_request(request).await.expect("is answered");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("arrives whole").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn probes_follow_the_gates_and_own_routes_are_served() {
        let own = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| format!("asked by {}", peer.ip());
        let admin = Admin { routes: Router::new().route("/own", get(own)), ..Admin::default() };
        let gate = admin.readiness.gate("table");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let shutdown = Shutdown::new();
        let server = tokio::spawn(serve(listener, admin, shutdown.clone()));

        assert_eq!(ask(address, "/livez").await, (200, "ok\n".to_owned()));
        assert_eq!(ask(address, "/readyz").await, (503, "table: not yet\n".to_owned()));
        gate.open();
        assert_eq!(ask(address, "/readyz").await, (200, "ready\n".to_owned()));
        assert_eq!(ask(address, "/metrics").await.0, 200);
        assert_eq!(ask(address, "/own").await, (200, "asked by 127.0.0.1".to_owned()));
        assert_eq!(ask(address, "/other").await.0, 404);

        shutdown.trigger();
        server.await.expect("ends").expect("without error");
    }
}
