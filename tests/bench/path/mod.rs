//! What the request path costs: CPU of the router for each request, with restart (bodies and answers held whole) and
//! without (both streamed), in turn on one machine. What is made of the figures is `table`'s.

mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_tests::stall::StallWatch;

use crate::lab::spell::{self, Load};
use crate::lab::wire::Request;
use crate::lab::{Lab, policy};
use crate::until_signal;
use table::Row;

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 250.0;
/// Bytes of a POST's body.
const BODY: usize = 512;
const CONNECTIONS: [usize; 2] = [32, 1];

/// What the request path costs, with restart and without.
///
/// One router with one thread, one cell that answers at once, and a closed loop of requests. All rows are measured in every
/// round, one after the other, and rows are compared within their round. Exit status: 0 when it ran, whatever it found; 2
/// when a target was missed on a machine that stood still, or on which others were at work.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// How long each row is measured in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the router keeps its files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

/// One way to take requests.
pub(crate) struct Variant {
    name: &'static str,
    /// Of [`LISTENERS`].
    listener: usize,
    keyed: bool,
}

const LISTENERS: [&str; 2] = ["streaming", "restarting"];

/// The first is what the others are compared with.
static VARIANTS: [Variant; 3] = [
    Variant { name: "without restart", listener: 0, keyed: false },
    Variant { name: "with restart", listener: 1, keyed: false },
    Variant { name: "with restart and keys", listener: 1, keyed: true },
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // One thread: the cores are for the router and for the cell, and whatever else runs here takes from them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, bench(args))
}

async fn bench(args: &Args) -> Result<ExitCode> {
    let lab = Lab::start(&args.cache, &["a"], &objects(), LISTENERS, Some(1)).await?;
    let (router, next, watch) = (lab.pid()?, Arc::<AtomicU64>::default(), StallWatch::start());
    let mut rows = rows();
    for round in 0..args.rounds {
        eprintln!("round {} of {}", round + 1, args.rounds);
        for place in 0..rows.len() {
            // Nobody comes after the same one every time.
            let place = (place + round as usize) % rows.len();
            let row = &mut rows[place];
            let load = Load {
                to: lab.listeners[row.variant.listener],
                request: row.request.clone().keyed(row.variant.keyed),
                connections: row.connections,
            };
            let window = Duration::from_secs(args.seconds.into());
            let spell = spell::measure(router, load, &next, window).await;
            row.spells.push(spell.with_context(|| format!("{} {}", row.what(), row.variant.name))?);
        }
    }
    let longest_ms = watch.take_ms();
    let report = table::report(&rows, longest_ms);
    report.conclude(args.json, &table::text(&rows), NOISE_MS)
}

/// Variants of the same requests follow each other.
fn rows() -> Vec<Row> {
    let requests = [("POST 512 B", Request::post("/", BODY)), ("GET", Request::get("/"))];
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        for (name, request) in &requests {
            let row = |variant| Row::new(name, request.clone(), connections, variant);
            rows.extend(VARIANTS.iter().map(row));
        }
    }
    rows
}

fn objects() -> [(&'static str, String); 3] {
    let policy = |listener: &str, restart: &str| policy(listener, &["a"], restart);
    let [streaming, restarting] = LISTENERS;
    let router = format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  listeners:
  - {{name: {streaming}, port: 8080}}
  - {{name: {restarting}, port: 8081, idempotency: {{header: idempotency-key}}}}
"
    );
    [
        ("router", router),
        (streaming, policy(streaming, "{policy: Never, bufferLimit: \"0\", tooLarge: Stream}")),
        (restarting, policy(restarting, "{policy: UntilPointOfNoReturn}")),
    ]
}
