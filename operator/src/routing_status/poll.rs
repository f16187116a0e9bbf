//! Asks every router pod what it serves, over its admin port, and publishes the answers together. What follows from
//! them is decided elsewhere.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::{Router, names};
use bulkhead_process::clock::Monotonic;
use bulkhead_protocol::{Serving, serving};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::sync::watch;

use super::snapshot::{RouterPod, Snapshot};
use crate::ask::fetch;
use crate::cell::shift::Purpose;
use crate::stores::{self, Changes, Stores};

const ADMIN_PORT: u16 = 9090;
/// An answer of 1,000 cells and 40,000 rules is a few megabytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// While something is pending, and while nothing is.
const FAST: Duration = Duration::from_millis(250);
const SLOW: Duration = Duration::from_secs(2);
/// For this long after any change something may be pending that nobody knows of yet.
const EAGER_MS: u64 = 5_000;

/// What is known of one pod between two rounds.
#[derive(Clone, Debug, Default)]
struct Known {
    serving: Option<Arc<Serving>>,
    /// When it stopped answering, or was first seen and never answered.
    silent_since: Option<u64>,
}

/// Polls until the process ends. `pending` says whether anybody waits for the routers.
pub(crate) async fn run(
    stores: Arc<Stores>,
    changes: Changes,
    publish: watch::Sender<Arc<Snapshot>>,
    pending: watch::Receiver<bool>,
    clock: Monotonic,
) {
    stores.ready().await;
    let mut changed = changes.routing.subscribe();
    let mut known: HashMap<String, Known> = HashMap::new();
    let mut eager_until = clock.millis() + EAGER_MS;
    loop {
        let pods = stores.router_pods.state();
        let routers = stores::readable(&stores.routers);
        known = round(&pods, &known, clock).await;
        let snapshot = assemble(&pods, &routers, &known, clock.millis());
        let concerned = differing(&publish.borrow(), &snapshot);
        publish.send_if_modified(|last| {
            let differs = **last != snapshot;
            if differs {
                *last = Arc::new(snapshot);
            }
            differs
        });
        changes.look_at(concerned).await;
        let eager = *pending.borrow() || clock.millis() < eager_until;
        let slept = tokio::time::timeout(if eager { FAST } else { SLOW }, changed.changed()).await;
        if slept.is_ok() {
            eager_until = clock.millis() + EAGER_MS;
            // Routers need a moment to take up what we saw at the same time as they.
            tokio::time::sleep(FAST / 5).await;
        }
    }
}

async fn round(
    pods: &[Arc<Pod>],
    known: &HashMap<String, Known>,
    clock: Monotonic,
) -> HashMap<String, Known> {
    let asked = pods.iter().filter(|pod| may_serve(pod)).map(async |pod| {
        let name = pod.name_any();
        let answer = match address(pod) {
            Some(address) => ask(address).await,
            None => Err("it has no address yet".to_owned()),
        };
        let mut next = known.get(&name).cloned().unwrap_or_default();
        match answer {
            Ok(serving) => {
                next.silent_since = None;
                // Equal answers stay the same allocation, so that comparing snapshots is cheap.
                if next.serving.as_deref() != Some(&serving) {
                    next.serving = Some(Arc::new(serving));
                }
            }
            Err(error) => {
                if next.silent_since.is_none() {
                    tracing::warn!(pod = name, error, "a router does not say what it serves");
                    next.silent_since = Some(clock.millis());
                }
            }
        }
        (name, next)
    });
    join_all(asked).await.into_iter().collect()
}

/// A pod that ended, or that no node runs yet, serves nothing.
fn may_serve(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed" | "Pending") | None)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address(pod: &Pod) -> Option<SocketAddr> {
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(SocketAddr::new(ip, ADMIN_PORT))
}

async fn ask(address: SocketAddr) -> Result<Serving, String> {
    let body = fetch(address, serving::PATH, MAX_ANSWER).await?;
    serde_json::from_slice(&body).map_err(|error| format!("{address}: {error}"))
}

fn assemble(pods: &[Arc<Pod>], routers: &[Router], known: &HashMap<String, Known>, now: u64) -> Snapshot {
    let mut found: Vec<RouterPod> = pods
        .iter()
        .filter(|pod| may_serve(pod))
        .map(|pod| {
            let name = pod.name_any();
            let router = pod.labels().get(names::LABEL_ROUTER).cloned().unwrap_or_default();
            let state = known.get(&name).cloned().unwrap_or_default();
            let timeout =
                routers.iter().find(|one| one.name_any() == router).map(|one| one.spec.drain_timeout.get());
            let timeout = timeout.unwrap_or(Duration::from_secs(30));
            let silent_for = state.silent_since.map(|since| Duration::from_millis(now.saturating_sub(since)));
            let joins = state.serving.is_none() && !is_ready(pod);
            let leaves = pod.metadata.deletion_timestamp.is_some();
            RouterPod {
                pod: name,
                router,
                serving: state.serving,
                silent: silent_for.is_some(),
                gone: silent_for.is_some_and(|silent| silent > timeout),
                transient: silent_for.is_some() && (joins || leaves),
            }
        })
        .collect();
    found.sort_by(|a, b| a.pod.cmp(&b.pod));
    Snapshot { asked: true, routers: found }
}

/// The cells whose reconciles would see something else.
fn differing(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let names = before.routers.iter().chain(&after.routers).filter_map(|pod| pod.serving.as_ref());
    let mut names: Vec<&String> = names.flat_map(|serving| serving.cells.keys()).collect();
    names.sort();
    names.dedup();
    let pairs = || before.routers.iter().zip(&after.routers);
    let same_pods = before.asked == after.asked
        && before.routers.len() == after.routers.len()
        && pairs().all(|(a, b)| (&a.pod, a.silent, a.gone) == (&b.pod, b.silent, b.gone));
    let differs = |name: &str| {
        let shifts =
            [Purpose::Update, Purpose::Delete].map(|purpose| format!("TrafficShift/{}", purpose.name(name)));
        pairs().any(|(a, b)| seen(a, name, &shifts) != seen(b, name, &shifts))
    };
    names.into_iter().filter(|name| !same_pods || differs(name)).cloned().collect()
}

/// What the reconcile of a Cell reads of an answer, which has the versions of the operator's own shifts in it. Other objects
/// come and go without it; and where a router sends new transactions, how many are under way decides nothing.
fn seen(pod: &RouterPod, cell: &str, shifts: &[String]) -> impl PartialEq {
    let serving = pod.serving.as_deref()?;
    let cell = serving.cells.get(cell).map(|cell| {
        let left = if cell.effective_weight == 0 { cell.in_flight } else { 0 };
        (cell.r#in, &cell.reason, cell.effective_weight, left)
    });
    let shifts: Vec<_> = shifts.iter().map(|shift| serving.objects.get(shift)).collect();
    Some((cell, shifts))
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::serving::{CellServing, ObjectVersion};

    use super::*;
    use crate::fixture;

    /// An answer with cell `a` as given, and cell `b`.
    fn serving(weight: u32, in_flight: u32) -> Serving {
        let a = CellServing { effective_weight: weight, in_flight, ..CellServing::default() };
        let cells = [("a".to_owned(), a), ("b".to_owned(), CellServing::default())];
        Serving { cells: cells.into(), ..Serving::default() }
    }

    #[test]
    fn only_the_cells_that_changed_are_looked_at_again() {
        let snapshot = |serving| Snapshot { asked: true, routers: vec![fixture::router_pod("r-0", serving)] };
        let check = |before, after, expected: &[&str]| {
            assert_eq!(differing(&snapshot(before), &snapshot(after)), expected);
        };
        check(serving(100, 1), serving(50, 1), &["a"]);
        check(serving(100, 1), serving(100, 1), &[]);
        check(serving(100, 1), serving(100, 2), &[]);
        check(serving(0, 2), serving(0, 1), &["a"]);
        check(serving(100, 1), Serving { table: 2, ..serving(100, 1) }, &[]);
        for (name, expected) in
            [("bulkhead-update-a", ["a"].as_slice()), ("bulkhead-delete-b", &["b"]), ("other", &[])]
        {
            let with = [(format!("TrafficShift/{name}"), ObjectVersion::default())];
            check(serving(100, 1), Serving { objects: with.into(), ..serving(100, 1) }, expected);
        }
        let asked = snapshot(serving(100, 1));
        assert_eq!(differing(&Snapshot::default(), &asked), ["a", "b"]);
    }

    fn pod(more: &serde_json::Value) -> Arc<Pod> {
        let mut pod = serde_json::json!({
            "metadata": {"name": "r-0", "labels": {names::LABEL_ROUTER: "r"}},
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        });
        for part in ["metadata", "status"] {
            let more = more[part].as_object().cloned().unwrap_or_default();
            pod[part].as_object_mut().expect("is one").extend(more);
        }
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn a_silent_pod_is_gone_after_its_drain_time_out() {
        let pods = [pod(&serde_json::Value::Null)];
        let known = [("r-0".to_owned(), Known { serving: None, silent_since: Some(1_000) })].into();
        let state = |now| {
            let snapshot = assemble(&pods, &[], &known, now);
            (snapshot.routers[0].silent, snapshot.routers[0].gone)
        };
        assert_eq!(state(1_000), (true, false));
        assert_eq!(state(31_000), (true, false));
        assert_eq!(state(31_001), (true, true));
    }

    #[test]
    fn a_silent_pod_is_transient_while_it_joins_or_leaves() {
        let check = |more, answered: bool, silent_since, expected| {
            let serving = answered.then(|| Arc::new(Serving::default()));
            let known = [("r-0".to_owned(), Known { serving, silent_since })].into();
            let snapshot = assemble(&[pod(&more)], &[], &known, 1_000);
            assert_eq!(snapshot.routers[0].transient, expected, "{more}");
        };
        let ready = serde_json::json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let leaves = serde_json::json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}});
        check(serde_json::Value::Null, false, Some(1_000), true);
        check(serde_json::Value::Null, true, Some(1_000), false);
        check(ready, false, Some(1_000), false);
        check(leaves.clone(), true, Some(1_000), true);
        check(leaves, true, None, false);
    }
}
