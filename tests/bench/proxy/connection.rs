//! One connection of either end, on which messages follow each other: what of one is sent and what has come, without
//! waiting for any of it.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::wire::Wire;
use crate::lab::wire::Head;

pub(crate) struct Connection {
    wire: Wire,
    /// What the kernel names it in its events.
    token: u64,
    incoming: Incoming,
    /// Bytes of the message under way that are sent.
    sent: usize,
    /// Whether it is to be told when there is room to send again.
    watches_room: bool,
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Whole(Head),
    Part,
    Closed,
}

impl Connection {
    /// Has the kernel say when something comes.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn new(wire: Wire, epoll: &Epoll, token: u64) -> io::Result<Self> {
        let socket = wire.socket();
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(Self { wire, token, incoming: Incoming::default(), sent: 0, watches_room: false })
    }

    /// Whether a message is only partly sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.watches_room
    }

    /// Sends the message, or goes on with it where there was no room before. Whether all of it is sent: if not, this is
    /// for when the kernel says that there is room.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn send(&mut self, message: &[u8], epoll: &Epoll) -> io::Result<bool> {
        while self.sent < message.len() {
            match self.wire.write(&message[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => {
                    self.watch_room(true, epoll)?;
                    return Ok(false);
                }
                Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
                Err(broken) => return Err(broken),
            }
        }
        self.sent = 0;
        self.watch_room(false, epoll)?;
        Ok(true)
    }

    /// How much of the message under way is sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    /// Reads once: what is left, the kernel says again.
    ///
    /// # Errors
    /// What the kernel said, or `InvalidData` where what came is no message.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> io::Result<Received> {
        match self.wire.read(scratch) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => Ok(self.incoming.take(&scratch[..count])?.map_or(Received::Part, Received::Whole)),
            Err(none) if matches!(none.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Received::Part)
            }
            Err(broken) => Err(broken),
        }
    }

    /// Has the kernel say no more of it: whatever comes stays where it is.
    pub(crate) fn leave_alone(&self, epoll: &Epoll) {
        // Of what it does not watch it says nothing anyway.
        let _ = epoll.delete(self.wire.socket());
    }

    fn watch_room(&mut self, watches: bool, epoll: &Epoll) -> io::Result<()> {
        if watches != self.watches_room {
            let room = if watches { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, self.token);
            epoll.modify(self.wire.socket().as_fd(), &mut event)?;
            self.watches_room = watches;
        }
        Ok(())
    }
}

/// How much of a message has come. Bodies are counted and not kept.
#[derive(Debug, Default)]
struct Incoming {
    /// Of a head that is not whole yet.
    early: Vec<u8>,
    /// Of a message whose head is whole, and how many bytes of its body are to come.
    head: Option<(Head, usize)>,
}

impl Incoming {
    /// The head of the message that is whole with these bytes.
    fn take(&mut self, bytes: &[u8]) -> io::Result<Option<Head>> {
        let (head, missing, more) = if let Some((head, missing)) = self.head {
            (head, missing, bytes.len())
        } else if self.early.is_empty() {
            let Some(head) = Head::read(bytes)? else {
                self.early.extend_from_slice(bytes);
                return Ok(None);
            };
            (head, head.body, bytes.len() - head.length)
        } else {
            self.early.extend_from_slice(bytes);
            let Some(head) = Head::read(&self.early)? else { return Ok(None) };
            let more = self.early.len() - head.length;
            self.early.clear();
            (head, head.body, more)
        };
        let missing = missing.checked_sub(more).ok_or(io::ErrorKind::InvalidData)?;
        self.head = (missing > 0).then_some((head, missing));
        Ok((missing == 0).then_some(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_with_its_last_byte_in_whatever_pieces_it_comes() {
        let message = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none";
        for length in 1..=message.len() {
            let (mut incoming, mut whole) = (Incoming::default(), 0);
            for piece in [&message[..], &message[..]].iter().flat_map(|message| message.chunks(length)) {
                let head = incoming.take(piece).expect("is a message");
                assert!(head.is_none_or(|head| head.status == Some(200) && head.body == 3));
                whole += usize::from(head.is_some());
            }
            assert_eq!(whole, 2, "in pieces of {length}");
        }
    }

    #[test]
    fn nobody_sends_more_than_one_message_at_once() {
        let mut incoming = Incoming::default();
        let wrong =
            incoming.take(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\noneHTTP").expect_err("too much");
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidData);
    }
}
