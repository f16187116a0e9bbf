//! A while of closed-loop load, and what it took of the router and of the machine: each client asks again when it has its
//! answer, so that the router always has as many requests as there are connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow};
use bulkhead_process::Monotonic;
use bulkhead_samples::load::histogram::Histogram;
use nix::unistd::Pid;
use tokio::task::JoinSet;

use super::client::Client;
use super::kernel::{cpu_micros, machine_micros};
use super::wire::Request;

/// Load before anything is counted: connections are made and pools filled.
const WARM_UP: Duration = Duration::from_millis(300);

/// What is sent where, and by how many at once.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) to: SocketAddr,
    pub(crate) request: Request,
    pub(crate) connections: usize,
}

/// What a while of load came to. All of it is of the same window.
#[derive(Clone, Debug)]
pub(crate) struct Spell {
    pub(crate) micros: u64,
    /// Microseconds from the first byte sent to the last received, by request.
    pub(crate) latencies: Histogram,
    pub(crate) router_micros: u64,
    /// CPU that neither the router nor this process had.
    pub(crate) foreign_micros: u64,
}

impl Spell {
    /// Microseconds of the router's CPU.
    pub(crate) fn cpu_per_request(&self) -> f64 {
        self.router_micros as f64 / self.latencies.count().max(1) as f64
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.latencies.count() as f64 * 1e6 / self.micros.max(1) as f64
    }

    /// Cores that somebody else kept busy.
    pub(crate) fn foreign_cores(&self) -> f64 {
        self.foreign_micros as f64 / self.micros.max(1) as f64
    }
}

/// What all clients have in common.
struct Common {
    load: Load,
    clock: Monotonic,
    /// Of requests, so that none has the key of another. Starts where the last spell ended.
    next: Arc<AtomicU64>,
    latencies: Mutex<Histogram>,
}

impl Common {
    fn latencies(&self) -> MutexGuard<'_, Histogram> {
        // Recording leaves it whole.
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the load up for `window` and measures. `next` numbers the requests.
///
/// # Errors
/// When any request is not answered with 200, or the router is gone.
pub(crate) async fn measure(
    router: Pid,
    load: Load,
    next: &Arc<AtomicU64>,
    window: Duration,
) -> Result<Spell> {
    let connections = load.connections;
    let common =
        Common { load, clock: Monotonic::start(), next: Arc::clone(next), latencies: Mutex::default() };
    let common = Arc::new(common);
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        clients.spawn(ask(Arc::clone(&common)));
    }
    tokio::select! {
        spell = watch(router, &common, window) => spell,
        Some(failed) = clients.join_next() => Err(failed.unwrap_or_else(Error::from)),
    }
}

async fn watch(router: Pid, common: &Common, window: Duration) -> Result<Spell> {
    let reading = || {
        let count = common.latencies().clone();
        anyhow::Ok((
            common.clock.micros(),
            count,
            cpu_micros(router)?,
            cpu_micros(Pid::this())?,
            machine_micros()?,
        ))
    };
    tokio::time::sleep(WARM_UP).await;
    let (began, latencies, router_before, this_before, all_before) = reading()?;
    tokio::time::sleep(window).await;
    let (ended, all_latencies, router_after, this_after, all_after) = reading()?;
    let router_micros = router_after - router_before;
    Ok(Spell {
        micros: ended - began,
        latencies: all_latencies.since(&latencies),
        router_micros,
        // Ticks are counted at different moments, so that nothing may come out below nothing.
        foreign_micros: (all_after - all_before).saturating_sub(router_micros + this_after - this_before),
    })
}

/// Asks until it fails.
async fn ask(common: Arc<Common>) -> Error {
    let mut client = Client::new(common.load.to);
    loop {
        let number = common.next.fetch_add(1, Ordering::Relaxed);
        let before = common.clock.micros();
        let answered = client.exchange(&common.load.request, number).await;
        match answered.with_context(|| format!("request {number} got no answer")) {
            Ok(answer) if answer.status() == Some(200) => {
                common.latencies().record(common.clock.micros() - before);
            }
            Ok(answer) => return anyhow!("request {number} was answered with {answer}"),
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Behaviour, Cells};
    use super::*;

    #[test]
    fn figures_are_those_of_the_window() {
        let mut latencies = Histogram::default();
        (0..1_000).for_each(|_| latencies.record(500));
        let spell = Spell { micros: 500_000, latencies, router_micros: 40_000, foreign_micros: 100_000 };
        assert_eq!(
            (spell.cpu_per_request(), spell.per_second(), spell.foreign_cores()),
            (40.0, 2_000.0, 0.2)
        );
    }

    #[tokio::test]
    async fn a_cell_is_asked_again_and_again_and_a_failure_ends_it() {
        let cells = Cells::start(&["a"]).await.expect("starts");
        let to = cells.addresses().next().expect("there is one");
        let load = Load { to, request: Request::post("/", 512), connections: 4 };
        let next = Arc::<AtomicU64>::default();
        // This process stands for the router: whose CPU is counted makes no difference here.
        let window = Duration::from_secs(1);
        let spell = measure(Pid::this(), load.clone(), &next, window).await.expect("is measured");
        assert!(spell.latencies.count() > 0 && spell.micros >= 1_000_000);
        assert!(cells.requests() >= spell.latencies.count());

        cells.behave(0, Behaviour::ResetEvery(10));
        let failed = measure(Pid::this(), load, &next, Duration::MAX).await.expect_err("one is reset");
        assert!(failed.to_string().contains("got no answer"), "{failed:#}");
        assert!(cells.resets() > 0);
    }
}
