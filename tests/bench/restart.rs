//! How long a restart takes: one cell of two closes the connection of some requests after it has read them, and what such a
//! request takes longer than others is the router's noticing, its decision and the attempt in the other cell together.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use bulkhead_samples::load::histogram::Histogram;
use bulkhead_tests::stall::StallWatch;
use serde_json::{Map, Value, json};

use crate::columns::columns;
use crate::lab::cell::Behaviour;
use crate::lab::client::Client;
use crate::lab::kernel::Others;
use crate::lab::wire::Request;
use crate::lab::{Lab, policy};
use crate::report::{Machine, Report, Target};
use crate::until_signal;

/// What the decision may take, in microseconds, and all that comes with it too.
const WANTED_MICROS: u64 = 1_000;
/// With a stall as long as this a miss says more about the machine than about us.
const NOISE_MS: f64 = 100.0;
/// Bytes of a POST's body.
const BODY: usize = 512;
/// Of the requests that the failing cell reads, one in so many fails: a rule may restart one in five of what it carries.
const RESET_EVERY: u64 = 8;
/// Requests before any is counted.
const WARM: u64 = 1_000;
/// Restarts without which a 99th percentile means nothing.
const LEAST: u64 = 100;
const LISTENER: &str = "http";

/// What a request takes that is restarted, beside one that is not.
///
/// POSTs one after the other through a router with one thread; every eighth that one of its two cells reads is reset, and
/// the other cell answers it. Exit status: 0 when it ran, whatever it found; 2 when a target was missed on a machine that
/// stood still, or on which others were at work.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests in all; one in sixteen is restarted.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(5_000..))]
    requests: u64,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the router keeps its files.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

/// Microseconds from the first byte sent to the last received.
#[derive(Default)]
struct Latencies {
    direct: Histogram,
    restarted: Histogram,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    until_signal(&runtime, bench(args))
}

async fn bench(args: &Args) -> Result<ExitCode> {
    let lab = Lab::start(&args.cache, &["a", "b"], &objects(), [LISTENER], Some(1)).await?;
    let (watch, others) = (StallWatch::start(), Others::watch(lab.pid()?)?);
    let latencies = measure(&lab, args.requests).await?;
    let machine = Machine::stalled(watch.take_ms()).beside_others(others.cores()?);
    let report = report(&latencies, machine);
    report.conclude(args.json, &text(&latencies), NOISE_MS)
}

async fn measure(lab: &Lab<1>, requests: u64) -> Result<Latencies> {
    let [listener] = lab.listeners;
    let (clock, request) = (Monotonic::start(), Request::post("/", BODY));
    let (mut client, mut latencies) = (Client::new(listener), Latencies::default());
    lab.cells.behave(0, Behaviour::ResetEvery(RESET_EVERY));
    for number in 0..requests {
        let (resets, before) = (lab.cells.resets(), clock.micros());
        let answer = client.exchange(&request, number).await;
        let micros = clock.micros() - before;
        let answer = answer.with_context(|| format!("request {number} got no answer"))?;
        ensure!(answer.status() == Some(200), "request {number} was answered with {answer}");
        // One request is under way at a time, so that a reset can only be its own.
        let kind = if lab.cells.resets() > resets { &mut latencies.restarted } else { &mut latencies.direct };
        if number >= WARM {
            kind.record(micros);
        }
    }
    let restarts = latencies.restarted.count();
    ensure!(restarts >= LEAST, "only {restarts} requests were restarted, which says too little");
    Ok(latencies)
}

impl Latencies {
    /// By how much this quantile of the restarted is above that of the direct ones.
    fn added(&self, quantile: f64) -> u64 {
        self.restarted.quantile(quantile).saturating_sub(self.direct.quantile(quantile))
    }
}

fn text(latencies: &Latencies) -> String {
    let line = |name: &str, of: &Histogram| {
        let figures = [of.count(), of.quantile(0.5), of.quantile(0.99), of.max()];
        let [count, p50, p99, max] = figures.map(|figure| figure.to_string());
        [name.to_owned(), count, p50, p99, max]
    };
    let head = ["POST 512 B", "requests", "p50 us", "p99 us", "max us"].map(str::to_owned);
    columns(&[head, line("direct", &latencies.direct), line("restarted", &latencies.restarted)], 1)
}

fn report(latencies: &Latencies, machine: Machine) -> Report {
    let row = |variant: &str, of: &Histogram| {
        json!({
            "system": "bulkhead", "variant": variant, "requests": of.count(),
            "p50Us": of.quantile(0.5), "p99Us": of.quantile(0.99), "maxUs": of.max(),
        })
    };
    let target = |name: &str, quantile| {
        let name = format!("a restart adds, {name}, us");
        Target::at_most(name, WANTED_MICROS, latencies.added(quantile))
    };
    Report {
        bench: "restart",
        machine,
        rows: vec![row("direct", &latencies.direct), row("restarted", &latencies.restarted)],
        ratios: Map::<String, Value>::new(),
        targets: vec![target("median", 0.5), target("p99", 0.99)],
    }
}

fn objects() -> [(&'static str, String); 2] {
    let router = format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  listeners: [{{name: {LISTENER}, port: 8080}}]
"
    );
    let policy = policy(LISTENER, &["a", "b"], "{policy: UntilPointOfNoReturn}");
    [("router", router), ("policy", policy)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restart_adds_is_promised_for_the_median_and_for_the_slowest() {
        let mut latencies = Latencies::default();
        (0..200).for_each(|_| latencies.direct.record(100));
        (0..180).for_each(|_| latencies.restarted.record(250));
        (0..20).for_each(|_| latencies.restarted.record(5_000));
        let report = report(&latencies, Machine::stalled(0.0));
        let targets: Vec<_> = report.targets.iter().map(|target| (target.name.as_str(), target.ok)).collect();
        assert_eq!(targets, [("a restart adds, median, us", true), ("a restart adds, p99, us", false)]);
        assert!(report.targets[0].got.as_u64().is_some_and(|added| (149..=152).contains(&added)));
        assert!(text(&latencies).starts_with("POST 512 B  requests  p50 us"));
    }
}
