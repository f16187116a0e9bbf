//! Asks one pod's readiness path, again and again, over a connection of its own. What follows from the answers is
//! the verdict's.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_process::connect::http1;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::SendRequest;
use tokio::time::MissedTickBehavior;

use crate::cell::Cell;
use crate::service::{Pod, State};

/// Between two probes of one pod.
const INTERVAL: Duration = Duration::from_millis(200);
/// Longest answer that a probe reads to keep its connection.
const MAX_ANSWER: usize = 64 * 1024;

type Connection = SendRequest<Empty<Bytes>>;

/// Probes until the pod is no longer known.
pub(crate) fn spawn(cell: &Arc<Cell>, pod: &Arc<Pod>, path: &str) {
    let (mut connection, asked) = (None, path.to_owned());
    let probe = async move |cell: &Cell, pod: &Pod| probe(cell, pod, &asked, &mut connection).await;
    tokio::spawn(watch(Arc::downgrade(cell), Arc::downgrade(pod), path.to_owned(), probe));
}

async fn watch(
    cell: Weak<Cell>,
    pod: Weak<Pod>,
    path: String,
    mut probe: impl AsyncFnMut(&Cell, &Pod) -> anyhow::Result<StatusCode>,
) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (Some(cell), Some(pod)) = (cell.upgrade(), pod.upgrade()) else { return };
        tokio::select! {
            _ = interval.tick() => {}
            () = pod.wake.notified() => {}
        }
        let timeout = cell.probe_timeout;
        let state = match tokio::time::timeout(timeout, probe(&cell, &pod)).await {
            Ok(Ok(status)) if status.as_u16() < 400 => State::Ready,
            Ok(Ok(status)) => State::NotReady { why: format!("answered {} to {path}", status.as_u16()) },
            Ok(Err(error)) => State::NotReady { why: format!("did not answer {path}: {error:#}") },
            Err(_) => {
                State::NotReady { why: format!("did not answer {path} within {} ms", timeout.as_millis()) }
            }
        };
        if pod.set_state(state) {
            cell.changed.notify_one();
        }
    }
}

/// One probe. A kept connection that fails is no evidence: the service may close idle ones. One that does not answer in
/// time goes with the probe.
async fn probe(
    cell: &Cell,
    pod: &Pod,
    path: &str,
    kept: &mut Option<Connection>,
) -> anyhow::Result<StatusCode> {
    if let Some(mut connection) = kept.take()
        && let Ok(status) = ask(&mut connection, pod, path).await
    {
        *kept = Some(connection);
        return Ok(status);
    }
    let mut connection = http1(cell.connector.connect(pod.address, cell.probe_timeout).await?).await?;
    let status = ask(&mut connection, pod, path).await?;
    *kept = Some(connection);
    Ok(status)
}

async fn ask(connection: &mut Connection, pod: &Pod, path: &str) -> anyhow::Result<StatusCode> {
    connection.ready().await?;
    let request = Request::get(path)
        .header(header::HOST, pod.address.to_string())
        .header(header::USER_AGENT, "bulkhead-cell-runtime")
        .body(Empty::new())?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    // The rest of an answer that is too long goes with its connection.
    let _ = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(status)
}
