//! Those who ask and take what they are answered, be it a refusal: a closed loop or an open one. Whoever finds no free
//! connection in the open loop keeps its request to itself, as a pool that is used up does, and is counted.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_samples::load::histogram::Histogram;
use nix::sys::epoll::Epoll;

use super::rig::Party;
use super::sockets::connected;
use crate::proxy::arrivals::Arrivals;
use crate::proxy::connection::{Connection, Received};
use crate::proxy::shape::Template;
use crate::proxy::slab::Slab;
use crate::proxy::wire::Wire;

/// A good answer that comes later than this helps nobody any more.
pub(super) const BOUND: Duration = Duration::from_millis(250);
/// Connections that are made before anybody is looked after again: no backlog takes all of them at once.
const AT_ONCE: usize = 16;
/// Cells among which requests take turns.
pub(super) const CELLS: usize = 2;

/// What is sent where, and how.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) to: SocketAddr,
    /// Requests of even numbers are the first cell's, those of odd ones the second's.
    pub(super) template: Template,
    pub(super) pace: Pace,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// So many connections, each with a request when it has the answer to the last.
    Closed(usize),
    /// So many connections, each with one request, and then quiet.
    Once(usize),
    /// So many requests per second, whatever became of the others, over so many connections.
    Open { per_second: u32, over: usize },
}

/// What became of one cell's requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Answered with 200 within [`BOUND`], and after it.
    pub(super) good: u64,
    pub(super) late: u64,
    /// With 503 or 429.
    pub(super) refused: u64,
    /// Answered otherwise, or not at all.
    pub(super) failed: u64,
    /// Never sent.
    pub(super) held_back: u64,
    /// Microseconds to answers with 200.
    pub(super) latencies: Histogram,
    /// Microseconds to refusals.
    pub(super) refusals: Histogram,
}

pub(super) struct Clients {
    load: Load,
    token: fn(usize) -> u64,
    connections: Slab<Client>,
    idle: Vec<usize>,
    arrivals: Option<Arrivals>,
    next: u64,
    tallies: [Tally; CELLS],
    ending: bool,
}

struct Client {
    connection: Connection,
    asked: Option<Asked>,
}

#[derive(Clone, Copy)]
struct Asked {
    /// When it should have been sent, in microseconds.
    at: u64,
    cell: usize,
}

impl Clients {
    pub(super) fn new(load: Load, token: fn(usize) -> u64, now: u64) -> Self {
        let arrivals = match load.pace {
            Pace::Open { per_second, .. } => Some(Arrivals::new(per_second, now)),
            Pace::Closed(_) | Pace::Once(_) => None,
        };
        Self {
            load,
            token,
            connections: Slab::new(),
            idle: Vec::new(),
            arrivals,
            next: 0,
            tallies: Default::default(),
            ending: false,
        }
    }

    /// Counts anew from now on.
    pub(super) fn count(&mut self) {
        self.tallies = Default::default();
    }

    /// Of each cell, up to now.
    pub(super) fn tallies(&self) -> &[Tally; CELLS] {
        &self.tallies
    }

    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// Whether all connections are there and none has a request under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.idle.len() == self.connections.len() && (self.ending || self.missing() == 0)
    }

    /// What became of all requests, those without an answer among them.
    pub(super) fn finish(mut self) -> [Tally; CELLS] {
        for asked in self.connections.iter().filter_map(|client| client.asked) {
            self.tallies[asked.cell].failed += 1;
        }
        self.tallies
    }

    /// How many connections there are too few.
    fn missing(&self) -> usize {
        let (Pace::Closed(wanted) | Pace::Once(wanted) | Pace::Open { over: wanted, .. }) = self.load.pace;
        wanted.saturating_sub(self.connections.len())
    }

    /// None where the kernel lost something on the way: somebody tries again.
    ///
    /// # Errors
    /// When nobody takes a connection.
    fn connect(&mut self, epoll: &Epoll) -> io::Result<Option<usize>> {
        let place = self.connections.next();
        let stream = match connected(self.load.to, None) {
            Err(lost) if matches!(lost.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            connected => connected?,
        };
        let connection = Connection::new(Wire::Plain(stream), epoll, (self.token)(place))?;
        Ok(Some(self.connections.insert(Client { connection, asked: None })))
    }

    /// The number of the next request, and whose it is.
    fn number(&mut self) -> (u64, usize) {
        let number = self.next;
        self.next += 1;
        (number, (number % CELLS as u64) as usize)
    }

    fn ask(&mut self, place: usize, at: u64, epoll: &Epoll) {
        let (number, cell) = self.number();
        let Some(client) = self.connections.get_mut(place) else { return };
        self.load.template.number(number);
        client.asked = Some(Asked { at, cell });
        // A request of less than a kilobyte finds room on a connection that has none under way.
        if !matches!(client.connection.send(&self.load.template.bytes, epoll), Ok(true)) {
            self.fail(place);
        }
    }

    /// Forgets a connection, and counts the request that it had under way.
    fn fail(&mut self, place: usize) {
        let asked = self.connections.get_mut(place).and_then(|client| client.asked);
        self.connections.remove(place);
        match asked {
            Some(asked) => self.tallies[asked.cell].failed += 1,
            None => self.idle.retain(|idle| *idle != place),
        }
    }

    fn answered(&mut self, asked: Asked, now: u64, status: Option<u16>) {
        let micros = now.saturating_sub(asked.at);
        let tally = &mut self.tallies[asked.cell];
        match status {
            Some(200) => {
                let is_late = u128::from(micros) > BOUND.as_micros();
                *(if is_late { &mut tally.late } else { &mut tally.good }) += 1;
                tally.latencies.record(micros);
            }
            Some(503 | 429) => {
                tally.refused += 1;
                tally.refusals.record(micros);
            }
            _ => tally.failed += 1,
        }
    }
}

impl Party for Clients {
    fn is_impatient(&self) -> bool {
        // Without a free connection the moment at which a request comes makes no difference, and whoever does not sleep
        // pushes everybody else to the proxy's core.
        let sends_soon = self.arrivals.is_some() && !self.idle.is_empty();
        !self.ending && (sends_soon || self.missing() > 0)
    }

    fn go_on(&mut self, now: u64, epoll: &Epoll) -> Result<()> {
        if self.ending {
            return Ok(());
        }
        for _ in 0..self.missing().min(AT_ONCE) {
            let Some(place) = self.connect(epoll).context("a client cannot connect")? else { break };
            if self.arrivals.is_some() {
                self.idle.push(place);
            } else {
                self.ask(place, now, epoll);
            }
        }
        while let Some(came) = self.arrivals.as_mut().and_then(|arrivals| arrivals.due(now)) {
            if let Some(place) = self.idle.pop() {
                self.ask(place, came, epoll);
            } else {
                let (_, cell) = self.number();
                self.tallies[cell].held_back += 1;
            }
        }
        Ok(())
    }

    fn happened(&mut self, place: usize, now: u64, scratch: &mut [u8], epoll: &Epoll) {
        let Some(client) = self.connections.get_mut(place) else { return };
        match (client.connection.receive(scratch), client.asked) {
            (Ok(Received::Part), _) => {}
            (Ok(Received::Whole(head)), Some(asked)) => {
                client.asked = None;
                self.answered(asked, now, head.status);
                if head.closes {
                    self.connections.remove(place);
                } else if matches!(self.load.pace, Pace::Closed(_)) && !self.ending {
                    self.ask(place, now, epoll);
                } else {
                    self.idle.push(place);
                }
            }
            (Ok(Received::Whole(_) | Received::Closed) | Err(_), _) => self.fail(place),
        }
    }
}
