//! Who answers on the watched route, asked of every router again and again over one kept connection each.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::policies::{CELLS, PATH};
use crate::lab::client::Client;
use crate::lab::wire::Request;

/// Between two questions: what is measured is never better known than that.
const EVERY: Duration = Duration::from_millis(2);
/// How long a change may take before the bench gives up on it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which of the cells answers, and since when, in microseconds of the bench's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sight {
    cell: Option<usize>,
    since: u64,
}

pub(super) struct Probes {
    sights: Vec<watch::Receiver<Sight>>,
    /// Ended when this is dropped.
    tasks: JoinSet<Result<()>>,
}

impl Probes {
    pub(super) fn start(routers: &[SocketAddr], clock: Monotonic) -> Self {
        let mut probes = Self { sights: Vec::new(), tasks: JoinSet::new() };
        for router in routers {
            let (tell, sight) = watch::channel(Sight::default());
            probes.sights.push(sight);
            probes.tasks.spawn(ask(*router, clock, tell));
        }
        probes
    }

    /// Waits until that cell answers at every router: since when the last of them does so.
    ///
    /// # Errors
    /// When a request failed, or it takes too long.
    pub(super) async fn served_by(&mut self, cell: usize) -> Result<u64> {
        let all = async {
            let mut last = 0;
            for sight in &mut self.sights {
                let seen = sight.wait_for(|sight| sight.cell == Some(cell)).await;
                last = last.max(seen.context("the probe of a router ended")?.since);
            }
            Ok(last)
        };
        tokio::select! {
            served = timeout(PATIENCE, all) => {
                served.with_context(|| format!("{} does not take over in {PATIENCE:?}", CELLS[cell]))?
            }
            Some(ended) = self.tasks.join_next() => {
                ended??;
                unreachable!("a probe has no end")
            }
        }
    }
}

async fn ask(router: SocketAddr, clock: Monotonic, tell: watch::Sender<Sight>) -> Result<()> {
    let mut client = Client::new(router);
    let request = Request::get(PATH).with("x-account: 4711\r\n");
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0.. {
        tick.tick().await;
        let answer = client.exchange(&request, number).await;
        let answer = answer.with_context(|| format!("router {router} does not answer"))?;
        ensure!(answer.status() == Some(200), "router {router} answers {answer}");
        let cell = answer.field("x-cell");
        let cell = CELLS.iter().position(|name| cell.is_some_and(|cell| cell == *name));
        tell.send_if_modified(|sight| {
            let changed = sight.cell != cell;
            if changed {
                *sight = Sight { cell, since: clock.micros() };
            }
            changed
        });
    }
    Ok(())
}
