//! The operator's process: flags, logs, signals. All else is the library's.

use std::process::ExitCode;

use bulkhead_operator::{Args, Command, Config};
use bulkhead_process::logs;
use bulkhead_process::shutdown::Shutdown;
use clap::Parser;
use prometheus::Registry;

#[tokio::main]
async fn main() -> ExitCode {
    let Args { command, config } = Args::parse();
    let log_guard = logs::init(&config.logs);
    let ended = match command {
        Some(Command::PreDeleteCheck { force }) => bulkhead_operator::pre_delete_check(force).await,
        None => start(config, &log_guard).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the operator ends");
            ExitCode::FAILURE
        }
    }
}

async fn start(config: Config, log_guard: &logs::LogGuard) -> anyhow::Result<()> {
    let registry = Registry::new();
    log_guard.register(&registry)?;
    bulkhead_operator::run(config, registry, Shutdown::on_signals()?).await
}
