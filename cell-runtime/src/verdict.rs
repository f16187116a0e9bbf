//! Whether the cell is ready, from what is known of its services. Pure; how long it has been so is `age`'s.

/// One service, as the probes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    pub name: String,
    pub required: bool,
    pub min_ready: u32,
    /// Pods that are ready.
    pub ready: u32,
    /// Pods that are known.
    pub known: u32,
    /// Pods whose first probe has not ended.
    pub unprobed: u32,
    /// Whether its pods were ever listed.
    pub listed: bool,
    /// What the last failed probe said.
    pub detail: Option<String>,
}

/// The verdict's substance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub ready: bool,
    /// `Ready`, `Draining`, `Stalled`, `Starting`, `EndpointsUnknown` or `ServiceNotReady`.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// This pod, as its control thread sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnView {
    pub draining: bool,
    /// Milliseconds for which the traffic server has not shown that it runs.
    pub traffic_silent_ms: u64,
}

/// Past this, transactions sent here would not be answered either.
pub const TRAFFIC_SILENCE_MS: u64 = 1_000;

/// Ready when every required service has as many ready pods as it needs, and this pod is neither stopping nor stuck.
pub fn judge(services: &[ServiceView], own: OwnView) -> Judgement {
    let not_ready = |reason, message: String| Judgement { ready: false, reason, message };
    if own.draining {
        return not_ready("Draining", "This orchestrator is stopping.".to_owned());
    }
    if own.traffic_silent_ms > TRAFFIC_SILENCE_MS {
        let message = format!("The traffic server has not run for more than {TRAFFIC_SILENCE_MS} ms.");
        return not_ready("Stalled", message);
    }
    let lacking: Vec<&ServiceView> =
        services.iter().filter(|service| service.required && service.ready < service.min_ready).collect();
    if lacking.is_empty() {
        return Judgement { ready: true, reason: "Ready", message: optional(services) };
    }
    let message = lacking.iter().map(|service| sentence(service)).collect::<Vec<_>>().join(" ");
    let reason = if lacking.iter().all(|service| !service.listed) {
        "EndpointsUnknown"
    } else if lacking.iter().all(|service| service.ready + service.unprobed >= service.min_ready) {
        "Starting"
    } else {
        "ServiceNotReady"
    };
    not_ready(reason, message)
}

/// What a service lacks.
pub(crate) fn sentence(service: &ServiceView) -> String {
    let ServiceView { name, min_ready, ready, known, detail, .. } = service;
    if !service.listed {
        return format!("The pods of service {name} are not known yet.");
    }
    let detail = detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("Service {name} has {ready} ready of {known} pods and needs {min_ready}{detail}.")
}

/// What is amiss without making the cell unready.
fn optional(services: &[ServiceView]) -> String {
    let lacking = services.iter().filter(|service| service.ready < service.min_ready);
    lacking.map(sentence).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, ready: u32, min_ready: u32) -> ServiceView {
        ServiceView {
            name: name.to_owned(),
            required: true,
            min_ready,
            ready,
            known: 3,
            unprobed: 0,
            listed: true,
            detail: None,
        }
    }

    fn check(services: &[ServiceView], draining: bool, ready: bool, reason: &str) -> String {
        let judgement = judge(services, OwnView { draining, traffic_silent_ms: 100 });
        assert_eq!((judgement.ready, judgement.reason), (ready, reason), "{services:?}");
        judgement.message
    }

    #[test]
    fn ready_when_every_required_service_has_enough() {
        check(&[], false, true, "Ready");
        check(&[service("a", 1, 1), service("b", 3, 2)], false, true, "Ready");
        check(&[service("a", 0, 0)], false, true, "Ready");
    }

    #[test]
    fn one_lacking_service_is_enough_to_be_out_and_is_named() {
        let mut b = service("b", 1, 2);
        b.detail = Some("10.0.0.1:80 answered 503".to_owned());
        let message = check(&[service("a", 1, 1), b], false, false, "ServiceNotReady");
        assert_eq!(message, "Service b has 1 ready of 3 pods and needs 2 (10.0.0.1:80 answered 503).");
    }

    #[test]
    fn an_optional_service_is_told_of_but_does_not_count() {
        let optional = ServiceView { required: false, ..service("b", 0, 1) };
        let message = check(&[service("a", 1, 1), optional], false, true, "Ready");
        assert!(message.contains("Service b has 0 ready"), "{message}");
    }

    #[test]
    fn before_the_first_list_and_probe_the_reason_says_so() {
        let unlisted = ServiceView { listed: false, known: 0, ..service("a", 0, 1) };
        check(&[unlisted], false, false, "EndpointsUnknown");
        let unprobed = ServiceView { unprobed: 2, ..service("a", 0, 2) };
        check(std::slice::from_ref(&unprobed), false, false, "Starting");
        check(&[unprobed, service("b", 0, 1)], false, false, "ServiceNotReady");
    }

    #[test]
    fn a_pod_whose_traffic_does_not_run_is_not_ready() {
        let check = |traffic_silent_ms, ready| {
            let own = OwnView { draining: false, traffic_silent_ms };
            assert_eq!(judge(&[service("a", 1, 1)], own).ready, ready, "{traffic_silent_ms}");
        };
        check(TRAFFIC_SILENCE_MS, true);
        check(TRAFFIC_SILENCE_MS + 1, false);
    }

    #[test]
    fn draining_goes_before_everything() {
        check(&[service("a", 1, 1)], true, false, "Draining");
        check(&[service("a", 0, 1)], true, false, "Draining");
    }
}
