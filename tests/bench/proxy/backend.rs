//! The cells behind whoever is measured: each answers every request at once with the same few bytes,
//! unless it is told to hang.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use rustls::ServerConfig;

use super::connection::{Connection, Received};
use super::slab::Slab;
use super::wire::Wire;

/// Bytes that make an answer as long as most are.
const PAD: usize = 70;

pub(crate) struct Backend {
    cells: Vec<Cell>,
    connections: Slab<(Connection, usize)>,
    token: fn(usize) -> u64,
}

struct Cell {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    answer: Vec<u8>,
    /// With which it closes.
    last_answer: Vec<u8>,
    requests: u64,
    /// It takes connections and reads nothing.
    hangs: bool,
}

impl Backend {
    /// A cell for each listener, `a` and so on. The kernel names listeners and connections by what those functions make of their places.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn new(
        listeners: Vec<(TcpListener, Option<Arc<ServerConfig>>)>,
        epoll: &Epoll,
        listener_token: fn(usize) -> u64,
        token: fn(usize) -> u64,
    ) -> Result<Self> {
        let mut cells = Vec::new();
        for (place, (listener, tls)) in listeners.into_iter().enumerate() {
            listener.set_nonblocking(true)?;
            epoll
                .add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, listener_token(place)))
                .context("a cell's socket cannot be watched")?;
            let [answer, last_answer] = answers(place, PAD);
            cells.push(Cell { listener, tls, answer, last_answer, requests: 0, hangs: false });
        }
        Ok(Self { cells, connections: Slab::new(), token })
    }

    /// How many requests each cell has read.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.cells.iter().map(|cell| cell.requests).collect()
    }

    /// Has that cell take connections and read nothing from now on.
    pub(crate) fn hang(&mut self, cell: usize) {
        self.cells[cell].hangs = true;
    }

    /// Has it answer again, over new connections.
    pub(crate) fn revive(&mut self, cell: usize) {
        self.cells[cell].hangs = false;
        self.connections.retain(|(_, of)| *of != cell);
    }

    /// Has that cell answer with about so many bytes from now on.
    pub(crate) fn answer_with(&mut self, cell: usize, bytes: usize) {
        let place = &mut self.cells[cell];
        [place.answer, place.last_answer] = answers(cell, bytes);
    }

    /// Takes whoever connects to that cell.
    pub(crate) fn accept(&mut self, cell: usize, epoll: &Epoll) {
        // Whoever is gone again, as those who only look whether somebody listens, is nobody's loss.
        let Some(Cell { listener, tls, .. }) = self.cells.get(cell) else { return };
        while let Ok((stream, _)) = listener.accept() {
            let token = (self.token)(self.connections.next());
            let wire = Wire::server(stream, tls.clone());
            if let Ok(connection) = wire.and_then(|wire| Connection::new(wire, epoll, token)) {
                self.connections.insert((connection, cell));
            }
        }
    }

    /// Goes on with that connection, or ends it.
    pub(crate) fn go_on(&mut self, place: usize, scratch: &mut [u8], epoll: &Epoll) {
        let Some((connection, cell)) = self.connections.get_mut(place) else { return };
        if self.cells[*cell].hangs {
            connection.leave_alone(epoll);
            return;
        }
        if !matches!(serve(connection, &mut self.cells[*cell], scratch, epoll), Ok(true)) {
            self.connections.remove(place);
        }
    }
}

/// Whether the connection stays.
fn serve(
    connection: &mut Connection,
    cell: &mut Cell,
    scratch: &mut [u8],
    epoll: &Epoll,
) -> io::Result<bool> {
    if connection.is_sending() {
        return connection.send(&cell.answer, epoll).map(|_| true);
    }
    match connection.receive(scratch)? {
        Received::Part => Ok(true),
        Received::Closed => Ok(false),
        Received::Whole(head) => {
            cell.requests += 1;
            let answer = if head.closes { &cell.last_answer } else { &cell.answer };
            connection.send(answer, epoll)?;
            Ok(!head.closes)
        }
    }
}

/// The one after which a connection stays, and the one with which it closes.
fn answers(cell: usize, pad: usize) -> [Vec<u8>; 2] {
    ["", "connection: close\r\n"].map(|fields| answer(cell, pad, fields))
}

fn answer(cell: usize, pad: usize, fields: &str) -> Vec<u8> {
    let name = char::from(b'a' + cell as u8);
    let pad = "0123456789".repeat(pad / 10);
    let body = format!(r#"{{"cell":"{name}","result":"approved","code":"00","pad":"{pad}"}}"#);
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{fields}\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::wire::Head;

    #[test]
    fn an_answer_says_how_long_it_is_and_whether_it_is_the_last() {
        for (fields, closes) in [("", false), ("connection: close\r\n", true)] {
            let answer = answer(0, PAD, fields);
            let head = Head::read(&answer).expect("is HTTP").expect("is whole");
            assert_eq!((head.length + head.body, head.closes), (answer.len(), closes));
            assert!((110..150).contains(&head.body), "{}", head.body);
            assert!(answer[head.length..].starts_with(b"{\"cell\":\"a\""));
        }
    }
}
