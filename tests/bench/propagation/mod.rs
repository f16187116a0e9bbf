//! Change without a ripple: how long an applied policy takes until every router decides by it, alone and while thousands of
//! rules are edited; and what traffic, connections and the API server feel of edits, additions and more routers. What is
//! made of the figures is `table`'s.

mod policies;
mod probe;
mod rows;
mod stage;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::World;
use bulkhead_tests::pods::routers;
use bulkhead_tests::stall::StallWatch;

use crate::report::Machine;
use crate::until_signal;
use rows::{Beside, Edits, Row};
use stage::Stage;

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 50.0;
/// Rules of each policy that is edited beside the watched one.
const RULES_A_POLICY: u32 = 10;
const SCALE_OUT: &str = "scale-out";
/// Policies that are added each second.
const ADDED_PER_SECOND: u32 = 50;

/// On a cluster: from an applied policy to every router deciding by it, and what traffic feels of it.
///
/// One route is turned from one cell to another and back, and every router is asked every 2 ms over a kept connection which
/// cell answers. Rows: `alone`; `churn`, while policies with 5,000 rules in all are edited 50 times a second; `additions`,
/// while 3,000 policies are added under load; `scale-out`, as routers are added under load. Times count from the API server's
/// answer. All of it shares one small machine with the cluster: the API server, etcd, two nodes and the load.
/// Exit status: 0 when it ran, whatever it found; 2 when a target was missed on a machine that stood still.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Edits of the watched route in the rows `alone` and `churn`.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    edits: u32,
    /// Rules in the row `churn`.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..=40_000))]
    rules: u32,
    /// Edits of other policies per second in the row `churn`.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    churn: u32,
    /// Policies that are added in the row `additions`.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=40_000))]
    additions: u32,
    /// Edits of the watched route in the row `additions`.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    live_edits: u32,
    /// Requests per second in the rows `additions` and `scale-out`.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Routers in the row `scale-out`.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    routers: u32,
    /// Only rows with this in their names.
    #[arg(long, value_name = "FILTER", default_value = "")]
    row: String,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (world, _turn) = World::enter();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    until_signal(&runtime, bench(args, world))
}

async fn bench(args: &Args, world: &'static World) -> Result<ExitCode> {
    let (stage, watch) = (Stage::set(world).await?, StallWatch::start());
    stage.clear().await?;
    let before = routers(world)?.len();
    let measured = measure(args, &stage).await;
    // Whatever came of it, the cluster is as it was.
    let (cleared, scaled) = (stage.clear().await, rows::scale_to(world, before));
    let rows = measured?;
    cleared.and(scaled)?;
    ensure!(!rows.is_empty(), "no row has {:?} in its name", args.row);
    let report = table::report(&rows, Machine::stalled(watch.take_ms()));
    report.conclude(args.json, &table::text(&rows), NOISE_MS)
}

async fn measure(args: &Args, stage: &Stage) -> Result<Vec<Row>> {
    let Args { edits, rules, churn, additions, live_edits, rate, .. } = *args;
    let churn = Beside::Churn { policies: rules / RULES_A_POLICY, rules: RULES_A_POLICY, per_second: churn };
    let adding = Beside::Additions { policies: additions, per_second: ADDED_PER_SECOND };
    let every = Duration::from_millis(100);
    // Spread over the time that the additions take.
    let spread = Duration::from_secs((additions / ADDED_PER_SECOND).into()) / live_edits;
    let of_edits = [
        ("alone", Edits { edits, every, beside: Beside::Nothing, rate: 0 }),
        ("churn", Edits { edits, every, beside: churn, rate: 0 }),
        ("additions", Edits { edits: live_edits, every: spread, beside: adding, rate }),
    ];
    let wanted = |name: &str| name.contains(&args.row);
    let mut rows = Vec::new();
    for (name, of) in of_edits.into_iter().filter(|(name, _)| wanted(name)) {
        eprintln!("{name}");
        rows.push(of.run(name, stage).await?);
        stage.clear().await?;
    }
    if wanted(SCALE_OUT) {
        eprintln!("{SCALE_OUT}");
        rows.push(rows::scale_out(args.routers as usize, rate, stage).await?);
    }
    Ok(rows)
}
