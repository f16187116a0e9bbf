//! Asks the cell's other orchestrators for how long it has been ready. One question, at the start.

use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_process::connect::http1;
use bulkhead_protocol::{HealthLine, Verdict, health};
use bytes::Bytes;
use futures::future::join_all;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};

use crate::cell::Cell;

const TIMEOUT: Duration = Duration::from_millis(500);

/// The longest age that a peer of this cell tells; `None` when no peer is ready.
pub(crate) async fn longest_ready(cell: &Cell) -> Option<u64> {
    let peers = cell.peers.borrow().clone();
    let answers = peers.into_iter().map(async |peer| {
        match tokio::time::timeout(TIMEOUT, ask(cell, peer)).await {
            Ok(Ok(verdict)) => Some(verdict),
            Ok(Err(error)) => {
                tracing::info!(%peer, error = format!("{error:#}"), "an orchestrator did not say its verdict");
                None
            }
            Err(_) => {
                tracing::info!(%peer, "an orchestrator did not say its verdict in time");
                None
            }
        }
    });
    let verdicts = join_all(answers).await;
    verdicts
        .into_iter()
        .flatten()
        .filter(|verdict| verdict.ready && verdict.cell == cell.config.cell)
        .map(|verdict| verdict.ready_for_ms)
        .max()
}

/// The first verdict of a peer's stream, which is closed then.
async fn ask(cell: &Cell, peer: SocketAddr) -> anyhow::Result<Verdict> {
    let mut connection = http1(cell.connector.connect(peer, TIMEOUT).await?).await?;
    let request =
        Request::get(health::PATH).header(header::HOST, peer.to_string()).body(Empty::<Bytes>::new())?;
    let mut body = connection.send_request(request).await?.into_body();
    let mut buffer = Vec::new();
    while let Some(frame) = body.frame().await {
        buffer.extend_from_slice(&frame?.into_data().unwrap_or_default());
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            if let Some(HealthLine::Verdict(verdict)) = HealthLine::from_line(&line)? {
                return Ok(verdict);
            }
        }
        anyhow::ensure!(buffer.len() <= health::MAX_LINE, "a line of its stream is too long");
    }
    anyhow::bail!("its stream ended without a verdict")
}
