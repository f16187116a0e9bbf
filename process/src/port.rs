//! Ports that are kept for somebody who listens later, or for nobody at all.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// How many ports are tried for one whose successor is free too.
const TRIES: usize = 100;

/// A port that the system gives to nobody else while this lives. Connections to it are refused, unless somebody who
/// names it listens there, which servers may do beside this.
#[derive(Debug)]
pub struct Port {
    pub address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    /// One of loopback that nobody had.
    ///
    /// # Errors
    /// When none is free.
    pub fn free() -> io::Result<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// One of loopback and the one after: a cell-runtime's health stream is one above its traffic.
    ///
    /// # Errors
    /// When no two in a row are free.
    pub fn free_pair() -> io::Result<[Self; 2]> {
        for _ in 0..TRIES {
            let first = Self::free()?;
            if let Ok(second) = first.next() {
                return Ok([first, second]);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no two free ports in a row"))
    }

    /// That one.
    ///
    /// # Errors
    /// When somebody has it.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let bound = TcpSocket::new_v4()?;
        bound.bind(address)?;
        // Only now: two who say so and do not listen would be let in at the same port.
        bound.set_reuseaddr(true)?;
        Ok(Self { address: bound.local_addr()?, _bound: bound })
    }

    /// The one after.
    ///
    /// # Errors
    /// When somebody has it, or there is none.
    pub fn next(&self) -> io::Result<Self> {
        let port = self.address.port().checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Self::at(SocketAddr::new(self.address.ip(), port))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_kept_port_is_nobody_elses_and_takes_connections_once_somebody_listens() {
        let kept = Port::free().expect("one is free");
        assert!(Port::at(kept.address).is_err(), "it is kept");
        let refused = TcpStream::connect(kept.address).await.expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = TcpListener::bind(kept.address).await.expect("a server may listen");
        TcpStream::connect(kept.address).await.expect("and is reached");
    }
}
