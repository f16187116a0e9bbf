//! The orchestrator of a cell: fronts its services, watches their readiness, and tells every router whether the cell
//! is ready. It knows nothing of other cells, and never talks to the operator.

mod accept;
mod age;
mod args;
mod body;
mod call;
mod cell;
pub mod config;
mod connect;
mod control;
mod discovery;
mod entry;
mod fields;
mod health;
mod limits;
mod metrics;
mod peers;
mod probe;
mod refusal;
mod request;
mod sender;
mod service;
mod speaker;
mod traffic;
pub mod verdict;
mod workflow;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context;
use bulkhead_process::{Admin, Readiness, Shutdown};
use tokio::task::JoinSet;

pub use args::Args;
pub use config::{CellConfig, Config, Discovery};

use crate::cell::Cell;
use crate::connect::Proxy;
use crate::control::Control;
use crate::metrics::Metrics;
use crate::workflow::Workflow;

/// Runs until the shutdown and its drain are over.
///
/// # Errors
/// When the configuration cannot be run, or an address cannot be listened on.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    Bound::bind(config).await?.run(shutdown).await
}

/// A cell-runtime that listens but does not answer yet.
pub struct Bound {
    config: Config,
    workflow: Workflow,
    traffic: TcpListener,
    health: TcpListener,
    admin: Option<TcpListener>,
    connect: Option<TcpListener>,
    addresses: Addresses,
}

/// Where a cell-runtime listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub traffic: SocketAddr,
    pub health: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Where services ask for tunnels.
    pub connect: Option<SocketAddr>,
}

impl Bound {
    /// Opens the sockets, so that port 0 becomes known.
    ///
    /// # Errors
    /// When the configuration cannot be run, or an address cannot be listened on.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let workflow = config.cell.validate()?;
        let (traffic, health) = listen_pair(config.listen, config.health_listen)?;
        let admin = match config.admin_listen {
            Some(address) => Some(listen(address)?),
            None => None,
        };
        let connect = config.cell.connect.as_ref().map(|connect| listen(connect.listen)).transpose()?;
        let addresses = Addresses {
            traffic: traffic.local_addr()?,
            health: health.local_addr()?,
            admin: admin.as_ref().map(TcpListener::local_addr).transpose()?,
            connect: connect.as_ref().map(TcpListener::local_addr).transpose()?,
        };
        Ok(Self { config, workflow, traffic, health, admin, connect, addresses })
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Runs until the shutdown and its drain are over.
    ///
    /// # Errors
    /// When the registry has these metrics already.
    pub async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let Config { cell, pod, discovery, body_limit, drain_timeout, probe_timeout, registry, .. } =
            self.config;
        let metrics = Metrics::new(&registry)?;
        let Addresses { traffic, health, .. } = self.addresses;
        tracing::info!(cell = cell.cell, revision = cell.revision, pod, %traffic, %health, "serving");
        let cell = Arc::new(Cell::new(cell, self.workflow, pod, body_limit, probe_timeout, metrics));
        let readiness = Readiness::new();
        let gate = readiness.gate("traffic");
        let traffic = tokio::net::TcpListener::from_std(self.traffic)?;
        let admin = Admin { registry, readiness, ..Admin::default() };
        let control = Control {
            cell: Arc::clone(&cell),
            discovery,
            health: self.health,
            admin: self.admin.map(|listener| (listener, admin)),
        }
        .start()?;
        gate.open();
        let mut tunnels = JoinSet::new();
        if let (Some(listener), Some(connect)) = (self.connect, &cell.config.connect) {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let proxy = Proxy::new(&cell.config.cell, connect.routers.clone())?;
            tunnels.spawn(proxy.serve(listener));
        }
        let served = traffic::serve(traffic, cell, shutdown.clone(), drain_timeout);
        let closed = async {
            shutdown.requested().await;
            gate.close("draining");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = served => {}
            () = closed => {}
        }
        control.stop().await;
        Ok(())
    }
}

fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Traffic, and health on the port after it unless told otherwise. Port 0 takes two free ports in a row.
fn listen_pair(
    traffic: SocketAddr,
    health: Option<SocketAddr>,
) -> anyhow::Result<(TcpListener, TcpListener)> {
    if let Some(health) = health {
        return Ok((listen(traffic)?, listen(health)?));
    }
    let tries = if traffic.port() == 0 { 100 } else { 1 };
    let mut last = anyhow::anyhow!("no port after {traffic} for health");
    for _ in 0..tries {
        let first = listen(traffic)?;
        let mut next = first.local_addr()?;
        let Some(port) = next.port().checked_add(1) else { continue };
        next.set_port(port);
        match listen(next) {
            Ok(second) => return Ok((first, second)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
