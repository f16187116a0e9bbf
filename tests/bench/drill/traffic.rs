//! The transactions of a drill: an open loop of payments, of which every one is remembered.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::{Monotonic, Shutdown};
use bulkhead_samples::caller::Caller;
use bulkhead_samples::load::{Body, Load, Outcome, Plan, Report};
use http::{HeaderName, Method};
use tokio::task::{JoinHandle, JoinSet};

use super::calls::{Call, End, answers};
use super::stage::payment;

/// Where payments go.
pub(crate) const PATH: &str = "/pay";
/// How many ask again at the same time.
const AT_ONCE: usize = 32;
/// Enough that those who wait for a stopped router or cell leave the others their turn.
const CONNECTIONS: u32 = 600;
/// Longer than any deadline on the way, so that whoever gives up says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// A load that runs. It stops when this is dropped.
pub(crate) struct Traffic {
    clock: Monotonic,
    calls: Arc<Mutex<Vec<Call>>>,
    stop: Shutdown,
    task: JoinHandle<Report>,
}

impl Traffic {
    /// Starts sending `rate` payments per second for so long.
    pub(crate) fn start(
        targets: Vec<SocketAddr>,
        key_header: HeaderName,
        rate: u32,
        duration: Duration,
    ) -> Self {
        let plan = Plan {
            targets,
            method: Method::POST,
            path: PATH.to_owned(),
            headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"))],
            key_header: Some(key_header),
            keys: u64::MAX,
            key_prefix: "order".to_owned(),
            body: Body::Of(Arc::new(payment)),
            rate,
            connections: CONNECTIONS,
            duration: Some(duration),
            timeout: PATIENCE,
            ..Plan::default()
        };
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let (remember, names, stop) = (Arc::clone(&calls), plan.clone(), Shutdown::new());
        let observer = move |outcome: &Outcome| {
            let call = Call::of(names.key(outcome.number), outcome);
            remember.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        };
        let load = Load::new(plan).observed(Arc::new(observer));
        let (clock, task) = (Monotonic::start(), tokio::spawn(load.run(stop.clone())));
        Self { clock, calls, stop, task }
    }

    /// Waits until that long after the start.
    pub(crate) async fn at(&self, time: Duration) {
        tokio::time::sleep(time.saturating_sub(self.clock.elapsed())).await;
    }

    /// Waits until every call has ended.
    ///
    /// # Errors
    /// When the load broke.
    pub(crate) async fn end(mut self) -> Result<Vec<Call>> {
        (&mut self.task).await.context("the load broke")?;
        Ok(std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Callers that got no answer ask once more, with the same key, at a router that lives. How many still have none.
pub(crate) async fn ask_again(front: SocketAddr, key_header: &HeaderName, calls: &[Call]) -> u64 {
    let caller = Arc::new(Caller::new(front));
    let unanswered: Vec<_> = calls.iter().filter(|call| matches!(call.end, End::NoAnswer(_))).collect();
    let mut without = 0;
    for some in unanswered.chunks(AT_ONCE) {
        let mut asking = JoinSet::new();
        for call in some {
            let (caller, field, reference) =
                (Arc::clone(&caller), key_header.clone(), call.reference.clone());
            asking.spawn(async move {
                let fields = [(field, reference.as_str())];
                let answer = caller.call(Method::POST, PATH, &fields, payment(&reference)).await;
                answer.is_ok_and(|(_, body)| answers(&body, &reference))
            });
        }
        without += asking.join_all().await.into_iter().filter(|answered| !answered).count() as u64;
    }
    without
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}
