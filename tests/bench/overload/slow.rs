//! Clients that are slow on purpose: a byte of a head each second, or of a body, or a few bytes of an answer.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::rig::Party;
use super::sockets::connected;
use super::stage::LONG_PARTNER;
use crate::proxy::slab::Slab;

/// Between two steps of a client, in microseconds.
const BETWEEN: u64 = 1_000_000;
/// A head that comes to no end.
const HEAD: &str = "GET /v1/authorize HTTP/1.1\r\nhost: payments.example\r\nx-pad: ";
/// Bytes that who reads slowly takes from its kernel at once, and that its kernel takes before.
const SIP: usize = 1_024;
const TAKES: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slowness {
    Head,
    Body,
    Answer,
    /// Asks, and takes nothing of the answer.
    Unread,
}

impl Slowness {
    pub(super) const ALL: [Self; 4] = [Self::Head, Self::Body, Self::Answer, Self::Unread];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Head => "a head, 1 B/s",
            Self::Body => "a body, 1 B/s",
            Self::Answer => "an answer, 1 KiB/s",
            Self::Unread => "an answer, unread",
        }
    }

    /// What is sent at once.
    fn beginning(self) -> String {
        match self {
            Self::Head => String::new(),
            Self::Body => {
                "POST /v1/authorize HTTP/1.1\r\nhost: payments.example\r\nx-partner: p000000000000\r\n\
                           content-type: application/json\r\ncontent-length: 512\r\n\r\n"
                    .to_owned()
            }
            Self::Answer | Self::Unread => {
                format!(
                    "GET /v1/authorize HTTP/1.1\r\nhost: payments.example\r\nx-partner: {LONG_PARTNER}\r\n\r\n"
                )
            }
        }
    }
}

pub(super) struct SlowClients {
    to: SocketAddr,
    slowness: Slowness,
    wanted: usize,
    token: fn(usize) -> u64,
    clients: Slab<Slow>,
    made: usize,
    /// Whose turn it is to go on, and when.
    turn: usize,
    due: u64,
}

struct Slow {
    stream: TcpStream,
    sent: usize,
}

impl SlowClients {
    pub(super) fn new(
        to: SocketAddr,
        slowness: Slowness,
        wanted: usize,
        token: fn(usize) -> u64,
        now: u64,
    ) -> Self {
        Self { to, slowness, wanted, token, clients: Slab::new(), made: 0, turn: 0, due: now }
    }

    /// Whether as many have been made as there are to be.
    pub(super) fn are_all_there(&self) -> bool {
        self.made >= self.wanted
    }

    fn connect(&mut self, epoll: &Epoll) -> Result<()> {
        let takes_little = matches!(self.slowness, Slowness::Answer | Slowness::Unread);
        let place = self.clients.next();
        let mut stream = connected(self.to, takes_little.then_some(TAKES)).context("no slow client")?;
        stream.write_all(self.slowness.beginning().as_bytes()).context("a slow client cannot begin")?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Of answers it wants to hear when they come to an end alone.
        let interest = if takes_little { EpollFlags::empty() } else { EpollFlags::EPOLLIN };
        epoll.add(&stream, EpollEvent::new(interest, (self.token)(place)))?;
        self.clients.insert(Slow { stream, sent: 0 });
        self.made += 1;
        Ok(())
    }

    /// One step of one client. Who is closed finds out by an event.
    fn step(&mut self) {
        let Some(slow) = self.clients.get_mut(self.turn) else { return };
        match self.slowness {
            Slowness::Head => {
                let byte = HEAD.as_bytes().get(slow.sent).unwrap_or(&b'x');
                slow.sent += slow.stream.write(&[*byte]).unwrap_or_default();
            }
            Slowness::Body => slow.sent += slow.stream.write(b"x").unwrap_or_default(),
            Slowness::Answer => {
                let _ = slow.stream.read(&mut [0; SIP]);
            }
            Slowness::Unread => {}
        }
    }
}

impl Party for SlowClients {
    fn is_impatient(&self) -> bool {
        !self.are_all_there()
    }

    fn go_on(&mut self, now: u64, epoll: &Epoll) -> Result<()> {
        if !self.are_all_there() {
            self.connect(epoll)?;
        }
        // One after the other over the second.
        while self.due <= now {
            self.step();
            self.turn = (self.turn + 1) % self.wanted.max(1);
            self.due += BETWEEN / self.wanted.max(1) as u64;
        }
        Ok(())
    }

    fn happened(&mut self, place: usize, _: u64, scratch: &mut [u8], _: &Epoll) {
        let Some(slow) = self.clients.get_mut(place) else { return };
        let is_open = match slow.stream.read(scratch) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if !is_open {
            self.clients.remove(place);
        }
    }
}
