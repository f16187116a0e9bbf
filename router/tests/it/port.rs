//! Ports that tests keep, so that nobody else is given one between two who listen there.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port that the system gives to nobody else while this lives. Connections to it are refused, unless somebody who
/// names it listens there, which servers may do beside this.
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    /// One that nobody had.
    pub(crate) fn free() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into()).expect("a port is free")
    }

    /// # Errors
    /// When somebody has it.
    pub(crate) fn at(address: SocketAddr) -> io::Result<Self> {
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
    pub(crate) fn next(&self) -> io::Result<Self> {
        let port = self.address.port().checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Self::at(SocketAddr::new(self.address.ip(), port))
    }
}
