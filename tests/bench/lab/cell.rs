//! Cells that cost next to nothing: each says by its health stream that it is ready, reads requests, and does with them what
//! the bench wants. They live in this process, on threads of their own, so that nothing waits for the load.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use bulkhead_process::{Port, Shutdown};
use bulkhead_protocol::health::BEAT_INTERVAL;
use bulkhead_protocol::{Beat, HealthLine, Verdict};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::wire;

/// What a cell answers.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";
/// What a health stream begins with. Its end is the connection's.
const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n";
/// Ready for so long that no ramp is under way, in milliseconds.
const READY_FOR_MS: u64 = 1_000_000_000;

/// What cells do with a request that they have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Answer,
    /// Answers once they behave otherwise.
    Hang,
    /// Closes the connection of one request in so many, without a byte of an answer; answers the others.
    ResetEvery(u64),
}

/// Running cells.
pub(crate) struct Cells {
    ports: Vec<[Port; 2]>,
    cells: Vec<Arc<Cell>>,
    stop: Shutdown,
    threads: Vec<JoinHandle<()>>,
}

struct Cell {
    name: String,
    behaviour: watch::Sender<Behaviour>,
    requests: AtomicU64,
    resets: AtomicU64,
}

impl Cells {
    /// One for each name.
    ///
    /// # Errors
    /// When there are no ports or no threads left.
    pub(crate) async fn start(names: &[&str]) -> Result<Self> {
        let (mut ports, mut cells) = (Vec::new(), Vec::new());
        for name in names {
            ports.push(Port::free_pair().context("no free ports on loopback")?);
            cells.push(Arc::new(Cell {
                name: (*name).to_owned(),
                behaviour: watch::Sender::new(Behaviour::Answer),
                requests: AtomicU64::new(0),
                resets: AtomicU64::new(0),
            }));
        }
        let stop = Shutdown::new();
        let mut places = [Vec::new(), Vec::new()];
        for (pair, cell) in ports.iter().zip(&cells) {
            for (port, places) in pair.iter().zip(&mut places) {
                // From here on it is reached, although nobody accepts yet.
                let listener = TcpListener::bind(port.address).await?.into_std()?;
                places.push((listener, Arc::clone(cell)));
            }
        }
        let [for_traffic, for_health] = places;
        let threads =
            vec![thread("cells", &stop, for_traffic, traffic)?, thread("health", &stop, for_health, health)?];
        Ok(Self { ports, cells, stop, threads })
    }

    /// Where each takes transactions.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.ports.iter().map(|[traffic, _]| traffic.address)
    }

    /// Has that cell do otherwise from now on.
    pub(crate) fn behave(&self, cell: usize, behaviour: Behaviour) {
        self.cells[cell].behaviour.send_replace(behaviour);
    }

    /// Has all of them do otherwise from now on.
    pub(crate) fn all_behave(&self, behaviour: Behaviour) {
        (0..self.cells.len()).for_each(|cell| self.behave(cell, behaviour));
    }

    /// How many requests reached them whole.
    pub(crate) fn requests(&self) -> u64 {
        self.cells.iter().map(|cell| cell.requests.load(Ordering::Relaxed)).sum()
    }

    /// How many requests they closed the connection of.
    pub(crate) fn resets(&self) -> u64 {
        self.cells.iter().map(|cell| cell.resets.load(Ordering::Relaxed)).sum()
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        self.stop.trigger();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Serves every place by a thread of its own until `stop`.
fn thread<F>(
    name: &str,
    stop: &Shutdown,
    places: Vec<(std::net::TcpListener, Arc<Cell>)>,
    serve: fn(TcpStream, Arc<Cell>) -> F,
) -> Result<JoinHandle<()>>
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = stop.requested();
    for (listener, cell) in places {
        // Listeners belong to the runtime in which they are made.
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&cell)));
            }
        });
    }
    let thread = std::thread::Builder::new().name(name.to_owned());
    Ok(thread.spawn(move || runtime.block_on(stopped))?)
}

async fn traffic(mut stream: TcpStream, cell: Arc<Cell>) {
    let mut behaviour = cell.behaviour.subscribe();
    let mut buffer = BytesMut::new();
    if stream.set_nodelay(true).is_err() {
        return;
    }
    while let Ok(Some(_)) = wire::read(&mut stream, &mut buffer).await {
        let number = cell.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = *behaviour.borrow();
        match wanted {
            Behaviour::Answer => {}
            Behaviour::Hang => {
                let _ = behaviour.wait_for(|other| *other != Behaviour::Hang).await;
            }
            Behaviour::ResetEvery(nth) if number.is_multiple_of(nth) => {
                cell.resets.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Behaviour::ResetEvery(_) => {}
        }
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}

async fn health(mut stream: TcpStream, cell: Arc<Cell>) {
    let verdict = HealthLine::Verdict(Verdict {
        cell: cell.name.clone(),
        pod: cell.name.clone(),
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
        line.clone_from(&beat);
        tokio::time::sleep(BEAT_INTERVAL).await;
    }
}
