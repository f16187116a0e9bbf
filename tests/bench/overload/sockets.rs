//! Sockets of cells and of clients.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Connections that may wait to be taken by a cell.
const BACKLOG: i32 = 4_096;

/// Beside whoever keeps the port.
///
/// # Errors
/// What the kernel said.
pub(super) fn listening(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// How long a connection may take. On one machine it is there at once, unless the kernel lost something on the way: then it
/// would hold up everybody else for a second.
const AT_MOST: Duration = Duration::from_millis(20);

/// A connection whose client takes in about so many bytes before it has read any. Where it comes from is the kernel's
/// choice: one source address has ports for all of them, and a search for a free one takes long where it is bound first.
///
/// # Errors
/// What the kernel said; `WouldBlock` or `TimedOut` where it takes longer than it should.
pub(super) fn connected(to: SocketAddr, takes: Option<usize>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(takes) = takes {
        socket.set_recv_buffer_size(takes)?;
    }
    socket.set_write_timeout(Some(AT_MOST))?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}
