//! Everything in the namespace of one Cell, brought to what its revision says, or only to what may change now. Which revision that
//! is, is decided in `bring_up`.

use bulkhead_crds::Cell;
use kube::api::DynamicObject;

use super::desired::{self, Installation, Key, Object};
use super::health::{self, Health};
use super::observe::Observed;
use super::statements::Report;
use super::validate::{self, Identity};
use super::{Context, Error, apply};
use crate::revision::{LAYOUT, Revision};
use crate::rollout::Step;

/// Applies everything in the namespace; only the walls where the Cell's values do not fit the revision. False when
/// something stands in the way.
pub(super) async fn apply(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    revision: &Revision,
    report: &mut Report,
) -> Result<bool, Error> {
    let (valid, unfit) = match validate::validate(cell, revision, &context.kinds) {
        Ok(valid) => (valid, None),
        Err(problem) => (validate::without_workload(cell, revision), Some(problem)),
    };
    let installation = Installation {
        operator_namespace: context.config.namespace.clone(),
        router_namespace: context.config.router_namespace().to_owned(),
        api_server: observed.api_server.clone(),
        tunnels: observed.tunnels,
    };
    let wanted = desired::objects(&valid, &installation, &context.kinds);
    let changes = changes_now(revision, report.step.as_ref(), observed.orchestrator().is_some());
    let applied = if changes && unfit.is_none() {
        apply::apply(context, &Identity::of(cell), &wanted, observed).await?
    } else {
        // To make what somebody removed moves no pod that runs.
        let is_wall = |object: &Object| desired::is_wall(&object.key());
        let missing = |object: &Object| unfit.is_none() && !observed.objects.contains_key(&object.key());
        let now: Vec<_> =
            wanted.iter().filter(|object| is_wall(object) || missing(object)).cloned().collect();
        apply::apply_alone(context, &Identity::of(cell), &now, observed).await?
    };
    if unfit.is_none() {
        report.objects = wanted.len();
    }
    report.health = look_again(context, cell, observed, &wanted, &applied.wrote);
    report.wrote = applied.wrote.len() + applied.pruned.len();
    let about = context.about(cell);
    for key in &applied.drifted {
        let note = format!("{} {} was changed by somebody else and is corrected", key.kind, key.name);
        context.writer.event(true, "DriftCorrected", note, &about).await;
    }
    for key in &applied.pruned {
        let note = format!("removed {} {}, which is no longer asked for", key.kind, key.name);
        context.writer.event(false, "Pruned", note, &about).await;
    }
    // Its turn cures what only the revision that it leaves cannot have.
    report.problem = applied.problem.or(unfit.filter(|_| !report.step.as_ref().is_some_and(leads_on)));
    Ok(report.problem.is_none())
}

/// Whether the step is on the way to a revision that the cell can be built from.
fn leads_on(step: &Step) -> bool {
    matches!(step, Step::TakeOut | Step::Wait(_) | Step::AwaitDrain)
}

/// Whether everything in the cell may be brought to what is desired. What another version of Bulkhead made stays as it is
/// until the cell is out of traffic for its update, but for walls and what is missing; a cell without an orchestrator has
/// nothing to lose.
fn changes_now(revision: &Revision, step: Option<&Step>, has_orchestrator: bool) -> bool {
    revision.recipe.layout == LAYOUT || step == Some(&Step::Update) || !has_orchestrator
}

/// The health of the workload as it is known after applying: what was just made or changed is not complete.
fn look_again(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    wanted: &[Object],
    wrote: &[Key],
) -> Health {
    let namespace = cell.namespace_name();
    let stale = |key: &Key, object: &DynamicObject| context.memory.is_stale(&namespace, key, object);
    let mut health = health::judge(&observed.objects, &observed.failures, stale);
    for key in wanted.iter().map(Object::key).filter(health::runs_pods) {
        if !observed.objects.contains_key(&key) {
            let state = if wrote.contains(&key) { "was just made" } else { "is not made yet" };
            health.workloads += 1;
            health.incomplete.push(format!("{} {} {state}", key.kind, key.name));
        }
    }
    health
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::Recipe;

    #[test]
    fn what_another_version_of_bulkhead_made_changes_only_in_its_turn() {
        let of = |layout| Revision { recipe: Recipe { layout, ..Recipe::default() }, ..Revision::default() };
        let (ours, older) = (of(LAYOUT), of(LAYOUT - 1));
        for step in [None, Some(Step::Keep), Some(Step::Wait("text".to_owned())), Some(Step::AwaitDrain)] {
            assert!(changes_now(&ours, step.as_ref(), true), "drift is corrected: {step:?}");
            assert!(!changes_now(&older, step.as_ref(), true), "{step:?}");
            assert!(changes_now(&older, step.as_ref(), false), "{step:?}");
        }
        assert!(changes_now(&older, Some(&Step::Update), true));
    }
}
