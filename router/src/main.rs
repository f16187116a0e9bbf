//! The router's binary: flags, logs, signals. Everything else is in the library.

use bulkhead_process::{LogArgs, Shutdown, logs};
use bulkhead_router::{Config, run};
use clap::Parser;

/// Whichever thread frees memory, it goes to whoever needs some next: with glibc's it grew by each wave of large bodies.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Routes transactions to cells.
#[derive(Parser)]
#[command(name = "bulkhead-router", version)]
struct Cli {
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    logs: LogArgs,
}

fn main() -> anyhow::Result<()> {
    // Huge pages make 16 MB of the few that a router needs. The allocator asks for none (its feature `no_thp`); this is for
    // machines that give them unasked. Where it cannot be had, so be it.
    let _ = nix::sys::prctl::set_thp_disable(true);
    let Cli { config, logs } = Cli::parse();
    let guard = logs::init(&logs);
    guard.register(&config.registry)?;
    // This thread only waits; the work is done on threads of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = Shutdown::on_signals()?;
        run(config, shutdown).await
    })
}
