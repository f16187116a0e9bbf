//! What the status of a Router says, purely: how many pods serve it, and which of them have its newest generation.

use bulkhead_crds::{Router, RouterStatus};

use super::policies::programmed;
use super::snapshot::{Snapshot, Wanted};
use crate::conditions::{state, statement};

pub(super) fn status(router: &Router, snapshot: &Snapshot, now: &str) -> RouterStatus {
    let generation = router.metadata.generation;
    let name = router.metadata.name.as_deref().unwrap_or_default();
    let key = format!("Router/{name}");
    let wanted = Wanted {
        key: &key,
        uid: router.metadata.uid.as_deref().unwrap_or_default(),
        generation: generation.unwrap_or(0),
    };
    let progress = snapshot.progress(Some(name), wanted);
    let programmed = programmed(&progress, snapshot.asked, wanted.generation);
    let from_disk: Vec<&str> = snapshot
        .routers
        .iter()
        .filter(|pod| {
            pod.router == name && !pod.gone && pod.serving.as_ref().is_some_and(|one| one.from_disk)
        })
        .map(|pod| pod.pod.as_str())
        .collect();
    let mut ready =
        statement("Ready", programmed.status, programmed.reason.clone(), programmed.message.clone());
    if !from_disk.is_empty() {
        ready.message.push_str(&format!("; {} serve the table of their disk", from_disk.join(", ")));
    }
    let conditions = router.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    RouterStatus {
        observed_generation: generation,
        replicas: u32::try_from(progress.routers).ok(),
        current_replicas: u32::try_from(progress.routers - progress.behind.len()).ok(),
        conditions: state(conditions, vec![ready, programmed], generation, now),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::RouterSpec;
    use bulkhead_crds::condition::find;

    use super::*;

    #[test]
    fn a_router_without_pods_says_so() {
        let spec =
            RouterSpec { listeners: vec![], drain_timeout: Default::default(), allowed_namespaces: vec![] };
        let router = Router::new("r", spec);
        let status = status(&router, &Snapshot { asked: true, routers: vec![] }, "now");
        assert_eq!((status.replicas, status.current_replicas), (Some(0), Some(0)));
        assert_eq!(find(&status.conditions, "Ready").map(|ready| ready.reason.as_str()), Some("NoRouter"));
    }
}
