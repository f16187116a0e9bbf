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
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::health::Reader;
use crate::random;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_millis(500);
/// A stream without a line for this long is given up for a new one: the connection may be dead without anybody having
/// said so. Longer than silence, which is judged elsewhere.
const GIVE_UP: Duration = Duration::from_millis(3 * SILENCE.as_millis() as u64);
/// Between two tries at a pod, at most: the first soon, so that a pod whose stream alone ended is heard before it would be
/// called silent.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// Never ends by itself.
pub(crate) async fn follow(
    mut connectors: watch::Receiver<Arc<Connector>>,
    address: SocketAddr,
    reader: Reader,
) {
    let mut backoff = Backoff::default();
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
                    backoff = Backoff::default();
                }
                reader.ended();
                // At once: a refusal is the fastest way to learn that the pod is gone.
                knock(address).await
            }
            Err(error) => Err(error),
        };
        match reached {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => reader.refused(),
            Err(error) if is_ours(&error) => {
                tracing::debug!(%address, %error, "no health stream can be opened, by this router's own fault");
                // Before the pod would be called silent.
                backoff = Backoff::default();
                reader.deaf();
            }
            Err(_) => reader.silent(),
        }
        tokio::time::sleep(backoff.next(u16::from_le_bytes(random::bytes()))).await;
    }
}

/// How long to wait for the next try: anything up to a limit that doubles with each. Many streams that end at once, of
/// many cells or to many routers, come back one by one, however long their cells were away.
struct Backoff {
    most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { most: RETRY_FIRST }
    }
}

impl Backoff {
    fn next(&mut self, random: u16) -> Duration {
        let wait = self.most.mul_f64(f64::from(random) / f64::from(u16::MAX));
        self.most = (self.most * 2).min(RETRY_MOST);
        wait
    }
}

/// Whether this process or its machine has run out of something, so that the pod was not asked.
fn is_ours(error: &io::Error) -> bool {
    // Too many open files, of the machine and of the process, and no room for buffers: none has a kind of its own.
    const ERRNOS: [i32; 3] = [23, 24, 105];
    matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory)
        || error.raw_os_error().is_some_and(|errno| ERRNOS.contains(&errno))
}

/// Whether somebody listens. Without a handshake: where all streams ended at once, that is spread over time with the tries.
async fn knock(address: SocketAddr) -> io::Result<()> {
    timeout(CONNECT, TcpStream::connect(address)).await?.map(drop)
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
    use std::collections::BTreeMap;

    use bulkhead_protocol::health::BEAT_INTERVAL;

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

    #[test]
    fn limits_double_up_to_a_second() {
        let mut backoff = Backoff::default();
        let limits: Vec<u128> = (0..5).map(|_| backoff.next(u16::MAX).as_millis()).collect();
        assert_eq!(limits, [200, 400, 800, 1_000, 1_000]);
        assert_eq!(backoff.next(0), Duration::ZERO);
    }

    /// Of a thousand streams that end at once and are refused for so long, the most that come back within 100 ms.
    fn herd(down_ms: u64) -> usize {
        let mut spans = BTreeMap::<u128, usize>::new();
        for stream in 0..1_000_u32 {
            // Any numbers that are spread evenly do.
            let mut random = stream.wrapping_mul(2_654_435_761);
            let (mut backoff, mut at) = (Backoff::default(), Duration::ZERO);
            while at < Duration::from_millis(down_ms) || at.is_zero() {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                at += backoff.next((random >> 16) as u16);
            }
            *spans.entry(at.as_millis() / 100).or_default() += 1;
        }
        spans.into_values().max().unwrap_or_default()
    }

    #[test]
    fn streams_that_end_at_once_do_not_come_back_at_once() {
        for (down_ms, most) in [(0, 550), (300, 400), (2_000, 250), (60_000, 250)] {
            let herd = herd(down_ms);
            assert!(herd <= most, "{herd} of 1,000 within 100 ms after {down_ms} ms");
        }
    }

    #[test]
    fn the_first_try_comes_before_silence_even_after_the_longest_pause_between_beats() {
        assert!(BEAT_INTERVAL + RETRY_FIRST < SILENCE);
    }
}
