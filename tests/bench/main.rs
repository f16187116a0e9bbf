//! Measurements, one file or folder each, on a real cluster or on this machine alone; `cargo xtask bench NAME` starts
//! them. Exit status 0 when it ran, whatever it found; 2 when the machine was too noisy to tell. What is counted and not
//! timed can be told on any machine: there a miss is 1.

#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

mod columns;
mod drain;
mod drill;
mod instructions;
mod lab;
mod member;
mod memory;
mod overload;
mod path;
mod peers;
mod process;
mod propagation;
mod proxy;
mod report;
mod restart;
mod router;
mod scale;

use std::process::ExitCode;

use anyhow::{Result, bail};
use bulkhead_process::Shutdown;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

/// Measurements, on a real cluster or on this machine alone.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// On a cluster: weight 0 under load, from the patch to the last new request.
    Drain(drain::Args),
    Drill(drill::Args),
    Path(path::Args),
    Propagation(propagation::Args),
    Proxy(proxy::Args),
    Memory(memory::Args),
    Overload(overload::Args),
    Restart(restart::Args),
    Instructions(instructions::Args),
    Scale(scale::Args),
}

fn main() -> Result<ExitCode> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(wrong) => {
            wrong.print()?;
            // Clap's own status for wrong arguments would say that the machine was too noisy.
            return Ok(if wrong.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    match arguments.bench {
        Bench::Drain(args) => drain::run(&args),
        Bench::Drill(args) => drill::run(&args),
        Bench::Path(args) => path::run(&args),
        Bench::Propagation(args) => propagation::run(&args),
        Bench::Proxy(args) => proxy::run(&args),
        Bench::Memory(args) => memory::run(&args),
        Bench::Overload(args) => overload::run(&args),
        Bench::Restart(args) => restart::run(&args),
        Bench::Instructions(args) => instructions::run(&args),
        Bench::Scale(args) => scale::run(&args),
    }
}

/// Runs a bench to its end, or until somebody asks it to stop, and takes away what it started either way.
fn until_signal(runtime: &Runtime, bench: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    runtime.block_on(async {
        let interrupted = Shutdown::on_signals()?;
        tokio::select! {
            code = bench => code,
            () = interrupted.requested() => bail!("interrupted"),
        }
    })
}
