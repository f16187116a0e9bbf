//! The cluster that is written to, as `kubectl apply --server-side` writes, and what is kept of it: how often each policy was
//! changed, and what our accounts wrote because of that.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_crds::{Condition, ConditionStatus, RoutingPolicy};
use bulkhead_process::Monotonic;
use bulkhead_tests::{World, audit};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::policies::{LABEL, NAMESPACE, OF_BENCH};

/// How long all statuses may take to speak of the newest spec.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Writes under way at most, beside those to the watched route.
const AT_ONCE: usize = 8;

pub(super) struct Stage {
    pub(super) world: &'static World,
    pub(super) clock: Monotonic,
    api: Api<RoutingPolicy>,
    /// How often each policy was changed since it was last asked, by name.
    changes: Mutex<BTreeMap<String, u64>>,
}

/// When a write was sent, and when its answer came: by then it is stored. In microseconds of the stage's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) sent: u64,
    pub(super) answered: u64,
}

/// Changes of a span of time, and what our accounts wrote meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    pub(super) changes: u64,
    /// To the policies that were changed.
    pub(super) own: u64,
    /// The most that one policy had beyond one for each of its changes.
    pub(super) beyond: u64,
    /// To all else.
    pub(super) other: u64,
}

impl Stage {
    /// # Errors
    /// When there is no cluster to write to.
    pub(super) async fn set(world: &'static World) -> Result<Self> {
        // Another part of the process may have chosen one before, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_default().await.context("KUBECONFIG has no cluster")?;
        let api = Api::namespaced(client, NAMESPACE);
        Ok(Self { world, clock: Monotonic::start(), api, changes: Mutex::default() })
    }

    /// # Errors
    /// When the API server refuses it.
    pub(super) async fn apply(&self, policy: &Value) -> Result<Stored> {
        let name = policy.pointer("/metadata/name").and_then(Value::as_str).context("a policy has a name")?;
        *self.changes().entry(name.to_owned()).or_default() += 1;
        let sent = self.clock.micros();
        let applied = self.api.patch(name, &PatchParams::apply("bench").force(), &Patch::Apply(policy)).await;
        applied.with_context(|| format!("policy {name} cannot be applied"))?;
        Ok(Stored { sent, answered: self.clock.micros() })
    }

    /// Applies one after the other at that rate: how many.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub(super) async fn apply_all(
        &self,
        policies: impl Iterator<Item = Value>,
        per_second: u32,
    ) -> Result<()> {
        let mut tick = interval(Duration::from_secs(1) / per_second);
        tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let paced = stream::unfold((policies, tick), async |(mut policies, mut tick)| {
            let policy = policies.next()?;
            tick.tick().await;
            Some((policy, (policies, tick)))
        });
        let written = paced.map(|policy| async move { self.apply(&policy).await.map(drop) });
        written.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Waits until every policy of the bench is ready, and says so of its newest spec.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) async fn settled(&self) -> Result<()> {
        let all = async {
            while !self.ours().await?.iter().all(is_ready) {
                sleep(LOOK_EVERY).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, all).await.context("the policies do not become ready")?
    }

    /// Deletes every policy of the bench, and waits until they are gone.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) async fn clear(&self) -> Result<()> {
        let gone = async {
            while !self.ours().await?.is_empty() {
                self.api.delete_collection(&DeleteParams::default(), &selector()).await?;
                sleep(LOOK_EVERY).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, gone).await.context("the policies of the bench do not go away")?
    }

    async fn ours(&self) -> Result<Vec<RoutingPolicy>> {
        let listed = self.api.list(&selector()).await.context("the policies cannot be listed")?;
        Ok(listed.items)
    }

    /// Begins a span of time: where the audit log ends now.
    ///
    /// # Errors
    /// When the cluster has none.
    pub(super) fn count_anew(&self) -> Result<u64> {
        self.changes().clear();
        audit::end(self.world)
    }

    /// What was changed and written since that place in the audit log.
    ///
    /// # Errors
    /// When it cannot be read, or has nothing of what must be in it.
    pub(super) fn writes_since(&self, from: u64) -> Result<Writes> {
        let changes = self.changes();
        let mut writes = Writes { changes: changes.values().sum(), ..Writes::default() };
        let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
        for write in audit::writes_since(self.world, from)? {
            if write.resource == "routingpolicies" && changes.contains_key(&write.name) {
                *by_name.entry(write.name).or_default() += 1;
                writes.own += 1;
            } else {
                writes.other += 1;
            }
        }
        let beyond = by_name.iter().map(|(name, writes)| writes.saturating_sub(changes[name]));
        writes.beyond = beyond.max().unwrap_or_default();
        ensure!(
            writes.own > 0 || changes.is_empty(),
            "the audit log has no status of a policy: is it this cluster's?"
        );
        Ok(writes)
    }

    fn changes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn selector() -> ListParams {
    ListParams::default().labels(&format!("{LABEL}={OF_BENCH}"))
}

fn is_ready(policy: &RoutingPolicy) -> bool {
    let Some(status) = &policy.status else { return false };
    let ready =
        |condition: &Condition| condition.r#type == "Ready" && condition.status == ConditionStatus::True;
    status.observed_generation == policy.metadata.generation && status.conditions.iter().any(ready)
}
