//! Measurements on a real cluster; `cargo xtask bench NAME` starts them. Exit status 0 when it ran, whatever it found;
//! 2 when the machine was too noisy to tell.

#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

mod drain;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measurements on a real cluster.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Weight 0 under load: from the patch to the last new request.
    Drain(drain::Args),
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().bench {
        Bench::Drain(args) => drain::run(&args),
    }
}
