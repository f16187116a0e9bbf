//! Follows the health stream of one pod for as long as the pod is in the table: connects, reads lines, and connects
//! again when it ends. What the lines mean is the state machine's.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_process::Connector;
use bulkhead_process::connect::http1;
use bulkhead_protocol::HealthLine;
use bulkhead_protocol::health::{MAX_LINE, PATH, SILENCE};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::health::Reader;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_millis(500);
/// A stream without a line for this long is given up for a new one: the connection may be dead without anybody having
/// said so. Longer than silence, which is judged elsewhere.
const GIVE_UP: Duration = Duration::from_millis(3 * SILENCE.as_millis() as u64);
/// Between two tries at a pod: the first soon, since a pod that restarts is back soon.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// Never ends by itself.
pub(crate) async fn follow(connector: Connector, address: SocketAddr, reader: Reader) {
    let mut wait = RETRY_FIRST;
    loop {
        match open(&connector, address).await {
            Ok(body) => {
                if read(body, &reader).await {
                    wait = RETRY_FIRST;
                }
                reader.ended();
                // At once: a refusal is the fastest way to learn that the pod is gone.
                if let Err(error) = connector.connect(address, CONNECT).await {
                    report(&reader, &error);
                }
            }
            Err(error) => report(&reader, &error),
        }
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(RETRY_MOST);
    }
}

fn report(reader: &Reader, error: &io::Error) {
    if error.kind() == io::ErrorKind::ConnectionRefused { reader.refused() } else { reader.silent() }
}

/// Up to a quarter more, so that the streams of many pods do not move in step.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + f64::from(crate::random::byte()) / 1020.0)
}

async fn open(connector: &Connector, address: SocketAddr) -> io::Result<Incoming> {
    let stream = connector.connect(address, CONNECT).await?;
    let mut sender = http1(stream).await.map_err(io::Error::other)?;
    let request = Request::get(PATH)
        .header(header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    let response = timeout(GIVE_UP, sender.send_request(request))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        .map_err(io::Error::other)?;
    if response.status() != http::StatusCode::OK {
        return Err(io::Error::other(format!("the health stream answered {}", response.status())));
    }
    Ok(response.into_body())
}

/// Reads lines until the stream ends, breaks or falls silent. Whether there was any.
async fn read(mut body: Incoming, reader: &Reader) -> bool {
    let mut buffer = Vec::new();
    let mut any = false;
    loop {
        let frame = match timeout(GIVE_UP, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_)) | None) | Err(_) => return any,
        };
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            match HealthLine::from_line(&line) {
                Ok(Some(line)) => {
                    any = true;
                    reader.line(line);
                }
                // A newer orchestrator says more; it is alive all the same, which its next beat shows.
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a line of a health stream makes no sense");
                    return any;
                }
            }
        }
        if buffer.len() > MAX_LINE {
            tracing::warn!("a line of a health stream is too long");
            return any;
        }
    }
}
