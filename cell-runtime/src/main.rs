//! Starts a cell-runtime: flags, logs, signals. Everything that works is in the library.

use anyhow::Context;
use bulkhead_cell_runtime::{Args, run};
use bulkhead_process::{Shutdown, logs};
use clap::Parser;
use prometheus::Registry;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let guard = logs::init(&args.log);
    let registry = Registry::new();
    guard.register(&registry)?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
        let config = args.into_config(registry).await?;
        run(config, shutdown).await
    })
}
