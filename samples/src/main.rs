//! The flags of `bulkhead-samples`, and what it prints. Everything that works is in the library.

#![allow(clippy::print_stdout, reason = "what probes and load find is this program's output")]

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context;
use bulkhead_process::{LogArgs, Shutdown, logs};
use bulkhead_samples::direct_cell;
use bulkhead_samples::issuer::{self, Issuer};
use bulkhead_samples::load::{self, LoadArgs};
use bulkhead_samples::probe::{self, ProbeArgs};
use bulkhead_samples::workload::{Config, Workload};
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;

/// Sample services, an issuer, a load generator and wall probes.
#[derive(Parser)]
#[command(name = "bulkhead-samples", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Subcommand)]
enum Command {
    /// A service that answers any path with JSON about the request, or does a step of a payment.
    Workload(WorkloadArgs),
    /// A destination that counts what it executes and can be slow, silent, closing or gone.
    Issuer(IssuerArgs),
    /// A cell that calls the issuer itself, for proxies that know no destinations.
    DirectCell(DirectCellArgs),
    /// Tries whether something can be reached; prints OPEN or BLOCKED and exits with 0 or 1, or 2 if it cannot try.
    Probe(ProbeArgs),
    /// Sends requests at a constant rate, whatever becomes of them.
    Load(LoadArgs),
}

#[derive(Args)]
struct WorkloadArgs {
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    config: Config,
}

#[derive(Args)]
struct IssuerArgs {
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Where behaviour and counts are read and changed: `PUT /control`, `GET` and `DELETE /stats`, `GET /executions`.
    #[arg(long, default_value = "127.0.0.1:8081")]
    control: SocketAddr,
    #[command(flatten)]
    config: issuer::Config,
}

#[derive(Args)]
struct DirectCellArgs {
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    config: direct_cell::Config,
}

/// What could not be tried at all. 1 is for what was tried and failed.
const NOT_TRIED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _log = logs::init(&arguments.log);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(arguments.command)));
    ended.unwrap_or_else(|error| {
        eprintln!("bulkhead-samples: {error:#}");
        ExitCode::from(NOT_TRIED)
    })
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Workload(arguments) => {
            let shutdown = Shutdown::on_signals()?;
            let listener = listen(arguments.listen).await?;
            tracing::info!(address = %listener.local_addr()?, name = arguments.config.name, "serving");
            Workload::new(arguments.config).serve(listener, shutdown).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Issuer(arguments) => {
            let shutdown = Shutdown::on_signals()?;
            let control = listen(arguments.control).await?;
            tracing::info!(address = %arguments.listen, name = arguments.config.name, "answering");
            let issuer = Issuer::new(arguments.config);
            tokio::try_join!(
                issuer.clone().serve(arguments.listen, shutdown.clone()),
                issuer.serve_control(control, shutdown),
            )
            .with_context(|| format!("cannot serve {}", arguments.listen))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::DirectCell(arguments) => {
            let shutdown = Shutdown::on_signals()?;
            let listener = listen(arguments.listen).await?;
            direct_cell::serve(arguments.config, listener, shutdown).await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Probe(arguments) => match probe::run(arguments).await? {
            Ok(seen) => {
                println!("OPEN {seen}");
                Ok(ExitCode::SUCCESS)
            }
            Err(reason) => {
                println!("BLOCKED {reason}");
                Ok(ExitCode::FAILURE)
            }
        },
        Command::Load(arguments) => {
            let (json, plan) = (arguments.json, arguments.plan()?);
            let report = load::run(plan, Shutdown::on_signals()?).await;
            if json {
                println!("{}", serde_json::to_string(&report)?);
            } else {
                print!("{report}");
            }
            Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}
