//! One run of the world from a seed to its end, and many of them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::caller::call;
use crate::checks;
use crate::faults::{Fault, Flaw};
use crate::history::History;
use crate::router::Router;
use crate::sights::sights;
use crate::world::World;

/// Virtual time in which every caller has to come to an end, and in which what is under way then settles.
const END: Duration = Duration::from_secs(300);
const SETTLE: Duration = Duration::from_secs(120);

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) history: History,
    pub(crate) struck: Vec<u64>,
}

impl Outcome {
    /// The promises that were broken, and how.
    pub(crate) fn broken(&self) -> Vec<(&'static str, String)> {
        let broken = checks::ALL.iter().map(|(name, check)| (*name, check(&self.history)));
        broken.filter_map(|(name, held)| Some((name, held.err()?))).collect()
    }
}

pub(crate) fn simulate(seed: u64, flaw: Option<Flaw>, traced: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing");
    LocalSet::new().block_on(&runtime, async {
        let world = Rc::new(World::new(seed, flaw, traced));
        let routers = [Router::new(&world, 0), Router::new(&world, 1)];
        let mut callers = JoinSet::new();
        for _ in 0..world.dice.between(3..=6) {
            let (world, routers) = (Rc::clone(&world), routers.clone());
            callers.spawn_local(async move { call(&world, &routers).await });
        }
        let ended = timeout(END, async { while callers.join_next().await.is_some() {} }).await.is_ok();
        world.history().ended = ended;
        // Transactions past the point of no return outlast their callers, and destinations may be slow.
        tokio::time::sleep(SETTLE).await;
        routers.iter().for_each(|router| router.end());
        let (history, struck) = world.end();
        Outcome { history, struck }
    })
}

/// Runs those seeds on all cores and hands each outcome to `seen`, until it says that this is enough.
pub(crate) fn explore(seeds: u64, flaw: Option<Flaw>, seen: impl Fn(u64, Outcome) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    if seen(seed, simulate(seed, flaw, false)) {
                        next.store(seeds, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// The faults that struck and what was seen, over many runs.
#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<String, bool>>);

impl Tally {
    pub(crate) fn add(&self, outcome: &Outcome) {
        let struck =
            Fault::ALL.iter().map(|fault| (format!("{fault:?}"), outcome.struck[*fault as usize] > 0));
        let seen = sights(&outcome.history).into_iter().map(|(sight, seen)| (sight.to_owned(), seen));
        let mut tally = self.0.lock().expect("nobody panics while adding");
        for (name, seen) in struck.chain(seen) {
            *tally.entry(name).or_default() |= seen;
        }
    }

    /// What no run showed.
    pub(crate) fn missing(&self) -> Vec<String> {
        let tally = self.0.lock().expect("nobody panics while adding");
        tally.iter().filter(|(_, seen)| !**seen).map(|(name, _)| name.clone()).collect()
    }
}
