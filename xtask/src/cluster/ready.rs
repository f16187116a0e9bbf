//! Whether a cluster works, asked of the cluster itself: nodes Ready, DNS rolled out, and a name resolved
//! through the Service by a query of our own.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::layout::Layout;
use super::processes::Processes;
use super::state::State;
use super::tools::Tools;
use crate::clock;
use crate::command::{command, output};

/// Waits until every node is Ready.
///
/// # Errors
/// Says what is not ready when `limit` is over, with what fallen processes said last.
pub fn wait_for_nodes(state: &State, tools: &Tools, limit: Duration) -> Result<()> {
    ask(state, tools, limit, &["wait", "--for=condition=Ready", "node", "--all"])
}

/// Waits until names resolve.
///
/// # Errors
/// As [`wait_for_nodes`].
pub fn wait_for_names(state: &State, layout: &Layout, tools: &Tools, limit: Duration) -> Result<()> {
    ask(state, tools, limit, &["--namespace=kube-system", "rollout", "status", "deployment/coredns"])?;
    wait_for_dns(layout, limit).with_context(|| unready(state))
}

fn ask(state: &State, tools: &Tools, limit: Duration, words: &[&str]) -> Result<()> {
    let mut kubectl = command(tools.program("kubectl")?, words);
    kubectl.arg(format!("--timeout={}s", limit.as_secs())).env("KUBECONFIG", state.kubeconfig());
    output(&mut kubectl).map(drop).with_context(|| unready(state))
}

fn unready(state: &State) -> String {
    format!("the cluster is not ready. {}", Processes::of(state).fallen().join("; "))
}

fn wait_for_dns(layout: &Layout, limit: Duration) -> Result<()> {
    let server = SocketAddr::from((layout.dns_service(), 53));
    let (name, expected) = ("kubernetes.default.svc.cluster.local", layout.api_service());
    let asked = || Ok(resolve(server, name).ok().flatten().filter(|address| *address == expected));
    match clock::until(limit, asked)? {
        Some(_) => Ok(()),
        None => bail!("the cluster's DNS at {server} does not resolve {name} to {expected}"),
    }
}

/// Asks a DNS server for one IPv4 address of a name.
///
/// # Errors
/// When there is no answer within a second.
pub fn resolve(server: SocketAddr, name: &str) -> Result<Option<Ipv4Addr>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect(server)?;
    socket.send(&question(name))?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(last_address(buffer.get(..length).unwrap_or_default()))
}

/// A query for the A record of a name (RFC 1035 section 4).
fn question(name: &str) -> Vec<u8> {
    let mut message = vec![0x42, 0x42, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap_or(63));
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The address at the end of an answer that has exactly one record, the only kind that is asked for here.
fn last_address(message: &[u8]) -> Option<Ipv4Addr> {
    let answers = u16::from_be_bytes([*message.get(6)?, *message.get(7)?]);
    let tail = message.last_chunk::<6>()?;
    match tail {
        [0, 4, a, b, c, d] if answers == 1 => Some(Ipv4Addr::new(*a, *b, *c, *d)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_one_address_is_read() {
        let mut answer = question("a.b");
        answer[7] = 1;
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 192, 0, 1]);
        assert_eq!(last_address(&answer), Some(Ipv4Addr::new(10, 192, 0, 1)));
        assert_eq!(last_address(&question("a.b")), None);
        assert_eq!(last_address(&[]), None);
    }

    #[test]
    fn a_question_ends_with_the_wanted_type() {
        let message = question("a.bc");
        assert_eq!(&message[12..], b"\x01a\x02bc\x00\x00\x01\x00\x01");
    }
}
