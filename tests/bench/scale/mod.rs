//! What becomes of a router as rules and cells become many: CPU for each request, memory, tables made and swapped beside
//! requests, and the health streams of many cells to many routers. What is made of the figures is `table`'s.

mod cells;
mod fleet;
mod objects;
mod table;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_tests::stall::StallWatch;

use crate::lab::kernel::allow_files;
use crate::process::stay_on;
use crate::proxy::LOAD_CORE;
use crate::report::Machine;
use crate::until_signal;
use cells::Cells;
use objects::Size;
use table::Found;
use tables::{Effort, Subject};

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 250.0;
/// Files that this process has open at most: ten routers hear a thousand cells.
const FILES: u64 = 20_000;

/// What the others are compared with.
const SMALL: Size = Size { rules: 10, cells: 10 };
/// The last is the one that is promised to cost no more.
const SIZES: [Size; 5] = [
    Size { rules: 100, cells: 10 },
    Size { rules: 10, cells: 1_000 },
    Size { rules: 5_000, cells: 100 },
    Size { rules: 40_000, cells: 10 },
    Size { rules: 40_000, cells: 1_000 },
];
const CELLS: [usize; 3] = [10, 100, 1_000];
const ROUTERS: [usize; 2] = [2, 10];

/// What a router costs with up to 40,000 rules and 1,000 cells, and the health streams of as many cells to ten routers.
///
/// Routers have core 0 to themselves, and clients and cells share core 1. In every round, requests to a router with many
/// rules and cells and to one with ten of each are measured one after the other and compared within the round; then
/// requests at a constant rate, at rest and while one policy of the folder is edited again and again. At last 2 and 10
/// routers hear 10, 100 and 1,000 cells, whose health streams all end at once. Exit status: 0 when it ran, whatever it
/// found; 2 when a target was missed on a machine that stood still, or on which others were at work.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// How long each router is measured in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Only rows with this in their names, as `40000 rules`, `1000 cells` or `10 routers`.
    #[arg(long, value_name = "FILTER", default_value = "")]
    row: String,
    /// Requests per second while tables are swapped.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where routers keep their files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before there are other threads: they run where this one does.
    stay_on(LOAD_CORE).context("this bench needs two cores")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, bench(args))
}

async fn bench(args: &Args) -> Result<ExitCode> {
    allow_files(FILES)?;
    std::fs::create_dir_all(&args.cache)
        .with_context(|| format!("{} cannot be made", args.cache.display()))?;
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(&args.cache)?;
    let most = CELLS.into_iter().max().unwrap_or_default();
    let (mut cells, watch) = (Cells::start(most)?, StallWatch::start());
    let window = Duration::from_secs(args.seconds.into());
    let effort = Effort { rounds: args.rounds, window, per_second: args.rate };
    let mut found = Found::default();
    let small = Subject::start(SMALL, &cells, 0, folder.path()).await?;
    for size in SIZES.into_iter().filter(|size| size.text().contains(&args.row)) {
        let subject = Subject::start(size, &cells, SMALL.cells, folder.path()).await?;
        found.sizes.push(subject.measure(&small, &cells, effort).await?);
        cells.streams.opened(SMALL.cells).await?;
    }
    drop(small);
    cells.streams.opened(0).await?;
    for routers in ROUTERS {
        for count in CELLS.into_iter().filter(|count| fleet::text(routers, *count).contains(&args.row)) {
            found.fleets.push(fleet::hear(routers, &mut cells, count, window, folder.path()).await?);
            cells.streams.opened(0).await?;
        }
    }
    let report = table::report(&found, Machine::stalled(watch.take_ms()));
    report.conclude(args.json, &table::text(&found), NOISE_MS)
}
