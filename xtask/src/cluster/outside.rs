//! The world beyond the cluster: answers on an address that stands for the internet and on the one where
//! clouds hand out credentials, over TCP and UDP, so that a blocked connection can be told from one to
//! nobody. It answers everybody; what may reach it is for policies to say.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::layout::{INTERNET, Layout, METADATA, Place};
use super::processes::{Process, Processes};

/// Ports on which both addresses answer HTTP.
pub const TCP_PORTS: [u16; 2] = [80, 443];
/// The port on which both addresses send a datagram back.
pub const UDP_PORT: u16 = 53;

/// Starts the responder unless it runs.
///
/// # Errors
/// When it cannot be started.
pub fn ensure(layout: &Layout, program: &Path, processes: &Processes) -> Result<()> {
    let program = program.to_string_lossy().into_owned();
    processes.ensure(&Process {
        name: "outside".to_owned(),
        namespace: layout.name.namespace(Place::Outside),
        command: vec![program, "cluster".to_owned(), "outside-server".to_owned()],
        environment: std::collections::BTreeMap::new(),
    })
}

/// Answers until the process ends. Each socket is bound to one address, so that replies come from the
/// address that was asked.
///
/// # Errors
/// When an address cannot be bound.
pub fn serve() -> Result<()> {
    let mut threads = Vec::new();
    for address in [INTERNET, METADATA].map(IpAddr::V4) {
        for port in TCP_PORTS {
            let at = SocketAddr::new(address, port);
            let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
            threads.push(std::thread::spawn(move || serve_tcp(&listener)));
        }
        let at = SocketAddr::new(address, UDP_PORT);
        let socket = UdpSocket::bind(at).with_context(|| format!("cannot listen on {at} (UDP)"))?;
        threads.push(std::thread::spawn(move || serve_udp(&socket)));
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

fn serve_tcp(listener: &TcpListener) {
    for connection in listener.incoming().flatten() {
        let _ = connection.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = connection.set_write_timeout(Some(Duration::from_secs(2)));
        answer(connection);
    }
}

fn answer(mut connection: std::net::TcpStream) {
    let mut request = [0; 2048];
    if !matches!(connection.read(&mut request), Ok(1..)) {
        return;
    }
    let body = "outside\n";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    // A client that is gone already has what it wanted to know.
    let _ = connection.write_all(format!("{head}{body}").as_bytes());
}

fn serve_udp(socket: &UdpSocket) {
    let mut datagram = [0; 2048];
    loop {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            let _ = socket.send_to(datagram.get(..length).unwrap_or_default(), from);
        }
    }
}
