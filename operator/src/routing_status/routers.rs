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
    let programmed = programmed(&progress, &snapshot.closed(name, None), wanted.generation);
    let own = snapshot.routers.iter().filter(|pod| pod.router == name && !pod.gone);
    let from_disk: Vec<&str> = own
        .filter(|pod| pod.serving.as_ref().is_some_and(|serving| serving.from_disk))
        .map(|pod| pod.pod.as_str())
        .collect();
    let mut ready =
        statement("Ready", programmed.status, programmed.reason.clone(), programmed.message.clone());
    if !from_disk.is_empty() {
        ready.message.push_str(&format!("; {} serve the table of their disk", from_disk.join(", ")));
    }
    let certificates = snapshot.certificates(name);
    if !certificates.is_empty() {
        // Those that were good are in use, so that nobody needs to be kept away.
        ready.message.push_str(&format!("; certificates cannot be used: {}", certificates.join("; ")));
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
    use bulkhead_crds::condition::{ConditionStatus, find, is_true};
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::ObjectVersion;

    use super::*;
    use crate::fixture;

    fn router() -> Router {
        let spec = RouterSpec {
            listeners: vec![],
            drain_timeout: Default::default(),
            allowed_namespaces: vec![],
            evidence: Default::default(),
            cell_tls: None,
        };
        Router::new("r", spec)
    }

    #[test]
    fn a_router_without_pods_says_so() {
        let status = status(&router(), &Snapshot { asked: true, routers: vec![] }, "now");
        assert_eq!((status.replicas, status.current_replicas), (Some(0), Some(0)));
        assert_eq!(find(&status.conditions, "Ready").map(|ready| ready.reason.as_str()), Some("NoRouter"));
    }

    #[test]
    fn a_listener_that_a_pod_cannot_open_is_told() {
        let mut router = router();
        (router.metadata.uid, router.metadata.generation) = (Some("u".to_owned()), Some(1));
        let version = ObjectVersion { uid: "u".to_owned(), generation: 1 };
        let mut serving =
            Serving { objects: [("Router/r".to_owned(), version)].into(), ..Serving::default() };
        let made = |serving: &Serving| {
            let pod = fixture::router_pod("r-0", serving.clone());
            status(&router, &Snapshot { asked: true, routers: vec![pod] }, "now")
        };
        assert!(is_true(&made(&serving).conditions, "Ready"));
        serving.certificates.insert("http".to_owned(), "listener http: certificate of shop: no".to_owned());
        let stale = made(&serving);
        let ready = find(&stale.conditions, "Ready").expect("is stated");
        let told = ready
            .message
            .ends_with("; certificates cannot be used: r-0: listener http: certificate of shop: no");
        assert!(ready.status == ConditionStatus::True && told, "{ready:?}");
        serving.certificates.clear();
        serving.closed.insert("http".to_owned(), "listener http cannot be opened".to_owned());
        let closed = made(&serving);
        let ready = find(&closed.conditions, "Ready").expect("is stated");
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "ListenerNotOpen"));
        assert_eq!(ready.message, "r-0: listener http cannot be opened");
    }
}
