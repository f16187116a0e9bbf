//! The network namespaces of pods and nodes. What is tried from inside one passes the same walls as its pod does.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use bulkhead_process::Connector;
use bulkhead_process::tunnel::{self, Answer};
use bulkhead_samples::dns::{self, Transport};
use bulkhead_samples::probe::{self, Seen};
use http::HeaderMap;
use nix::sched::{CloneFlags, setns};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use crate::pods::Pod;
use crate::world::World;

/// Neighbours answer in milliseconds, so that silence for this long is a block.
const SILENCE: Duration = Duration::from_secs(1);
/// What goes through other hands on its way is given up after this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace of this machine.
#[derive(Clone, Debug)]
pub struct Network(PathBuf);

impl Network {
    /// Where the pod's containers are.
    ///
    /// # Errors
    /// When none of them runs.
    pub fn of_pod(pod: &Pod) -> Result<Self> {
        let process = pod.processes()?[0];
        Ok(Self(format!("/proc/{process}/ns/net").into()))
    }

    /// Where the node's own processes are, counted from 1.
    pub fn of_node(world: &World, node: u8) -> Self {
        Self(format!("/run/netns/bk-{}-n{node}", world.cluster).into())
    }

    /// Moves this thread there, for good.
    ///
    /// # Errors
    /// When the namespace is gone.
    pub fn enter(&self) -> Result<()> {
        let file = File::open(&self.0).with_context(|| format!("no namespace {}", self.0.display()))?;
        setns(file, CloneFlags::CLONE_NEWNET).context("the thread cannot enter it")
    }

    /// Does the work there, on a thread of its own.
    ///
    /// # Errors
    /// When the namespace is gone, or the work fails.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().and_then(|()| work()));
            thread.join().map_err(|_| anyhow!("the work inside {} panicked", self.0.display()))?
        })
    }

    /// Connects from there.
    ///
    /// # Errors
    /// Why it could not.
    pub fn tcp(&self, to: SocketAddr) -> Result<()> {
        self.tries(probe::tcp(to, SILENCE))
    }

    /// Sends datagrams from there until one comes back.
    ///
    /// # Errors
    /// When none does.
    pub fn udp(&self, to: SocketAddr) -> Result<()> {
        self.tries(probe::udp(to, SILENCE))
    }

    /// Asks a DNS server from there.
    ///
    /// # Errors
    /// When it gives no address.
    pub fn resolve(&self, server: SocketAddr, name: &str, transport: Transport) -> Result<Ipv4Addr> {
        self.inside(|| runtime()?.block_on(dns::resolve(server, name, transport, SILENCE)))
    }

    /// Asks the proxy for a tunnel from there, as a client with HTTPS_PROXY does: status and words of its refusal, or 200 and
    /// what came back through the tunnel for `words`.
    ///
    /// # Errors
    /// When there is no answer, or the tunnel breaks.
    pub fn tunnel(&self, proxy: SocketAddr, target: &str, words: &str) -> Result<(u16, String)> {
        let said = async { tokio::time::timeout(PATIENCE, through(proxy, target, words)).await };
        self.inside(|| runtime()?.block_on(said).with_context(|| format!("{proxy} is silent"))?)
    }

    /// Sends back every datagram that reaches this port there, until the test ends.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn echo(&self, port: u16) -> Result<()> {
        let socket = self.inside(|| Ok(UdpSocket::bind(("0.0.0.0", port))?))?;
        std::thread::spawn(move || {
            let mut buffer = [0; 1_024];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
        Ok(())
    }

    fn tries(&self, attempt: impl Future<Output = Seen> + Send) -> Result<()> {
        self.inside(|| runtime()?.block_on(attempt).map(drop).map_err(|why| anyhow!(why)))
    }
}

async fn through(proxy: SocketAddr, target: &str, words: &str) -> Result<(u16, String)> {
    let connection = Connector::plain().connect(proxy, SILENCE).await.with_context(|| proxy.to_string())?;
    let mut stream = match tunnel::ask(connection, target, HeaderMap::new()).await? {
        Answer::Open(stream) => stream,
        Answer::Refused(refusal) => return Ok((refusal.status().as_u16(), refusal.into_body())),
    };
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await?;
    Ok((200, heard))
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")
}
