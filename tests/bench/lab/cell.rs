//! Cells that cost next to nothing: each says by its health stream that it is ready, reads requests, and does with them what
//! the bench wants. They live in this process, on threads of their own, so that nothing waits for the load.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use bulkhead_process::Port;
use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::health::health;
use super::serving::Serving;
use super::wire;

/// What a cell answers.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

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
    _serving: [Serving; 2],
}

struct Cell {
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
        let (mut for_traffic, mut for_health) = (Vec::new(), Vec::new());
        for name in names {
            let cell = Arc::new(Cell {
                behaviour: watch::Sender::new(Behaviour::Answer),
                requests: AtomicU64::new(0),
                resets: AtomicU64::new(0),
            });
            let pair = Port::free_pair().context("no free ports on loopback")?;
            let [own, next] = [&pair[0], &pair[1]].map(|port| port.address);
            // From here on both are reached, although nobody accepts yet.
            for_traffic.push((TcpListener::bind(own).await?.into_std()?, Arc::clone(&cell)));
            for_health.push((TcpListener::bind(next).await?.into_std()?, (*name).to_owned()));
            ports.push(pair);
            cells.push(cell);
        }
        let serving =
            [Serving::start("cells", for_traffic, traffic)?, Serving::start("health", for_health, health)?];
        Ok(Self { ports, cells, _serving: serving })
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
