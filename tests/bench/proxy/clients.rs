//! Those who ask: a closed loop, over connections that are kept or new each time, or an open one. A latency counts from the
//! moment at which its request should have been sent, so that a proxy which makes its clients wait cannot hide it.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bulkhead_samples::load::histogram::Histogram;
use nix::sys::epoll::Epoll;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::arrivals::Arrivals;
use super::connection::{Connection, Received};
use super::shape::{Template, Way};
use super::slab::Slab;
use super::wire::Wire;

/// Connections that are made before anybody is looked after again: no backlog takes all of them at once.
const AT_ONCE: usize = 16;
/// Connections of an open loop at most; what comes when all of them have a request under way waits.
const MOST: usize = 512;

/// What is sent where, and how.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) to: SocketAddr,
    pub(crate) template: Template,
    pub(crate) way: Way,
    /// Of an open loop.
    pub(crate) per_second: u32,
    /// Where clients speak it, and whom they ask for.
    pub(crate) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

pub(super) struct Clients {
    load: Load,
    token: fn(usize) -> u64,
    connections: Slab<Client>,
    /// Of an open loop: connections without a request.
    idle: Vec<usize>,
    /// Of an open loop: when requests came for which no connection is free.
    waiting: VecDeque<u64>,
    arrivals: Option<Arrivals>,
    next: u64,
    answered: u64,
    /// Microseconds of those requests that came since [`Self::count_from`].
    latencies: Histogram,
    counted_from: u64,
    ending: bool,
}

struct Client {
    connection: Connection,
    /// When its request should have been sent, in microseconds. None without one.
    asked: Option<u64>,
}

impl Clients {
    /// The kernel names connections by what `token` makes of their places. Requests are numbered from `next` on.
    pub(super) fn new(load: Load, token: fn(usize) -> u64, next: u64, now: u64) -> Self {
        let arrivals = (load.way == Way::Open).then(|| Arrivals::new(load.per_second, now));
        Self {
            load,
            token,
            connections: Slab::new(),
            idle: Vec::new(),
            waiting: VecDeque::new(),
            arrivals,
            next,
            answered: 0,
            latencies: Histogram::default(),
            counted_from: u64::MAX,
            ending: false,
        }
    }

    /// The number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether somebody has to look at the clock all the time.
    pub(super) fn is_impatient(&self) -> bool {
        !self.ending && (self.arrivals.is_some() || self.missing() > 0)
    }

    /// Latencies of requests that come from now on are counted.
    pub(super) fn count_from(&mut self, now: u64) {
        self.counted_from = now;
    }

    /// No request is sent from now on.
    pub(super) fn end(&mut self) {
        self.ending = true;
    }

    /// Whether every request that was sent has its answer.
    pub(super) fn is_over(&self) -> bool {
        self.connections.iter().all(|client| client.asked.is_none())
    }

    /// The latencies; how many requests have no answer yet, which are among the latencies with their age.
    pub(super) fn finish(mut self, now: u64) -> (Histogram, u64) {
        let asked = self.connections.iter().filter_map(|client| client.asked);
        let unanswered: Vec<u64> =
            asked.chain(self.waiting.iter().copied()).filter(|asked| *asked >= self.counted_from).collect();
        unanswered.iter().for_each(|asked| self.latencies.record(now.saturating_sub(*asked)));
        (self.latencies, unanswered.len() as u64)
    }

    /// Sends what has to be sent by now.
    ///
    /// # Errors
    /// When nobody takes a connection.
    pub(super) fn go_on(&mut self, now: u64, epoll: &Epoll) -> Result<()> {
        if self.ending {
            return Ok(());
        }
        for _ in 0..self.missing().min(AT_ONCE) {
            let place = self.connect(epoll)?;
            self.ask(place, now, epoll)?;
        }
        while let Some(came) = self.arrivals.as_mut().and_then(|arrivals| arrivals.due(now)) {
            if let Some(place) = self.idle.pop() {
                self.ask(place, came, epoll)?;
            } else if self.connections.len() < MOST {
                let place = self.connect(epoll)?;
                self.ask(place, came, epoll)?;
            } else {
                self.waiting.push_back(came);
            }
        }
        Ok(())
    }

    /// Something happened on that connection.
    ///
    /// # Errors
    /// When a request is not answered with 200.
    pub(super) fn happened(
        &mut self,
        place: usize,
        now: u64,
        scratch: &mut [u8],
        epoll: &Epoll,
    ) -> Result<()> {
        let Some(client) = self.connections.get_mut(place) else { return Ok(()) };
        if client.connection.is_sending() {
            let sent = client.connection.send(&self.load.template.bytes, epoll);
            sent.context("a request cannot be sent")?;
        }
        let received = client.connection.receive(scratch).context("a request got no answer")?;
        match (received, client.asked) {
            (Received::Part, _) => Ok(()),
            (Received::Whole(head), Some(asked)) => {
                ensure!(head.status == Some(200), "a request was answered with {:?}", head.status);
                client.asked = None;
                self.answered += 1;
                if asked >= self.counted_from {
                    self.latencies.record(now.saturating_sub(asked));
                }
                let closes = head.closes || matches!(self.load.way, Way::Anew(_));
                self.answered_at(place, closes, now, epoll)
            }
            (Received::Closed, None) => {
                self.forget(place);
                Ok(())
            }
            (_, asked) => {
                ensure!(asked.is_none(), "a request got no answer: its connection was closed");
                ensure!(false, "an answer came that nobody asked for");
                Ok(())
            }
        }
    }

    fn answered_at(&mut self, place: usize, closes: bool, now: u64, epoll: &Epoll) -> Result<()> {
        if closes {
            // Closed loops make another in their next turn.
            self.forget(place);
        } else if self.ending {
        } else if self.arrivals.is_none() {
            self.ask(place, now, epoll)?;
        } else if let Some(came) = self.waiting.pop_front() {
            self.ask(place, came, epoll)?;
        } else {
            self.idle.push(place);
        }
        Ok(())
    }

    /// How many connections a closed loop lacks.
    fn missing(&self) -> usize {
        let (Way::Kept(wanted) | Way::Anew(wanted)) = self.load.way else { return 0 };
        wanted.saturating_sub(self.connections.len())
    }

    fn forget(&mut self, place: usize) {
        self.connections.remove(place);
        self.idle.retain(|idle| *idle != place);
    }

    /// On loopback the kernel takes connections without the proxy, so that nobody is kept waiting.
    fn connect(&mut self, epoll: &Epoll) -> Result<usize> {
        let stream = TcpStream::connect(self.load.to).context("a client cannot connect")?;
        let wire = Wire::client(stream, self.load.tls.clone())?;
        let connection = Connection::new(wire, epoll, (self.token)(self.connections.next()))?;
        Ok(self.connections.insert(Client { connection, asked: None }))
    }

    /// `came` is when it should have been sent.
    fn ask(&mut self, place: usize, came: u64, epoll: &Epoll) -> Result<()> {
        let Some(client) = self.connections.get_mut(place) else { return Ok(()) };
        self.load.template.number(self.next);
        self.next += 1;
        client.asked = Some(came);
        let template = &self.load.template;
        let whole = client.connection.send(&template.bytes, epoll).context("a request cannot be sent")?;
        // What is sent later comes from the template too, whose head is another request's by then. Where nothing is sent yet,
        // as before a handshake, that is as good.
        let sent = client.connection.sent();
        ensure!(whole || sent == 0 || sent >= template.head, "there is no room for the head of a request");
        Ok(())
    }
}
