//! What the ledger does per second on a disk, beside what that disk does alone: `cargo run --release -p bulkhead-ledger
//! --example bench`. Both are measured in turn, in the same folder, so that a slow minute of the machine meets both.

#![expect(clippy::print_stdout, reason = "a bench answers on its standard output")]

mod disk;
mod load;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;

/// Intents through the ledger, and the disk's own write and sync beside them.
#[derive(Parser)]
struct Args {
    /// A folder on the disk to measure. Default: the user's cache folder, which is rarely in memory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Tasks that intend and end effects at once; each count is measured by itself.
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    tasks: Vec<u32>,
    /// Seconds for each count in each round.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Times that all of it is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let parent = args.dir.clone().map_or_else(cache_folder, Ok)?;
    std::fs::create_dir_all(&parent).with_context(|| format!("{} cannot be made", parent.display()))?;
    let folder = tempfile::Builder::new().prefix("ledger-bench-").tempdir_in(&parent)?;
    let mut report = report::Report::new(&args.tasks);
    for round in 0..args.rounds {
        report.disk.extend(disk::write_and_sync(&folder.path().join(format!("alone-{round}")))?);
        for tasks in &args.tasks {
            let dir = folder.path().join(format!("ledger-{round}-{tasks}"));
            let measured = load::run(&dir, *tasks, Duration::from_secs(args.seconds))?;
            report.add(*tasks, measured);
            std::fs::remove_dir_all(&dir)?;
        }
    }
    report.memory = load::bytes_in_memory()?;
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

fn cache_folder() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set; name a folder by --dir")?.join("bulkhead"))
}
