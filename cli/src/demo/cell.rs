//! One cell of the demo, in a process of its own: the sample service, and a cell-runtime in front of it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use bulkhead_cell_runtime::config::{
    CellConfig, Config, DEFAULT_BODY_LIMIT, DEFAULT_PROBE_TIMEOUT, Discovery,
};
use bulkhead_crds::template::{Entry, Service};
use bulkhead_process::{LogArgs, Shutdown, logs};
use bulkhead_samples::workload::{self, Workload};
use clap::Args;
use prometheus::Registry;
use tokio::net::TcpListener;

/// What the demo's one service is called.
const SERVICE: &str = "payments";

#[derive(Args)]
pub(crate) struct CellArgs {
    #[arg(long)]
    cell: String,
    /// Where the router sends transactions; health is on the port after it.
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    log: LogArgs,
}

/// Runs until it is told to stop.
///
/// # Errors
/// When it cannot listen.
pub(crate) async fn run(arguments: CellArgs) -> Result<()> {
    let _log = logs::init(&arguments.log);
    let shutdown = Shutdown::on_signals()?;
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the service finds no port")?;
    let address = service.local_addr()?;
    let sample = workload::Config {
        name: SERVICE.to_owned(),
        cell: arguments.cell.clone(),
        pod: arguments.cell.clone(),
        ..workload::Config::default()
    };
    tokio::spawn(Workload::new(sample).serve(service, shutdown.clone()));
    bulkhead_cell_runtime::run(config(&arguments, address), shutdown).await
}

fn config(arguments: &CellArgs, service: SocketAddr) -> Config {
    let watched = Service {
        name: SERVICE.to_owned(),
        port: service.port(),
        readiness_path: "/readyz".to_owned(),
        min_ready: 1,
        required: true,
    };
    Config {
        cell: CellConfig {
            cell: arguments.cell.clone(),
            revision: "demo".to_owned(),
            services: vec![watched],
            entry: Some(Entry { service: SERVICE.to_owned(), ..Entry::default() }),
            ..CellConfig::default()
        },
        pod: arguments.cell.clone(),
        listen: arguments.listen,
        health_listen: None,
        admin_listen: None,
        discovery: Discovery::Fixed {
            services: BTreeMap::from([(SERVICE.to_owned(), vec![service])]),
            peers: Vec::new(),
        },
        body_limit: DEFAULT_BODY_LIMIT,
        drain_timeout: std::time::Duration::from_secs(1),
        probe_timeout: DEFAULT_PROBE_TIMEOUT,
        registry: Registry::new(),
    }
}
