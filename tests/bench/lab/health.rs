//! The health stream of a cell that is always ready, as routers ask for it.

use bulkhead_protocol::health::BEAT_INTERVAL;
use bulkhead_protocol::{Beat, HealthLine, Verdict};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::wire;

/// What a health stream begins with. Its end is the connection's.
const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
/// Ready for so long that no ramp is under way, in milliseconds.
const READY_FOR_MS: u64 = 1_000_000_000;

/// Says that the cell of that name is ready, until nobody listens.
pub(crate) async fn health(stream: impl AsyncRead + AsyncWrite + Unpin, name: String) {
    health_counted(stream, name, |_| {}).await;
}

/// The same; `sent` is told how many bytes each line has.
pub(crate) async fn health_counted(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    name: String,
    sent: impl Fn(usize),
) {
    let verdict = HealthLine::Verdict(Verdict {
        cell: name.clone(),
        pod: name,
        ready: true,
        reason: "Ready".to_owned(),
        ready_for_ms: READY_FOR_MS,
        routers: 1,
        ..Verdict::default()
    });
    let beat = HealthLine::Beat(Beat { ready_for_ms: READY_FOR_MS, routers: 1, ..Beat::default() });
    let (Ok(verdict), Ok(beat)) = (verdict.to_line(), beat.to_line()) else { return };
    let mut buffer = BytesMut::new();
    let asked = wire::read(&mut stream, &mut buffer).await;
    if !matches!(asked, Ok(Some(_))) || stream.write_all(STREAM).await.is_err() {
        return;
    }
    let mut line = verdict;
    while stream.write_all(line.as_bytes()).await.is_ok() {
        sent(line.len());
        line.clone_from(&beat);
        tokio::time::sleep(BEAT_INTERVAL).await;
    }
}
