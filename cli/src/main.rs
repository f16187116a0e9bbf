//! `bulkhead`: what a person starts by hand. Each part that it starts or asks is a library of its own.

#![expect(clippy::print_stdout, reason = "a command line answers on its standard output")]

mod demo;
mod ledger;
#[cfg(test)]
mod reference;

use std::process::ExitCode;

use anyhow::Result;
use bulkhead_process::{LogArgs, Shutdown, logs};
use clap::{Parser, Subcommand};

/// Cell-based architecture: full copies of your system behind a thin router.
#[derive(Parser)]
#[command(name = "bulkhead", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Three cells, a router and a little load on this machine, with a live table. No cluster needed.
    Demo(demo::DemoArgs),
    /// A router, as in the image; with `--source DIR` it needs no Kubernetes.
    Router {
        #[command(flatten)]
        config: Box<bulkhead_router::Config>,
        #[command(flatten)]
        logs: LogArgs,
    },
    /// What routers sent out of the cells, and what became of it. Settles by hand what no router can know.
    Ledger(ledger::LedgerArgs),
    /// One cell of the demo: a sample service and the orchestrator in front of it.
    #[command(hide = true)]
    DemoCell(demo::CellArgs),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(command))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How it went, for whoever started it.
async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(arguments) => demo::run(arguments).await.map(succeeded_if),
        Command::DemoCell(arguments) => demo::run_cell(arguments).await.map(|()| ExitCode::SUCCESS),
        Command::Ledger(arguments) => Ok(ledger::run(arguments).await),
        Command::Router { config, logs } => {
            let guard = logs::init(&logs);
            guard.register(&config.registry)?;
            bulkhead_router::run(*config, Shutdown::on_signals()?).await.map(|()| ExitCode::SUCCESS)
        }
    }
}

/// Failure when it ran and found something wrong.
fn succeeded_if(all_was_well: bool) -> ExitCode {
    if all_was_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
