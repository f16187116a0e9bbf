//! What the cells' orchestrators say of themselves, asked by the operator itself, so that a Cell's status does not depend
//! on there being a router. Routers judge by their own streams; nothing here ever removes traffic.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::names;
use bulkhead_protocol::health::{self, MAX_LINE};
use bulkhead_protocol::{HealthLine, Verdict};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use tokio::sync::watch;

use crate::ask::first_line;
use crate::stores::{Changes, Stores};

/// Between two rounds while all is well, and while some cell is not ready.
const SLOW: Duration = Duration::from_secs(2);
const FAST: Duration = Duration::from_millis(500);
/// Each cell may cost this much time between rounds, so that a thousand of them do not mean a thousand connections a
/// second.
const PER_CELL: Duration = Duration::from_millis(10);
/// Pods that are asked at the same time.
const CONCURRENCY: usize = 32;

/// What one cell's orchestrators say, together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Voices {
    /// Pods that have an address.
    pub(crate) pods: usize,
    /// Of these, the pods that answer.
    pub(crate) answering: usize,
    /// Of these, the pods that say ready, by the revision that they run.
    pub(crate) ready: BTreeMap<String, usize>,
    /// Why not, of the first pod that is not ready or does not answer.
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Voices {
    /// The pods that say ready with that revision: those of an older one say nothing about it, and may be heard for a
    /// while after they are gone.
    pub(crate) fn ready_with(&self, revision: &str) -> usize {
        self.ready.get(revision).copied().unwrap_or(0)
    }
}

/// All cells, as last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// False until every orchestrator was asked once: before that nothing can be told.
    pub asked: bool,
    pub cells: BTreeMap<String, Voices>,
}

/// Asks until the process ends.
pub(crate) async fn run(stores: Arc<Stores>, changes: Changes, publish: watch::Sender<Arc<Heard>>) {
    stores.ready().await;
    loop {
        let pods = pods(&stores.orchestrators.state());
        let count = pods.len();
        let answers =
            futures::stream::iter(pods.into_iter().flat_map(|(cell, addresses)| {
                addresses.into_iter().map(move |address| (cell.clone(), address))
            }))
            .map(async |(cell, address)| {
                let verdict = ask(&cell, address).await;
                (cell, verdict)
            })
            .buffer_unordered(CONCURRENCY)
            .collect::<Vec<_>>()
            .await;
        let next = sum_up(answers);
        let before = publish.borrow().clone();
        let mut different: Vec<String> = before
            .cells
            .keys()
            .chain(next.keys())
            .filter(|cell| before.cells.get(*cell) != next.get(*cell))
            .cloned()
            .collect();
        different.dedup();
        let all_well = next.values().all(|voices| voices.ready.values().sum::<usize>() == voices.pods);
        publish.send_replace(Arc::new(Heard { asked: true, cells: next }));
        changes.look_at(different).await;
        let pause = if all_well { SLOW } else { FAST };
        tokio::time::sleep(pause.max(PER_CELL * u32::try_from(count).unwrap_or(u32::MAX))).await;
    }
}

/// The health addresses of every cell's orchestrators, by cell.
fn pods(slices: &[Arc<EndpointSlice>]) -> BTreeMap<String, Vec<SocketAddr>> {
    let mut pods: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
    for slice in slices {
        // Only in a cell's own namespace: the name of a Service is anybody's to choose.
        let Some(cell) = slice
            .labels()
            .get(names::LABEL_CELL)
            .filter(|cell| slice.namespace().as_deref() == Some(names::namespace_of(cell).as_str()))
        else {
            continue;
        };
        let port = slice.ports.iter().flatten().find(|port| port.name.as_deref() == Some(names::PORT_HEALTH));
        let Some(port) = port.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
        pods.entry(cell.clone()).or_default().extend(addresses.map(|ip| SocketAddr::new(ip, port)));
    }
    pods
}

async fn ask(cell: &str, address: SocketAddr) -> Result<Verdict, String> {
    let line = first_line(address, health::PATH, MAX_LINE).await?;
    match HealthLine::from_line(&line) {
        Ok(Some(HealthLine::Verdict(verdict))) if verdict.cell == cell => Ok(verdict),
        Ok(Some(HealthLine::Verdict(verdict))) => Err(format!("{address} is of cell {}", verdict.cell)),
        Ok(Some(HealthLine::Beat(_)) | None) => Err(format!("{address} does not begin with its verdict")),
        Err(error) => Err(format!("{address}: {error}")),
    }
}

fn sum_up(answers: Vec<(String, Result<Verdict, String>)>) -> BTreeMap<String, Voices> {
    let mut answers = answers;
    // Answers come in any order; the same answers must say the same.
    answers.sort_by(|a, b| {
        let words = |answer: &Result<Verdict, String>| match answer {
            Ok(verdict) => (0, verdict.pod.clone()),
            Err(error) => (1, error.clone()),
        };
        (&a.0, words(&a.1)).cmp(&(&b.0, words(&b.1)))
    });
    let mut all: BTreeMap<String, Voices> = BTreeMap::new();
    for (cell, answer) in answers {
        let voices = all.entry(cell).or_default();
        voices.pods += 1;
        let (reason, message) = match answer {
            Ok(verdict) => {
                voices.answering += 1;
                if verdict.ready {
                    *voices.ready.entry(verdict.revision).or_default() += 1;
                    continue;
                }
                (verdict.reason, verdict.message)
            }
            Err(error) => ("NoAnswer".to_owned(), error),
        };
        if voices.reason.is_empty() {
            (voices.reason, voices.message) = (reason, message);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(revision: &str, ready: bool) -> Result<Verdict, String> {
        let reason = if ready { "Ready" } else { "ServiceNotReady" }.to_owned();
        let (pod, revision) = ("p".to_owned(), revision.to_owned());
        Ok(Verdict { ready, reason, pod, revision, ..Verdict::default() })
    }

    #[test]
    fn the_first_complaint_is_kept_and_all_voices_are_counted() {
        let all = sum_up(vec![
            ("a".to_owned(), verdict("t-2", true)),
            ("a".to_owned(), verdict("t-2", false)),
            ("a".to_owned(), verdict("t-1", true)),
            ("b".to_owned(), Err("gone".to_owned())),
        ]);
        let counts = |cell: &str| {
            let voices = &all[cell];
            (voices.pods, voices.answering, voices.ready_with("t-2"), voices.reason.as_str())
        };
        assert_eq!(counts("a"), (3, 3, 1, "ServiceNotReady"));
        assert_eq!(counts("b"), (1, 0, 0, "NoAnswer"));
    }

    #[test]
    fn only_slices_in_a_cells_own_namespace_are_asked() {
        let slice = |namespace: &str| -> Arc<EndpointSlice> {
            Arc::new(
                serde_json::from_value(serde_json::json!({
                    "metadata": {"name": "s", "namespace": namespace, "labels": {names::LABEL_CELL: "a"}},
                    "addressType": "IPv4",
                    "ports": [{"name": "traffic", "port": 8080}, {"name": "health", "port": 8081}],
                    "endpoints": [{"addresses": ["127.0.0.1"]}],
                }))
                .expect("a slice"),
            )
        };
        let found = pods(&[slice("cell-a"), slice("default")]);
        assert_eq!(found, [("a".to_owned(), vec![SocketAddr::from(([127, 0, 0, 1], 8081))])].into());
    }
}
