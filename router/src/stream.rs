//! Follows the health stream of one pod for as long as the pod is in the table: connects, reads lines, and connects
//! again when it ends. What the lines mean is the state machine's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::Connector;
use bulkhead_process::connect::http1;
use bulkhead_protocol::HealthLine;
use bulkhead_protocol::health::{MAX_LINE, PATH, SILENCE};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tokio::sync::watch;
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
pub(crate) async fn follow(
    mut connectors: watch::Receiver<Arc<Connector>>,
    address: SocketAddr,
    reader: Reader,
) {
    let mut wait = RETRY_FIRST;
    loop {
        let connector = Arc::clone(&connectors.borrow_and_update());
        let reached = match open(&connector, address).await {
            Ok(body) => {
                let any = tokio::select! {
                    any = read(body, &reader) => any,
                    // The pod is what it was, and is asked again over a connection of the new kind.
                    Ok(()) = connectors.changed() => continue,
                };
                if any {
                    wait = RETRY_FIRST;
                }
                reader.ended();
                // At once: a refusal is the fastest way to learn that the pod is gone.
                connector.connect(address, CONNECT).await.map(drop)
            }
            Err(error) => Err(error),
        };
        match reached {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => reader.refused(),
            Err(error) if is_ours(&error) => {
                tracing::debug!(%address, %error, "no health stream can be opened, by this router's own fault");
                // Before the pod would be called silent.
                wait = RETRY_FIRST;
                reader.deaf();
            }
            Err(_) => reader.silent(),
        }
        tokio::time::sleep(jittered(wait)).await;
        wait = (wait * 2).min(RETRY_MOST);
    }
}

/// Whether this process or its machine has run out of something, so that the pod was not asked.
fn is_ours(error: &io::Error) -> bool {
    // Too many open files, of the machine and of the process, and no room for buffers: none has a kind of its own.
    const ERRNOS: [i32; 3] = [23, 24, 105];
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory)
        || error.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_side_ran_out_of_is_no_fault_of_the_pod() {
        let check = |errno, expected| {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(is_ours(&error), expected, "{error}");
        };
        for ours in [12, 23, 24, 99, 105] {
            check(ours, true);
        }
        // Unreachable network, reset, timed out, refused, unreachable host.
        for theirs in [101, 104, 110, 111, 113] {
            check(theirs, false);
        }
        assert!(!is_ours(&io::Error::other("no health stream")));
    }
}
