//! What a router does with more than it may hold: so many transactions at once that their bodies are several times
//! `limits.bufferTotal`, in cells that hang until all of them are there. What is made of the figures is `table`'s.

mod round;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::stall::StallWatch;

use crate::lab::client::Client;
use crate::lab::kernel::allow_files;
use crate::lab::wire::Request;
use crate::lab::{Lab, policy};
use crate::until_signal;

/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 1_000.0;
/// What bodies may take in all, in MiB.
const TOTAL_MIB: u64 = 256;
/// Files that this process or the router has open beside its connections, at most.
const OTHER_FILES: u64 = 1_000;
const LISTENER: &str = "http";

/// The router's memory under more transactions than it may hold.
///
/// All transactions are sent at once, to cells that hang. What fits into 256 MiB is held, the rest has to be refused with
/// 503 while the cells hang; then they answer. The router's memory is compared with what it is when as many transactions
/// with bodies of a byte are held, over connections that have all had a whole body before: what connections keep, they keep
/// whatever is held. Exit status: 0 when it ran, whatever it found; 2 when a target was missed on a machine that stood still.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sent at once, each over a connection of its own.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=28_000))]
    transactions: u64,
    /// KiB of each one's body.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    kib: u64,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the router keeps its files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

impl Args {
    /// How many transactions the router may hold.
    fn fitting(&self) -> u64 {
        (TOTAL_MIB * 1_024 / self.kib).min(self.transactions)
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, bench(args))
}

async fn bench(args: &Args) -> Result<ExitCode> {
    // Router and bench each have both ends' worth: one connection for each transaction, one more for each that is held.
    allow_files(args.transactions + args.fitting() + OTHER_FILES)?;
    let lab = Lab::start(&args.cache, &["a", "b"], &objects(args), [LISTENER], None).await?;
    let watch = StallWatch::start();
    let length = usize::try_from(args.kib * 1_024).context("no body is as long as that")?;
    let clients = connect(&lab, args.transactions, length).await?;
    let (bare, mut clients) = bare(&lab, clients, args.fitting()).await?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        eprintln!("round {number} of {}", args.rounds);
        let (round, back) = round::play(&lab, clients, length).await?;
        clients = back;
        rounds.push(round);
    }
    let found = table::Found { transactions: args.transactions, fitting: args.fitting(), bare, rounds };
    let report = table::report(&found, watch.take_ms());
    report.conclude(args.json, &table::text(&found), NOISE_MS)
}

/// The router's memory, in bytes, with all connections open and as many transactions held as fit, of a byte each: what is
/// more than that later, bodies take.
async fn bare(lab: &Lab<1>, mut clients: Vec<Client>, fitting: u64) -> Result<(u64, Vec<Client>)> {
    let others = clients.split_off(usize::try_from(fitting)?);
    let (round, mut clients) = round::play(lab, clients, 1).await?;
    ensure!(round.answered == fitting, "small bodies are refused too: {:?}", round.stray);
    clients.extend(others);
    Ok((round.peak, clients))
}

/// Connections that have had a whole body and an answer, so that what they cost by themselves is there. One after the
/// other, since nobody's backlog takes all of them at once.
async fn connect(lab: &Lab<1>, count: u64, length: usize) -> Result<Vec<Client>> {
    let ([listener], request) = (lab.listeners, Request::post("/", length));
    let mut clients = Vec::new();
    for number in 0..count {
        let mut client = Client::new(listener);
        let answer = client.exchange(&request, number).await;
        let answer = answer.with_context(|| format!("connection {number} got no answer"))?;
        ensure!(answer.status() == Some(200), "connection {number} was answered with {answer}");
        clients.push(client);
    }
    Ok(clients)
}

fn objects(args: &Args) -> [(&'static str, String); 2] {
    let transactions = args.transactions;
    // Half of what may be under way is for one cell, and either of the two could be given all that is held.
    let in_flight = 2 * transactions;
    let connections = transactions + OTHER_FILES;
    let router = format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  listeners:
  - name: {LISTENER}
    port: 8080
    limits:
      connections: {connections}
      inFlight: {in_flight}
      bufferTotal: {TOTAL_MIB}Mi
      idleTimeout: 10m
"
    );
    let restart = "{policy: UntilPointOfNoReturn, deadline: 5m, bufferLimit: 1Mi}";
    let policy = policy(LISTENER, &["a", "b"], restart);
    [("router", router), ("policy", policy)]
}
