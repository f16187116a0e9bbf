//! The cells: all of them in this process. One thread answers requests for all, another tells their health to whoever asks
//! and writes down who came when.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::{Monotonic, Port};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::objects::name;
use crate::lab::health::health_counted;
use crate::lab::serving::Serving;
use crate::proxy::listen;
use crate::proxy::rig::Rig;

/// How long all streams together may take to open.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

pub(super) struct Cells {
    ports: Vec<[Port; 2]>,
    pub(super) rig: Rig,
    health: Option<Serving>,
    pub(super) streams: Arc<Streams>,
}

/// What became of health streams.
pub(super) struct Streams {
    clock: Monotonic,
    open: AtomicUsize,
    bytes: AtomicU64,
    /// When each came, in microseconds.
    came: Mutex<Vec<u64>>,
}

/// One that is open.
struct Open(Arc<Streams>);

impl Cells {
    /// So many, ready from the first moment.
    ///
    /// # Errors
    /// When the kernel has no ports or no threads for them.
    pub(super) fn start(count: usize) -> Result<Self> {
        let ports: Vec<_> = (0..count).map(|_| Port::free_pair()).collect::<Result<_, _>>()?;
        let traffic = ports.iter().map(|[own, _]| Ok((listen(own.address)?, None)));
        let rig = Rig::start(traffic.collect::<Result<_>>()?)?;
        let streams = Streams {
            clock: Monotonic::start(),
            open: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            came: Mutex::default(),
        };
        let mut cells = Self { ports, rig, health: None, streams: Arc::new(streams) };
        cells.speak()?;
        Ok(cells)
    }

    /// Where each takes transactions.
    pub(super) fn endpoints(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|[own, _]| own.address).collect()
    }

    /// Ends all health streams at once, and refuses others for that long.
    ///
    /// # Errors
    /// When the kernel does not give the ports back.
    pub(super) async fn restart(&mut self, down: Duration) -> Result<()> {
        self.health = None;
        sleep(down).await;
        self.streams.came().clear();
        self.speak()
    }

    fn speak(&mut self) -> Result<()> {
        let places =
            self.ports.iter().enumerate().map(|(cell, [_, next])| {
                Ok((listen(next.address)?, (name(cell), Arc::clone(&self.streams))))
            });
        let serve = |stream, (name, streams)| tell(stream, name, streams);
        self.health = Some(Serving::start("health", places.collect::<Result<_>>()?, serve)?);
        Ok(())
    }
}

async fn tell(stream: TcpStream, name: String, streams: Arc<Streams>) {
    streams.came().push(streams.clock.micros());
    let open = Open::new(streams);
    health_counted(stream, name, |bytes| {
        open.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    })
    .await;
}

impl Open {
    fn new(streams: Arc<Streams>) -> Self {
        streams.open.fetch_add(1, Ordering::Relaxed);
        Self(streams)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Streams {
    /// Bytes that were told in all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.micros()
    }

    /// When each came since the last restart, in microseconds.
    pub(super) fn came(&self) -> MutexGuard<'_, Vec<u64>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until exactly so many are open.
    ///
    /// # Errors
    /// When they are not in time.
    pub(super) async fn opened(&self, wanted: usize) -> Result<()> {
        let clock = Monotonic::start();
        loop {
            let open = self.open.load(Ordering::Relaxed);
            if open == wanted {
                return Ok(());
            }
            let late = clock.elapsed() > PATIENCE;
            ensure!(!late, "{open} health streams are open after {PATIENCE:?}, and not {wanted}");
            sleep(LOOK).await;
        }
    }
}

/// The metric of that name that a router tells.
pub(super) fn metric(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.with_context(|| format!("the router tells no {name}"))?;
    value.parse().with_context(|| format!("{name} is {value}, and that is no number"))
}

#[cfg(test)]
mod tests {
    use bulkhead_process::Connector;

    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# HELP tables x\ntables_total 7\ntables 5\n";
        assert_eq!(metric(text, "tables").expect("is there"), 5.0);
        assert!(metric(text, "table").is_err());
    }

    #[tokio::test]
    async fn streams_are_counted_and_end_with_a_restart() {
        let mut cells = Cells::start(2).expect("start");
        let connect = async |cells: &Cells| {
            let to = cells.ports[1][1].address;
            let stream = Connector::default().connect(to, PATIENCE).await;
            stream.expect("listens")
        };
        let _before = connect(&cells).await;
        cells.streams.opened(1).await.expect("is open");
        cells.restart(Duration::ZERO).await.expect("restarts");
        cells.streams.opened(0).await.expect("is ended");
        assert_eq!(cells.streams.came().len(), 0);
        let _after = connect(&cells).await;
        cells.streams.opened(1).await.expect("is open");
        assert_eq!(cells.streams.came().len(), 1);
    }
}
