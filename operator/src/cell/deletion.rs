//! How a Cell goes: out of every router's table, drained, its workload, its namespace, and only then the object itself.
//! `next` decides, purely; `advance` does it.

use std::time::Duration;

use bulkhead_crds::{Cell, DeletionPolicy, names};
use kube::runtime::controller::Action;
use serde_json::json;

use super::desired::ANNOTATION_RETAINED;
use super::observe::Observed;
use super::shift::{self, Purpose};
use super::validate::{Identity, Ownership, ownership};
use super::{Context, Error, apply, status};
use crate::clock;
use crate::kinds;

/// What a deleted Cell looks like now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct View {
    /// The namespace is ours and exists.
    owned: bool,
    terminating: bool,
    retained: bool,
    policy: DeletionPolicy,
    shifted: bool,
    drained: bool,
    /// Objects of ours that hold no data.
    objects: usize,
    /// Names of the cell's own pods that have not ended.
    pods: Vec<String>,
    /// Runs elsewhere, so that there is nothing here to remove.
    external: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    MakeShift,
    AwaitDrain,
    RemoveWorkload,
    AwaitPods,
    MarkRetained,
    DeleteNamespace,
    AwaitNamespace,
    Finish,
}

fn next(view: &View) -> Step {
    // A cell without pods has nothing under way, whatever the routers say or fail to say.
    let serves = view.external || (view.owned && !view.pods.is_empty() && !view.terminating);
    if serves && !view.drained {
        return if view.shifted { Step::AwaitDrain } else { Step::MakeShift };
    }
    if !view.owned {
        return Step::Finish;
    }
    if view.terminating {
        return Step::AwaitNamespace;
    }
    if view.objects > 0 {
        return Step::RemoveWorkload;
    }
    // Whatever the policy: they end by themselves now, and the walls must outlast them.
    if !view.pods.is_empty() {
        return Step::AwaitPods;
    }
    match view.policy {
        DeletionPolicy::Delete => Step::DeleteNamespace,
        DeletionPolicy::Retain if view.retained => Step::Finish,
        DeletionPolicy::Retain => Step::MarkRetained,
    }
}

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
    let view = View {
        owned: matches!(whose, Ownership::Ours | Ownership::Terminating),
        terminating: whose == Ownership::Terminating,
        retained: observed
            .namespace
            .as_ref()
            .is_some_and(|seen| seen.annotations.contains_key(ANNOTATION_RETAINED)),
        policy: cell.spec.deletion_policy,
        shifted: made.is_some(),
        drained: made.is_some() && shift::is_drained(&traffic, made, observed.drain_timeout_ms, clock::now()),
        objects: left.len(),
        pods: observed.pods.clone(),
        external: !cell.spec.endpoints.is_empty(),
    };
    let step = next(&view);
    tracing::debug!(cell = identity.name, ?step, ?view, "deletion");
    let about = context.about(cell);
    let uid = observed.namespace.as_ref().map(|seen| seen.uid.clone()).unwrap_or_default();
    match step {
        Step::MakeShift => {
            shift::make(context, &identity, Purpose::Delete, "the Cell is being deleted").await?;
            context
                .writer
                .event(
                    false,
                    "Draining",
                    "taken out of the routers' tables for its deletion".to_owned(),
                    &about,
                )
                .await;
        }
        Step::AwaitDrain | Step::AwaitPods | Step::AwaitNamespace => {}
        Step::RemoveWorkload => {
            for (key, uid) in left {
                let kind = context.kinds.iter().find(|kind| kind.resource.kind == key.kind);
                let Some(kind) = kind else { continue };
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
    status::write_leaving(context, cell, observed, &traffic, &message).await?;
    Ok(Action::requeue(Duration::from_secs(1)))
}

fn explain(step: Step, view: &View, traffic: &crate::routing_status::snapshot::CellTraffic) -> String {
    match step {
        Step::MakeShift | Step::AwaitDrain => {
            let holding = if traffic.holding.is_empty() {
                "the routers".to_owned()
            } else {
                traffic.holding.join(", ")
            };
            format!("deletion waits for {holding}: {} under way", traffic.in_flight)
        }
        Step::RemoveWorkload => "deletion waits for the workload to be removed".to_owned(),
        Step::AwaitPods => format!("deletion waits for pods to end: {}", few(&view.pods)),
        Step::MarkRetained | Step::Finish => "deletion is at its end".to_owned(),
        Step::DeleteNamespace | Step::AwaitNamespace => "deletion waits for the namespace to end".to_owned(),
    }
}

/// The first names, and how many more there are.
fn few(names: &[String]) -> String {
    const NAMED: usize = 5;
    match names.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..NAMED].join(", ")),
    }
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
    use super::*;

    fn serving() -> View {
        View { owned: true, objects: 9, pods: vec!["web-1".to_owned()], ..View::default() }
    }

    #[track_caller]
    fn check(view: &View, expected: Step) {
        assert_eq!(next(view), expected, "{view:?}");
    }

    #[test]
    fn a_cell_leaves_traffic_before_anything_of_it_is_removed() {
        check(&serving(), Step::MakeShift);
        check(&View { shifted: true, ..serving() }, Step::AwaitDrain);
        check(&View { shifted: true, drained: true, ..serving() }, Step::RemoveWorkload);
        check(&View { shifted: true, drained: true, objects: 0, ..serving() }, Step::AwaitPods);
    }

    #[test]
    fn the_namespace_is_kept_or_removed_as_the_policy_says() {
        let empty = View { shifted: true, drained: true, objects: 0, pods: vec![], ..serving() };
        check(&empty, Step::MarkRetained);
        check(&View { retained: true, ..empty.clone() }, Step::Finish);
        let delete = View { policy: DeletionPolicy::Delete, ..empty };
        check(&delete, Step::DeleteNamespace);
        check(&View { terminating: true, ..delete.clone() }, Step::AwaitNamespace);
        check(&View { owned: false, terminating: false, ..delete }, Step::Finish);
    }

    #[test]
    fn a_cell_whose_pods_are_gone_is_not_waited_for() {
        check(&View { pods: vec![], ..serving() }, Step::RemoveWorkload);
        check(&View { terminating: true, ..serving() }, Step::AwaitNamespace);
    }

    #[test]
    fn the_pods_that_are_waited_for_are_named() {
        let pods = (1..=7).map(|number| format!("web-{number}")).collect();
        let waiting = View { shifted: true, drained: true, objects: 0, pods, ..serving() };
        let text = explain(next(&waiting), &waiting, &Default::default());
        assert_eq!(text, "deletion waits for pods to end: web-1, web-2, web-3, web-4, web-5 and 2 more");
        let last = View { pods: vec!["web-7".to_owned()], ..waiting };
        assert_eq!(explain(next(&last), &last, &Default::default()), "deletion waits for pods to end: web-7");
    }

    #[test]
    fn a_namespace_that_is_not_ours_is_never_touched() {
        check(&View { owned: false, ..serving() }, Step::Finish);
    }

    #[test]
    fn a_cell_elsewhere_is_drained_and_nothing_more() {
        let external = View { external: true, ..View::default() };
        check(&external, Step::MakeShift);
        check(&View { shifted: true, ..external.clone() }, Step::AwaitDrain);
        check(&View { shifted: true, drained: true, ..external }, Step::Finish);
    }
}
