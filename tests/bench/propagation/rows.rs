//! What is done to the cluster in each row, and what is counted meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_process::Shutdown;
use bulkhead_samples::load::report::Quantiles;
use bulkhead_samples::load::{Load, Plan, Report};
use bulkhead_tests::pods::{routers, running};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, eventually};
use http::HeaderName;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::SCALE_OUT;
use super::policies::{self, PATH};
use super::probe::Probes;
use super::stage::{Stage, Writes};
use crate::lab::kernel::cpu_micros;

/// Connections of the load, over all routers.
const CONNECTIONS: u32 = 64;
/// How long routers may take to be as many as they should.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long the load goes on when they are.
const AFTERWARDS: Duration = Duration::from_secs(5);
const ROUTER: &str = "bulkhead.dev/component=router";
/// At which policies are written before a row begins.
const PREPARED_PER_SECOND: u32 = 500;

/// What came of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Milliseconds from the API server's answer to an edit of the watched route until every router decides by it, sorted.
    pub(super) served_ms: Vec<f64>,
    /// Milliseconds that the API server took to store each of these edits, sorted.
    pub(super) stored_ms: Vec<f64>,
    pub(super) seconds: f64,
    /// Cores that each router kept busy, on average.
    pub(super) router_cores: f64,
    pub(super) traffic: Traffic,
    pub(super) writes: Writes,
}

/// What became of the load. Nothing, without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) failed: u64,
    /// By reason.
    pub(super) failures: BTreeMap<String, u64>,
    /// Connections that had to be made again.
    pub(super) closed: u64,
    pub(super) latency_ms: Quantiles,
}

/// Edits of the watched route, and what goes on beside them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edits {
    pub(super) edits: u32,
    /// Between two edits at least.
    pub(super) every: Duration,
    pub(super) beside: Beside,
    /// Requests per second to the watched route; 0 for none but the probes'.
    pub(super) rate: u32,
}

/// What is written meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) enum Beside {
    Nothing,
    /// So many policies with so many rules each are there, and are edited in turn.
    Churn {
        policies: u32,
        rules: u32,
        per_second: u32,
    },
    /// So many policies with one rule each are added.
    Additions {
        policies: u32,
        per_second: u32,
    },
}

impl Edits {
    /// Does all of it.
    ///
    /// # Errors
    /// When a request of a probe fails, or something takes too long.
    pub(super) async fn run(&self, name: &'static str, stage: &Stage) -> Result<Row> {
        stage.apply(&policies::live(0)).await?;
        if let Beside::Churn { policies, rules, .. } = self.beside {
            let all = (0..policies).map(|policy| policies::beside(policy, rules, 0));
            stage.apply_all(all, PREPARED_PER_SECOND).await?;
        }
        stage.settled().await?;
        let addresses = routers(stage.world)?;
        let mut probes = Probes::start(&addresses, stage.clock);
        probes.served_by(0).await?;
        let (from, load) = (stage.count_anew()?, Sending::start(addresses, self.rate));
        let (cpu, before) = (router_micros(stage)?, stage.clock.micros());
        let turning = self.turn(stage, &mut probes);
        let [mut served_ms, mut stored_ms] = match self.beside {
            Beside::Nothing => turning.await?,
            Beside::Churn { policies, rules, per_second } => {
                let turns = (1..).flat_map(|turn| (0..policies).map(move |policy| (policy, turn)));
                let edits = turns.map(|(policy, turn)| policies::beside(policy, rules, turn));
                tokio::select! {
                    turned = turning => turned?,
                    ended = stage.apply_all(edits, per_second) => {
                        ended?;
                        bail!("there is no policy to edit")
                    }
                }
            }
            Beside::Additions { policies, per_second } => {
                let added = (0..policies).map(|policy| policies::beside(policy, 1, 0));
                tokio::try_join!(turning, stage.apply_all(added, per_second))?.0
            }
        };
        let micros = stage.clock.micros() - before;
        let router_cores = (router_micros(stage)? - cpu) / micros as f64;
        let traffic = load.end().await?;
        drop(probes);
        stage.settled().await?;
        served_ms.sort_unstable_by(f64::total_cmp);
        stored_ms.sort_unstable_by(f64::total_cmp);
        let (seconds, writes) = (micros as f64 / 1e6, stage.writes_since(from)?);
        Ok(Row { name, served_ms, stored_ms, seconds, router_cores, traffic, writes })
    }

    /// Turns the watched route from one cell to the other and back, each time as soon as all routers have followed.
    async fn turn(&self, stage: &Stage, probes: &mut Probes) -> Result<[Vec<f64>; 2]> {
        let mut tick = interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut spans = [Vec::new(), Vec::new()];
        for edit in 1..=self.edits {
            tick.tick().await;
            let cell = edit as usize % 2;
            let stored = stage.apply(&policies::live(cell)).await?;
            let served = probes.served_by(cell).await?;
            // It may be served before the answer is here.
            spans[0].push(served.saturating_sub(stored.answered) as f64 / 1e3);
            spans[1].push((stored.answered - stored.sent) as f64 / 1e3);
        }
        Ok(spans)
    }
}

/// Adds routers under a load that those of before have.
///
/// # Errors
/// When the cluster does not follow.
pub(super) async fn scale_out(replicas: usize, rate: u32, stage: &Stage) -> Result<Row> {
    stage.apply(&policies::live(0)).await?;
    stage.settled().await?;
    let (from, load) = (stage.count_anew()?, Sending::start(routers(stage.world)?, rate));
    let (world, before) = (stage.world, stage.clock.micros());
    tokio::task::spawn_blocking(move || scale_to(world, replicas)).await??;
    tokio::time::sleep(AFTERWARDS).await;
    let micros = stage.clock.micros() - before;
    let traffic = load.end().await?;
    let (seconds, writes) = (micros as f64 / 1e6, stage.writes_since(from)?);
    Ok(Row { name: SCALE_OUT, seconds, traffic, writes, ..Row::default() })
}

/// As a person does it, who then waits until as many are there and ready, and no others.
///
/// # Errors
/// When the cluster does not follow.
pub(super) fn scale_to(world: &World, replicas: usize) -> Result<()> {
    let of = "statefulset/bulkhead-router";
    world.kubectl(&["scale", of, "-n", SYSTEM, &format!("--replicas={replicas}")])?;
    world.kubectl(&["rollout", "status", of, "-n", SYSTEM, "--timeout=120s"])?;
    // Those that leave are there for as long as they drain.
    eventually(PATIENCE, || {
        let pods = world.json(&["get", "pods", "-n", SYSTEM, "-l", ROUTER])?;
        let count = pods["items"].as_array().map_or(0, Vec::len);
        ensure!(count == replicas, "there are {count} routers, not {replicas}");
        Ok(())
    })
}

/// Microseconds of CPU that a router has had, on average.
fn router_micros(stage: &Stage) -> Result<f64> {
    let pods = running(stage.world, SYSTEM, ROUTER)?;
    let mut micros = 0;
    for pod in &pods {
        for process in pod.processes()? {
            micros += cpu_micros(process)?;
        }
    }
    Ok(micros as f64 / pods.len().max(1) as f64)
}

/// A load over kept connections to these routers. It stops when this is dropped.
struct Sending {
    stop: Shutdown,
    load: Option<JoinHandle<Report>>,
}

impl Sending {
    /// None at a rate of 0.
    fn start(targets: Vec<SocketAddr>, rate: u32) -> Self {
        let plan = Plan {
            targets,
            path: PATH.to_owned(),
            key_header: Some(HeaderName::from_static("x-account")),
            rate,
            connections: CONNECTIONS,
            duration: None,
            ..Plan::default()
        };
        let stop = Shutdown::new();
        let load = (rate > 0).then(|| tokio::spawn(Load::new(plan).run(stop.clone())));
        Self { stop, load }
    }

    async fn end(mut self) -> Result<Traffic> {
        self.stop.trigger();
        let Some(load) = self.load.take() else { return Ok(Traffic::default()) };
        let Report { sent, failed, failures, connects, latency_ms, .. } =
            load.await.context("the load broke")?;
        Ok(Traffic {
            sent,
            failed,
            failures,
            closed: connects.saturating_sub(CONNECTIONS.into()),
            latency_ms,
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}
