//! The server that routers send transactions to, and its end: what is under way and what still arrives is served for
//! a while after the verdict says that this orchestrator stops.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_process::Shutdown;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::accept;
use crate::cell::Cell;
use crate::request;

/// Connections at the same time.
const MAX_CONNECTIONS: usize = 16_384;
/// Routers keep idle connections for later; this only ends those of a router that is gone.
const IDLE: Duration = Duration::from_secs(300);
/// Calls on one connection in HTTP/2, of which a router makes another when it needs more.
const MAX_CALLS: u32 = 1_000;
/// Bytes of one request that a router may send before they are passed on; and of all requests of a connection, so that none
/// that its service does not read holds up the others.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = MAX_CALLS * STREAM_WINDOW;
/// More than what a router lets through.
const MAX_HEAD: u32 = 2 * 1024 * 1024;
/// Every router has heard by then that this orchestrator stops, and its last requests have arrived.
const HEARD: Duration = Duration::from_secs(1);
/// How often this server shows that it runs.
const ALIVE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(20);

/// Serves until the shutdown and its drain are over.
pub(crate) async fn serve(
    listener: TcpListener,
    cell: Arc<Cell>,
    shutdown: Shutdown,
    drain_timeout: Duration,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let drained = drained(Arc::clone(&cell), shutdown, drain_timeout);
    tokio::pin!(drained);
    let mut alive = JoinSet::new();
    alive.spawn(show_alive(Arc::clone(&cell)));
    let left = loop {
        tokio::select! {
            // A router reads an answer no faster than its client does.
            stream = accept::accept(&listener, None) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => spawn(stream, &cell, &graceful, place),
                Err(_) => tracing::warn!(limit = MAX_CONNECTIONS, "too many connections; one is turned away"),
            },
            left = &mut drained => break left,
        }
    };
    drop(listener);
    // A connection on which no request ever came would wait for one.
    let quiet = async {
        tokio::time::sleep(HEARD).await;
        while cell.limits.in_flight() > 0 {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = graceful.shutdown() => {}
        () = quiet => {}
        () = tokio::time::sleep(left.max(HEARD + LOOK)) => {
            tracing::warn!(in_flight = cell.limits.in_flight(), "stopping although transactions are under way");
        }
    }
}

/// Runs where transactions run, so that it stops when they do.
async fn show_alive(cell: Arc<Cell>) {
    let mut interval = tokio::time::interval(ALIVE);
    loop {
        interval.tick().await;
        cell.see_traffic();
    }
}

fn spawn(
    stream: TcpStream,
    cell: &Arc<Cell>,
    graceful: &GracefulShutdown,
    place: tokio::sync::OwnedSemaphorePermit,
) {
    let (cell, begun) = (Arc::clone(cell), Arc::new(AtomicBool::new(false)));
    let begins = Arc::clone(&begun);
    let service = service_fn(move |request| {
        begins.store(true, Ordering::Relaxed);
        let cell = Arc::clone(&cell);
        async move { Ok::<_, Infallible>(request::serve(cell, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEAD);
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned());
    tokio::spawn(async move {
        tokio::select! {
            served = connection => if let Err(error) = served {
                tracing::debug!(%error, "a connection ended with an error");
            },
            () = silent(&begun) => {}
        }
        drop(place);
    });
}

/// Comes back when a connection has brought no request for too long since it was made.
async fn silent(begun: &AtomicBool) {
    tokio::time::sleep(IDLE).await;
    if begun.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// Waits for the shutdown, says so, and then until nothing is under way or the time-out is over. Gives what is left of
/// it.
async fn drained(cell: Arc<Cell>, shutdown: Shutdown, timeout: Duration) -> Duration {
    shutdown.requested().await;
    cell.drain();
    tracing::info!(in_flight = cell.limits.in_flight(), timeout_ms = timeout.as_millis(), "draining");
    let begun = cell.clock.elapsed();
    loop {
        tokio::time::sleep(LOOK).await;
        let took = cell.clock.elapsed().saturating_sub(begun);
        if took >= timeout || (took >= HEARD && cell.limits.in_flight() == 0) {
            tracing::info!(took_ms = took.as_millis(), in_flight = cell.limits.in_flight(), "drained");
            return timeout.saturating_sub(took);
        }
    }
}
