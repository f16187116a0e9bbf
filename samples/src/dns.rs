//! A DNS query of our own, for one IPv4 address of one name: probes run in images without a resolver, and must say
//! which server answered. No cache, no search domains, no IPv6.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;

/// How the question travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// The first IPv4 address of `name`.
///
/// # Errors
/// When the server does not answer in time, or has no such address.
pub async fn resolve(
    server: SocketAddr,
    name: &str,
    transport: Transport,
    timeout: Duration,
) -> anyhow::Result<Ipv4Addr> {
    let question = encode(ID, name)?;
    let asked = async {
        match transport {
            Transport::Udp => ask_udp(server, &question).await,
            Transport::Tcp => ask_tcp(server, &question).await,
        }
    };
    let answer = tokio::time::timeout(timeout, asked)
        .await
        .with_context(|| format!("no answer from DNS server {server} within {timeout:?}"))?
        .with_context(|| format!("DNS server {server}"))?;
    decode(ID, &answer).with_context(|| format!("{name} at DNS server {server}"))
}

/// Each query has a socket of its own, so that an id need not tell them apart.
const ID: u16 = 0xb01c;

async fn ask_udp(server: SocketAddr, question: &[u8]) -> anyhow::Result<Vec<u8>> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).await?;
    socket.connect(server).await?;
    let mut buffer = vec![0; 4096];
    loop {
        socket.send(question).await?;
        // Datagrams get lost; whoever called bounds the whole.
        if let Ok(length) = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await {
            buffer.truncate(length?);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(server: SocketAddr, question: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(question.len())?).await?;
    stream.write_all(question).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// A recursive query for an A record (RFC 1035, section 4).
fn encode(id: u16, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut message = Vec::with_capacity(HEADER + name.len() + 6);
    for word in [id, 0x0100, 1, 0, 0, 0] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    for label in name.trim_end_matches('.').split('.') {
        ensure!((1..=63).contains(&label.len()), "{name:?} is not a DNS name");
        message.push(u8::try_from(label.len())?);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&TYPE_A.to_be_bytes());
    message.extend_from_slice(&CLASS_IN.to_be_bytes());
    Ok(message)
}

fn decode(id: u16, message: &[u8]) -> anyhow::Result<Ipv4Addr> {
    ensure!(word(message, 0)? == id, "the answer is to another question");
    let code = word(message, 2)? & 0x000f;
    match code {
        0 => {}
        3 => bail!("no such name"),
        code => bail!("the server refused with code {code}"),
    }
    let mut at = HEADER;
    for _ in 0..word(message, 4)? {
        at = after_name(message, at)? + 4;
    }
    for _ in 0..word(message, 6)? {
        at = after_name(message, at)?;
        let (kind, length) = (word(message, at)?, usize::from(word(message, at + 8)?));
        let data = message.get(at + 10..at + 10 + length).context("the answer is cut short")?;
        if let (TYPE_A, &[a, b, c, d]) = (kind, data) {
            return Ok(Ipv4Addr::new(a, b, c, d));
        }
        at += 10 + length;
    }
    bail!("no IPv4 address")
}

fn word(message: &[u8], at: usize) -> anyhow::Result<u16> {
    let bytes = message.get(at..at + 2).context("the answer is cut short")?;
    Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Where a possibly compressed name that begins at `at` ends.
fn after_name(message: &[u8], mut at: usize) -> anyhow::Result<usize> {
    loop {
        match *message.get(at).context("the answer is cut short")? {
            0 => return Ok(at + 1),
            length if length & 0xc0 == 0xc0 => return Ok(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to `name` with a CNAME before the address, names compressed.
    fn answered(name: &str, address: [u8; 4]) -> Vec<u8> {
        let mut message = encode(7, name).expect("a name");
        message[2..4].copy_from_slice(&[0x81, 0x80]);
        message[7] = 2;
        message.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 9, 0, 2, 0xc0, 12]);
        message.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        message.extend_from_slice(&address);
        message
    }

    #[test]
    fn reads_the_address_behind_an_alias() {
        let message = answered("a.svc.cluster.local.", [10, 0, 0, 7]);
        assert_eq!(decode(7, &message).expect("an address"), Ipv4Addr::new(10, 0, 0, 7));
    }

    #[test]
    fn every_cut_of_an_answer_is_an_error() {
        let message = answered("a.svc", [10, 0, 0, 7]);
        for length in 0..message.len() {
            assert!(decode(7, &message[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn refusals_and_strangers_are_errors() {
        let mut message = answered("a.svc", [10, 0, 0, 7]);
        assert!(decode(8, &message).is_err());
        message[3] = 0x83;
        assert_eq!(decode(7, &message).expect_err("no such name").to_string(), "no such name");
        assert!(encode(7, "a..b").is_err());
    }
}
