//! Takes a deleted Cell's steps: out of every router's table, drained, its workload, its namespace, and only then the
//! object itself. Which is next is `way_down`'s.

use std::time::Duration;

use bulkhead_crds::{Cell, names};
use jiff::Timestamp;
use kube::runtime::controller::Action;
use serde_json::json;

use super::desired::ANNOTATION_RETAINED;
use super::observe::Observed;
use super::shift::{self, Purpose};
use super::validate::{Identity, Ownership, Problem, ownership};
use super::way_down::{Step, View, explain, next};
use super::{Context, Error, apply, status};
use crate::clock;
use crate::kinds;
use crate::routing_status::snapshot::CellTraffic;

/// Takes the next step of a deleted Cell.
///
/// # Errors
/// What may go away by itself.
pub(super) async fn advance(context: &Context, cell: &Cell, observed: &Observed) -> Result<Action, Error> {
    let identity = Identity::of(cell);
    if !cell
        .metadata
        .finalizers
        .as_ref()
        .is_some_and(|all| all.iter().any(|one| one == names::FINALIZER_DRAIN))
    {
        return Ok(Action::await_change());
    }
    let made = shift::find(observed, &identity.name, Purpose::Delete);
    let traffic = shift::traffic(observed, &identity.name, made);
    let whose = ownership(cell, observed.namespace.as_ref());
    let left = apply::without_data(context, observed);
    let mut view = View {
        owned: matches!(whose, Ownership::Ours | Ownership::Terminating),
        terminating: whose == Ownership::Terminating,
        retained: observed
            .namespace
            .as_ref()
            .is_some_and(|seen| seen.annotations.contains_key(ANNOTATION_RETAINED)),
        policy: cell.spec.deletion_policy,
        shifted: made.is_some(),
        drained: made.is_some()
            && shift::is_drained(&traffic, shift::made_at(made), observed.drain_timeout_ms, clock::now()),
        objects: left.len(),
        pods: observed.pods.clone(),
        external: !cell.spec.endpoints.is_empty(),
    };
    let about = context.about(cell);
    let mut step = next(&view);
    let mut untold = None;
    if step == Step::MakeShift
        && let Err(problem) = make_shift(context, cell, observed).await?
    {
        (view.shifted, view.drained) = (true, is_over(&problem, &traffic, cell, observed, clock::now()));
        untold = Some(problem);
        step = next(&view);
    }
    tracing::debug!(cell = identity.name, ?step, ?view, "deletion");
    let uid = observed.namespace.as_ref().map(|seen| seen.uid.clone()).unwrap_or_default();
    match step {
        Step::MakeShift | Step::AwaitDrain | Step::AwaitPods | Step::AwaitNamespace => {}
        Step::RemoveWorkload => {
            for (key, uid) in left {
                let Some(kind) = context.kinds.of_group(&key.group, &key.kind) else { continue };
                let uid = uid.as_str().unwrap_or_default();
                context.writer.delete(&kind.resource, Some(&identity.namespace), &key.name, uid).await?;
            }
            context
                .writer
                .event(false, "WorkloadRemoved", "drained; its workload is removed".to_owned(), &about)
                .await;
        }
        Step::MarkRetained => {
            let version =
                observed.namespace.as_ref().map(|seen| seen.resource_version.as_str()).unwrap_or_default();
            let marks = json!({"annotations": {ANNOTATION_RETAINED: "true"}});
            context.writer.merge_metadata(&kinds::namespace(), &identity.namespace, version, &marks).await?;
            let note = format!(
                "namespace {} is kept with its volumes and Secrets; a new Cell of this name takes it with the annotation {}={uid}",
                identity.namespace,
                names::ANNOTATION_ADOPT_NAMESPACE
            );
            context.writer.event(false, "NamespaceRetained", note, &about).await;
        }
        Step::DeleteNamespace => {
            context.writer.delete(&kinds::namespace(), None, &identity.namespace, &uid).await?;
            let note = format!("namespace {} is deleted with all that is in it", identity.namespace);
            context.writer.event(false, "NamespaceDeleted", note, &about).await;
        }
        Step::Finish => return finish(context, cell, observed).await,
    }
    let message = explain(step, &view, &traffic);
    status::write_leaving(context, cell, observed, &traffic, &message, untold).await?;
    Ok(Action::requeue(Duration::from_secs(1)))
}

/// Takes the cell out of every router's table. A problem where no shift can be made, which alone is no reason to keep a
/// Cell that somebody deleted: routers see its deletion itself.
async fn make_shift(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
) -> Result<Result<(), Problem>, Error> {
    let made =
        shift::make(context, &Identity::of(cell), Purpose::Delete, "the Cell is being deleted").await?;
    if made.is_ok() {
        let note = "taken out of the routers' tables for its deletion".to_owned();
        context.writer.event(false, "Draining", note, &context.about(cell)).await;
    }
    Ok(made.map_err(|problem| {
        let seconds = observed.drain_timeout_ms / 1000;
        let wait = match problem.reason {
            shift::KIND_UNKNOWN => format!("The routers are waited for {seconds} s at most"),
            _ => format!("The cell is removed once no router sends to it, {seconds} s after its deletion at the earliest if anything is still under way"),
        };
        Problem::new(problem.reason, format!("{problem}. {wait}"))
    }))
}

/// Whether the wait for routers that no shift tells is over. Where the cluster has lost the kind, they may not see that the
/// Cell is deleted either, and have the drain time-out.
fn is_over(
    problem: &Problem,
    traffic: &CellTraffic,
    cell: &Cell,
    observed: &Observed,
    now: Timestamp,
) -> bool {
    let deleted = cell.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let timeout = observed.drain_timeout_ms;
    shift::is_drained(traffic, deleted, timeout, now)
        || (problem.reason == shift::KIND_UNKNOWN && shift::has_passed(timeout, deleted, now))
}

/// The Cell goes first and its shifts after it: the other way round, routers would see it without a shift for a moment.
async fn finish(context: &Context, cell: &Cell, observed: &Observed) -> Result<Action, Error> {
    let finalizers: Vec<&String> =
        cell.metadata.finalizers.iter().flatten().filter(|one| *one != names::FINALIZER_DRAIN).collect();
    let version = cell.metadata.resource_version.as_deref().unwrap_or_default();
    context
        .writer
        .merge_metadata(&context.cell_resource(), cell.name(), version, &json!({"finalizers": finalizers}))
        .await?;
    for purpose in [Purpose::Delete, Purpose::Update] {
        if let Some(shift) = shift::find(observed, cell.name(), purpose) {
            shift::remove(context, shift).await?;
        }
    }
    context.memory.forget_namespace(&cell.namespace_name());
    Ok(Action::await_change())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bulkhead_crds::condition::find;
    use bulkhead_crds::{Condition, DeletionPolicy};
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::CellServing;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::cell::observe::NamespaceSeen;
    use crate::fixture::{self, Requests};
    use crate::kinds::Kinds;
    use crate::routing_status::snapshot::Snapshot;

    /// Deleted at that time, with all that is in it.
    fn deleted(at: &str) -> Cell {
        let mut cell = fixture::cell();
        cell.spec.deletion_policy = DeletionPolicy::Delete;
        cell.metadata.deletion_timestamp = Some(Time(at.parse().expect("a time")));
        cell
    }

    #[tokio::test]
    async fn nothing_is_written_into_a_namespace_that_is_being_deleted_already() {
        let (client, requests) = fixture::api_server(|_| None);
        let cell = deleted("2020-01-01T00:00:00Z");
        let account = kinds::resource("", "v1", "ServiceAccount", "serviceaccounts");
        let observed = Observed {
            namespace: Some(NamespaceSeen { terminating: true, ..fixture::namespace(&cell) }),
            objects: [fixture::object(&account, names::CELL_RUNTIME)].into(),
            pods: vec!["one".to_owned(), "two".to_owned()],
            ..Observed::default()
        };
        advance(&fixture::context(client), &cell, &observed).await.expect("waits");
        assert_eq!(requests.writes(), ["PATCH /apis/bulkhead.dev/v1alpha1/cells/a/status"]);
    }

    #[tokio::test]
    async fn objects_of_two_kinds_of_one_name_are_both_removed() {
        let (client, requests) = fixture::api_server(|_| None);
        let mut context = fixture::context(client);
        let known = kinds::resource("batch", "v1", "Job", "jobs");
        let added = kinds::resource("batch.volcano.sh", "v1alpha1", "Job", "jobs");
        context.kinds = Kinds::new(std::slice::from_ref(&added));
        let cell = deleted("2020-01-01T00:00:00Z");
        let observed = Observed {
            namespace: Some(fixture::namespace(&cell)),
            objects: [fixture::object(&known, "train"), fixture::object(&added, "train")].into(),
            ..Observed::default()
        };
        advance(&context, &cell, &observed).await.expect("goes on");
        let removed = [
            "DELETE /apis/batch/v1/namespaces/cell-a/jobs/train",
            "DELETE /apis/batch.volcano.sh/v1alpha1/namespaces/cell-a/jobs/train",
        ];
        assert_eq!(requests.writes()[..2], removed);
    }

    const SHIFTS: &str = "POST /apis/bulkhead.dev/v1alpha1/trafficshifts";
    const STATUS: &str = "PATCH /apis/bulkhead.dev/v1alpha1/cells/a/status";

    /// One step of a Cell that was deleted long ago and has pods, where making its shift fails with that code.
    async fn without_a_shift(code: u16, drain_timeout_ms: i64, snapshot: &Snapshot) -> Requests {
        let (client, requests) = fixture::api_server(move |line| match line {
            SHIFTS => Some(fixture::failure(code, "no")),
            "GET /apis/bulkhead.dev/v1alpha1/trafficshifts/bulkhead-delete-a" => {
                let shift = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "TrafficShift",
                                   "metadata": {"name": "bulkhead-delete-a"},
                                   "spec": {"cell": "b", "weight": 0, "reason": "theirs", "owner": "User"}});
                Some((200, shift))
            }
            _ => None,
        });
        let cell = deleted("2020-01-01T00:00:00Z");
        let account = kinds::resource("", "v1", "ServiceAccount", "serviceaccounts");
        let observed = Observed {
            namespace: Some(fixture::namespace(&cell)),
            objects: [fixture::object(&account, names::CELL_RUNTIME)].into(),
            pods: vec!["one".to_owned(), "two".to_owned()],
            snapshot: Arc::new(snapshot.clone()),
            drain_timeout_ms,
            ..Observed::default()
        };
        advance(&fixture::context(client), &cell, &observed).await.expect("goes on");
        requests
    }

    /// A router that gives the cell that weight and has something under way in it.
    fn router(effective_weight: u32) -> Snapshot {
        let seen = CellServing { r#in: true, effective_weight, in_flight: 1, ..CellServing::default() };
        let serving = Serving { cells: [("a".to_owned(), seen)].into(), ..Serving::default() };
        let pod = fixture::router_pod("r-0", serving);
        Snapshot { asked: true, routers: vec![pod] }
    }

    #[tokio::test]
    async fn a_cell_whose_shift_cannot_be_made_waits_for_the_routers_all_the_same_and_says_why() {
        for (code, reason, words) in [
            (404, "ShiftNotMade", "this cluster knows no TrafficShifts"),
            (409, "ShiftNameTaken", "TrafficShift bulkhead-delete-a was not made by the operator"),
            (422, "ShiftRefused", "the API server refuses the TrafficShift"),
        ] {
            let waiting = without_a_shift(code, i64::MAX, &router(0)).await;
            assert_eq!(waiting.writes(), [SHIFTS, STATUS]);
            let conditions = waiting.body(STATUS)["status"]["conditions"].clone();
            let conditions: Vec<Condition> = serde_json::from_value(conditions).expect("are some");
            let stalled = find(&conditions, "Stalled").expect("is stated");
            assert_eq!((stalled.status, stalled.reason.as_str()), (true.into(), reason));
            assert!(stalled.message.starts_with(words), "{stalled:?}");
            assert_eq!(waiting.events(), [reason]);
        }
    }

    #[tokio::test]
    async fn a_cell_whose_shift_cannot_be_made_goes_once_no_router_sends_to_it() {
        const REMOVED: &str = "DELETE /api/v1/namespaces/cell-a/serviceaccounts/cell-runtime";
        let check = async |code, snapshot: &Snapshot, expected: &[&str]| {
            assert_eq!(without_a_shift(code, 30_000, snapshot).await.writes(), expected, "{code}");
        };
        for code in [404, 409, 422] {
            check(code, &router(0), &[SHIFTS, REMOVED, STATUS]).await;
        }
        check(409, &router(100), &[SHIFTS, STATUS]).await;
        check(422, &router(100), &[SHIFTS, STATUS]).await;
        // Routers that can watch nothing any more never take it out.
        check(404, &router(100), &[SHIFTS, REMOVED, STATUS]).await;
    }
}
