//! Measurements, one file or folder each, on a real cluster or on this machine alone; `cargo xtask bench NAME` starts
//! them. Exit status 0 when it ran, whatever it found; 2 when the machine was too noisy to tell.

#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

mod drain;
mod drill;
mod report;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

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
    }
}
