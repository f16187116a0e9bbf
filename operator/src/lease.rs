//! Leader election by a Lease, and the proof, asked for at the moment of every write, that this process still holds
//! it. What is written under it is decided elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bulkhead_process::clock::Monotonic;
use bulkhead_process::readiness::Gate;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::clock;

/// After this long without a renewal others may take the lease.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
/// Between two renewals.
const RENEW: Duration = Duration::from_secs(4);
/// Between two looks at a lease that another holds, and after a try that failed.
const RETRY: Duration = Duration::from_secs(2);
/// Until an answer about the lease begins: short enough for another try, on another connection, while it is still ours.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);
/// We stop writing this long before others may begin, so that a write under way does not overlap theirs.
const MARGIN: Duration = Duration::from_secs(3);

/// Whether this process may write, cheap to ask and to clone.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    clock: Monotonic,
    /// Milliseconds of `clock` until which the lease is ours; 0 is not at all.
    until: Arc<AtomicU64>,
}

impl Leadership {
    pub(crate) fn none(clock: Monotonic) -> Self {
        Self { clock, until: Arc::new(AtomicU64::new(0)) }
    }

    /// True while no other process can have taken the lease.
    pub(crate) fn holds(&self) -> bool {
        self.left().is_some()
    }

    fn left(&self) -> Option<Duration> {
        let left = self.until.load(Ordering::Acquire).saturating_sub(self.clock.millis());
        (left > 0).then(|| Duration::from_millis(left))
    }

    pub(crate) fn hold_until(&self, millis: u64) {
        self.until.store(millis, Ordering::Release);
    }

    fn give_up(&self) {
        self.until.store(0, Ordering::Release);
    }
}

/// What one look at the lease leads to.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Create,
    Renew,
    Take,
    Wait,
}

/// Another's lease is free only after it stood still for its whole duration by our own clock, so that clocks of
/// different machines are never compared.
fn turn(spec: Option<&LeaseSpec>, me: &str, unchanged_for: Duration) -> Turn {
    let Some(spec) = spec else { return Turn::Create };
    match spec.holder_identity.as_deref() {
        None | Some("") => Turn::Take,
        Some(holder) if holder == me => Turn::Renew,
        Some(_) => {
            let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.map_or(DURATION, Duration::from_secs);
            if unchanged_for > duration { Turn::Take } else { Turn::Wait }
        }
    }
}

/// One process that wants to lead.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    leadership: Leadership,
    /// Opened by the first answer, and left open: an outage makes nobody less able to lead after it.
    reached: Gate,
    /// The last attempt failed, and that was said.
    failing: bool,
    /// The last version of the lease that was seen, and when it was first seen.
    seen: Option<(String, u64)>,
}

impl Candidate {
    pub(crate) fn new(
        api: Api<Lease>,
        name: String,
        identity: String,
        leadership: Leadership,
        reached: Gate,
    ) -> Self {
        Self { api, name, identity, leadership, reached, failing: false, seen: None }
    }

    /// Waits until the lease is ours.
    pub(crate) async fn acquire(&mut self) {
        while !self.attempt().await.unwrap_or(false) {
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews until the lease is lost, then returns: when its time is over at the latest, whatever is waited for.
    pub(crate) async fn keep(&mut self) {
        let mut pause = RENEW;
        while let Some(left) = self.leadership.left() {
            let renewal = async {
                tokio::time::sleep(pause).await;
                self.attempt().await
            };
            pause = match tokio::time::timeout(left, renewal).await {
                Ok(Ok(true)) => RENEW,
                Ok(Err(_)) => RETRY,
                Ok(Ok(false)) | Err(_) => break,
            };
        }
        self.leadership.give_up();
    }

    /// Lets the next candidate begin at once. A failure only makes it wait for the lease's duration.
    pub(crate) async fn release(&mut self) {
        self.leadership.give_up();
        let Ok(Some(mut lease)) = self.api.get_opt(&self.name).await else { return };
        let Some(spec) = lease.spec.as_mut() else { return };
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = Some(String::new());
            if let Err(error) = self.api.replace(&self.name, &PostParams::default(), &lease).await {
                tracing::debug!(%error, "the lease could not be released");
            }
        }
    }

    /// One try to take or renew it. A failure is said once, until it works again.
    async fn attempt(&mut self) -> kube::Result<bool> {
        let result = self.take_or_renew().await;
        match &result {
            Err(error) if !self.failing => {
                tracing::warn!(%error, lease = self.name, "the lease can be neither taken nor renewed; tried again");
            }
            Ok(_) if self.failing => tracing::info!(lease = self.name, "the lease can be reached again"),
            Ok(_) | Err(_) => {}
        }
        self.failing = result.is_err();
        if result.is_ok() {
            self.reached.open();
        }
        result
    }

    async fn take_or_renew(&mut self) -> kube::Result<bool> {
        let started = self.leadership.clock.millis();
        let lease = self.api.get_opt(&self.name).await?;
        let unchanged_for = self.unchanged_for(lease.as_ref(), started);
        let written =
            match turn(lease.as_ref().and_then(|lease| lease.spec.as_ref()), &self.identity, unchanged_for) {
                Turn::Wait => return Ok(false),
                Turn::Create if lease.is_none() => {
                    let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                    let lease = Lease { metadata, spec: Some(self.spec(None, clock::now())) };
                    self.api.create(&PostParams::default(), &lease).await
                }
                Turn::Create | Turn::Renew | Turn::Take => {
                    let mut lease = lease.unwrap_or_default();
                    lease.spec = Some(self.spec(lease.spec.as_ref(), clock::now()));
                    self.api.replace(&self.name, &PostParams::default(), &lease).await
                }
            };
        match written {
            Ok(_) => {
                // Counted from before the write was sent: the server may have stored it at any moment since.
                let valid = DURATION.saturating_sub(MARGIN);
                self.leadership.hold_until(started + u64::try_from(valid.as_millis()).unwrap_or(0));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn unchanged_for(&mut self, lease: Option<&Lease>, now: u64) -> Duration {
        let version = lease.and_then(|lease| lease.metadata.resource_version.clone()).unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => Duration::from_millis(now.saturating_sub(*since)),
            _ => {
                self.seen = Some((version, now));
                Duration::ZERO
            }
        }
    }

    fn spec(&self, last: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let ours = last.is_some_and(|last| last.holder_identity.as_deref() == Some(self.identity.as_str()));
        let transitions = last.and_then(|last| last.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if ours {
                last.and_then(|last| last.acquire_time.clone())
            } else {
                Some(MicroTime(now))
            },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_process::Readiness;
    use kube::Client;
    use serde_json::json;

    use super::*;
    use crate::fixture;

    fn candidate(client: Client, leadership: &Leadership, readiness: &Readiness) -> Candidate {
        let (api, gate) = (Api::namespaced(client, "apps"), readiness.gate("api-server"));
        Candidate::new(api, "l".to_owned(), "me".to_owned(), leadership.clone(), gate)
    }

    fn held_by(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn only_a_free_or_long_silent_lease_is_taken() {
        let check = |spec: Option<&LeaseSpec>, seconds, expected| {
            assert_eq!(turn(spec, "me", Duration::from_secs(seconds)), expected);
        };
        check(None, 0, Turn::Create);
        check(Some(&held_by("")), 0, Turn::Take);
        check(Some(&held_by("me")), 0, Turn::Renew);
        check(Some(&held_by("other")), 15, Turn::Wait);
        check(Some(&held_by("other")), 16, Turn::Take);
    }

    #[test]
    fn leadership_ends_by_itself() {
        let clock = Monotonic::start();
        let leadership = Leadership::none(clock);
        assert!(!leadership.holds());
        leadership.hold_until(clock.millis() + 60_000);
        assert!(leadership.holds());
        leadership.hold_until(clock.millis());
        assert!(!leadership.holds());
    }

    #[tokio::test]
    async fn leading_ends_in_time_though_the_api_server_never_answers() {
        let clock = Monotonic::start();
        let leadership = Leadership::none(clock);
        leadership.hold_until(clock.millis() + 50);
        let mut leader = candidate(fixture::silent_api_server(), &leadership, &Readiness::new());
        let ended = tokio::time::timeout(RENEW, leader.keep()).await;
        assert!(ended.is_ok() && !leadership.holds());
    }

    #[tokio::test]
    async fn a_standby_is_ready_from_the_first_answer_on() {
        let theirs = json!({"metadata": {"name": "l", "resourceVersion": "1"}, "spec": held_by("other")});
        let (leadership, readiness) = (Leadership::none(Monotonic::start()), Readiness::new());
        for (answer, ready) in
            [(fixture::failure(403, "no"), false), ((200, theirs), true), (fixture::failure(500, "no"), true)]
        {
            let (client, _) = fixture::api_server(move |_| Some(answer.clone()));
            assert!(!candidate(client, &leadership, &readiness).attempt().await.unwrap_or(false));
            assert_eq!(readiness.is_ready(), ready);
        }
        assert!(!leadership.holds());
    }
}
