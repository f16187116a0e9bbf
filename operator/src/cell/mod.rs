//! The reconcile of one Cell, as five steps in files of their own: `observe` reads, `validate` and `desired` decide,
//! `apply` writes, `status` reports. `namespace`, `update`, `shift` and `deletion` write what they are named for. This file
//! joins them and knows the order.

pub(crate) mod apply;
mod bring_up;
mod contents;
mod deletion;
pub(crate) mod desired;
mod destinations;
mod health;
mod namespace;
pub(crate) mod observe;
mod served;
pub(crate) mod shift;
mod statements;
pub(crate) mod status;
mod turn;
mod update;
pub(crate) mod validate;
mod way_down;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_crds::{Cell, names};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use kube::runtime::controller::{Action, Config as ControllerConfig, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource, ResourceExt};
use prometheus::IntCounterVec;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::kinds::{self, Kinds};
use crate::orchestrators::Heard;
use crate::rollout::Step;
use crate::routing_status::snapshot::Snapshot;
use crate::stores::{Cells, Guard, Stores};
use crate::writer::{self, Writer};

/// Cells that are reconciled at the same time.
const CONCURRENCY: u16 = 8;
/// A look without cause, for what no watch tells (a namespace that lost our label).
const RESYNC: Duration = Duration::from_secs(300);

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Write(#[from] writer::Error),
    #[error("reading the cluster: {0}")]
    Read(#[from] kube::Error),
}

impl Error {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Write(error) => error.reason(),
            Self::Read(_) => "ApiError",
        }
    }
}

/// What every reconcile of a Cell uses.
pub(crate) struct Context {
    pub client: Client,
    pub config: Config,
    pub kinds: Kinds,
    pub writer: Writer,
    pub stores: Arc<Stores>,
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub voices: watch::Receiver<Arc<Heard>>,
    pub memory: apply::Memory,
    pub written: status::Written,
    /// Held while a cell begins its update, so that two never begin together.
    pub beginning: tokio::sync::Mutex<()>,
    failures: Mutex<HashMap<String, u32>>,
    failure_count: IntCounterVec,
}

/// What the other parts of the operator know.
pub(crate) struct Others {
    pub stores: Arc<Stores>,
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    pub voices: watch::Receiver<Arc<Heard>>,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        config: Config,
        kinds: Kinds,
        writer: Writer,
        others: Others,
        failure_count: IntCounterVec,
    ) -> Self {
        let Others { stores, snapshot, voices } = others;
        Self {
            client,
            config,
            kinds,
            writer,
            stores,
            snapshot,
            voices,
            memory: apply::Memory::default(),
            written: status::Written::default(),
            beginning: tokio::sync::Mutex::new(()),
            failures: Mutex::new(HashMap::new()),
            failure_count,
        }
    }

    pub(crate) fn cell_resource(&self) -> ApiResource {
        kinds::resource(names::GROUP, names::VERSION, "Cell", "cells")
    }

    /// Waits until everything was read and everybody was asked once, so that a start looks like no change to anybody.
    async fn settled(&self) {
        self.stores.ready().await;
        // The senders live as long as the process.
        let _ = self.voices.clone().wait_for(|heard| heard.asked).await;
        let _ = self.snapshot.clone().wait_for(|snapshot| snapshot.asked).await;
    }

    /// What Events about a Cell refer to.
    pub(crate) fn about(&self, cell: &Cell) -> ObjectReference {
        cell.object_ref(&())
    }

    fn failed(&self, cell: &str) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(cell.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    fn succeeded(&self, cell: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(cell);
    }
}

/// Reconciles Cells until the process ends.
pub(crate) async fn run(context: Arc<Context>, cells: Cells, changed: mpsc::Receiver<String>) {
    let changed = futures::stream::unfold(changed, async |mut changed| {
        let name = changed.recv().await?;
        Some((ObjectRef::<Guard<Cell>>::new(&name), changed))
    });
    let config = ControllerConfig::default().concurrency(CONCURRENCY).debounce(Duration::from_millis(50));
    Controller::for_stream(cells, context.stores.cells.clone())
        .reconcile_on(changed.boxed())
        .with_config(config)
        .run(reconcile, retry, context)
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!(%error, "a reconcile ended with an error");
            }
        })
        .await;
}

async fn reconcile(cell: Arc<Guard<Cell>>, context: Arc<Context>) -> Result<Action, Error> {
    context.settled().await;
    // One that cannot be read is left alone until it changes; `routing_status` says so in its status.
    let Ok(cell) = &cell.0 else { return Ok(Action::await_change()) };
    let action = if cell.metadata.deletion_timestamp.is_some() {
        // Reads only, then one step of the way down.
        let observed = observe::observe(&context, cell).await?;
        deletion::advance(&context, cell, &observed).await?
    } else if add_finalizer(&context, cell).await? {
        Action::await_change()
    } else {
        let observed = observe::observe(&context, cell).await?;
        let report = bring_up::bring_up(&context, cell, &observed).await?;
        status::write(&context, cell, &report).await?;
        let waits = matches!(report.step, Some(Step::Wait(_)));
        let pending =
            report.passing || report.wrote > 0 || report.step.as_ref().is_some_and(bring_up::is_under_way);
        Action::requeue(match (pending, waits) {
            (true, _) => Duration::from_secs(2),
            (false, true) => Duration::from_secs(5),
            (false, false) => RESYNC,
        })
    };
    context.succeeded(cell.name());
    Ok(action)
}

/// Before anything is made for a Cell, so that nothing is left behind when it is deleted.
async fn add_finalizer(context: &Context, cell: &Cell) -> Result<bool, Error> {
    if cell.finalizers().iter().any(|one| one == names::FINALIZER_DRAIN) {
        return Ok(false);
    }
    let mut finalizers = cell.finalizers().to_vec();
    finalizers.push(names::FINALIZER_DRAIN.to_owned());
    let version = cell.resource_version().unwrap_or_default();
    context
        .writer
        .merge_metadata(&context.cell_resource(), cell.name(), &version, &json!({"finalizers": finalizers}))
        .await?;
    Ok(true)
}

#[expect(clippy::needless_pass_by_value, reason = "the controller hands them over like this")]
fn retry(cell: Arc<Guard<Cell>>, error: &Error, context: Arc<Context>) -> Action {
    let name = cell.name_any();
    let count = context.failed(&name);
    context.failure_count.with_label_values(&[error.reason()]).inc();
    // A conflict only means that we looked too early.
    let conflict = matches!(error, Error::Write(error) if error.code() == Some(409));
    let delay = if conflict { Duration::from_millis(200) } else { backoff(count) };
    tracing::warn!(cell = name, reason = error.reason(), %error, ?delay, "will be tried again");
    Action::requeue(delay)
}

fn backoff(count: u32) -> Duration {
    Duration::from_millis(250 << count.clamp(1, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_grows_and_has_an_end() {
        assert_eq!(backoff(1), Duration::from_millis(500));
        assert!(backoff(5) > backoff(4));
        assert_eq!(backoff(99), Duration::from_secs(64));
    }
}
