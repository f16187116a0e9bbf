//! The way up of one Cell: namespace, then which revision is its own now, then everything in it. Joins the decisions of
//! `validate` and `rollout` with the writes of `namespace`, `contents` and `update`; reports what came of it.

use bulkhead_crds::Cell;
use jiff::Timestamp;

use super::destinations::Destinations;
use super::health;
use super::observe::Observed;
use super::shift::{self, Purpose};
use super::statements::Report;
use super::validate::{self, Problem};
use super::{Context, Error, contents, namespace, turn, update};
use crate::clock;
use crate::revision::Revision;
use crate::rollout::{self, Step};

/// Steps that end by themselves, so that looking again soon is worth it.
pub(super) fn is_under_way(step: &Step) -> bool {
    !matches!(step, Step::Keep | Step::Wait(_))
}

/// # Errors
/// What may go away by itself. What people must cure is in the report.
pub(super) async fn bring_up(context: &Context, cell: &Cell, observed: &Observed) -> Result<Report, Error> {
    let now = clock::now();
    let mut report = begin_report(context, cell, observed, now);
    let reserved = [context.config.namespace.as_str(), context.config.router_namespace()];
    if let Err(problem) = validate::admit(cell, &reserved, context.config.allow_endpoints) {
        report.problem = Some(problem);
        return Ok(report);
    }
    if let Some(left_over) = shift::find(observed, cell.name(), Purpose::Delete) {
        // Of an earlier Cell of this name.
        shift::remove(context, left_over).await?;
    }
    if report.external {
        return Ok(report);
    }
    let spread = validate::one_region(cell, &observed.nodes).err();
    if spread.is_some() && observed.objects.is_empty() {
        report.problem = spread;
        return Ok(report);
    }
    // What runs already is left as it is, and told.
    report.held = spread;
    let current = turn::current(cell, observed);
    if observed.namespace.is_none()
        && let Err(problem) = buildable(context, cell, observed, current)
    {
        // Nothing is made for what cannot be built, so nothing is left over of it.
        report.passing = problem.reason == "TemplateNotChecked";
        report.problem = Some(problem);
        return Ok(report);
    }
    if !namespace::ensure(context, cell, observed, &mut report).await? {
        return Ok(report);
    }
    let target = match turn::target(cell, observed) {
        Ok(target) => Some(target),
        Err(problem) if current.is_some() => {
            // What happens to a template is no matter of the cells that run with a revision of it.
            report.held = Some(problem);
            None
        }
        Err(problem) => {
            report.passing = problem.reason == "TemplateNotChecked";
            report.problem = Some(problem);
            None
        }
    };
    // Without a newest revision its own is where it goes, so that it comes back if it was out for another.
    let goal = target.or(current);
    let step = match goal {
        Some(goal) => {
            rollout::next(&turn::members(context, cell, observed, goal, now), cell.name(), &goal.name)
        }
        None => Step::Keep,
    };
    let revision = if step == Step::Update { target } else { current };
    report.update_revision = goal.map(|goal| goal.name.clone()).or(report.update_revision);
    report.step = Some(step.clone());
    if let Some(revision) = revision {
        let complete = contents::apply(context, cell, observed, revision, &mut report).await?;
        // What stands in the way of an older revision is no reason to stay at it.
        if !complete && target.is_some_and(|target| target.name == revision.name) {
            return Ok(report);
        }
        report.current_revision = Some(revision.name.clone());
    }
    if let Some(target) = target {
        explain_exclusion(context, cell, target, &mut report);
    }
    update::follow(context, cell, observed, &step, &mut report).await?;
    Ok(report)
}

fn buildable(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    current: Option<&Revision>,
) -> Result<(), Problem> {
    let check = |revision| validate::validate(cell, revision, &context.kinds).map(|_| ());
    if current.is_some_and(|current| check(current).is_ok()) {
        return Ok(());
    }
    check(turn::target(cell, observed)?)
}

fn begin_report(context: &Context, cell: &Cell, observed: &Observed, now: Timestamp) -> Report {
    let last = cell.status.clone().unwrap_or_default();
    let made = shift::find(observed, cell.name(), Purpose::Update);
    let traffic = shift::traffic(observed, cell.name(), made);
    let namespace = cell.namespace_name();
    Report {
        namespace: last.namespace,
        namespace_uid: last.namespace_uid,
        current_revision: last.current_revision,
        update_revision: last.update_revision,
        health: health::judge(&observed.objects, &observed.failures, |key, object| {
            context.memory.is_stale(&namespace, key, object)
        }),
        voices: observed.voices.clone(),
        objects: observed.objects.len(),
        weight: shift::weight_without_ours(cell, &observed.shifts, now),
        shifted: made.is_some(),
        drained: traffic.is_drained(),
        traffic,
        external: !cell.spec.endpoints.is_empty(),
        destinations: Destinations::of(cell, observed),
        ..Report::default()
    }
}

/// A cell that cannot be built from the newest revision runs on with its own, and says so.
fn explain_exclusion(context: &Context, cell: &Cell, target: &Revision, report: &mut Report) {
    if let Err(problem) = validate::validate(cell, target, &context.kinds) {
        report.held = Some(problem);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bulkhead_crds::condition::find;
    use bulkhead_crds::template::Parameter;
    use bulkhead_crds::{CellStatus, CellTemplate, CellTemplateSpec, CellTemplateStatus, names};
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::core::{PartialObjectMeta, PartialObjectMetaExt};
    use serde_json::json;

    use super::*;
    use crate::cell::observe::NamespaceSeen;
    use crate::cell::statements::compute;
    use crate::conditions::{state, statement};
    use crate::revision::{LAYOUT, Recipe};
    use crate::{fixture, kinds};

    fn node(region: &str) -> Arc<PartialObjectMeta<Node>> {
        let labels = [("topology.kubernetes.io/region".to_owned(), region.to_owned())].into();
        Arc::new(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }.into_response_partial())
    }

    #[tokio::test]
    async fn nothing_is_made_for_a_cell_that_could_span_regions() {
        let (client, requests) = fixture::api_server(|_| None);
        let (mut cell, observed) = fixture::running();
        cell.status = None;
        let observed = Observed {
            namespace: None,
            objects: [].into(),
            nodes: vec![node("eu-1"), node("us-1")],
            ..observed
        };
        let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
        assert_eq!(report.problem.map(|problem| problem.reason), Some("RegionRequired"));
        assert_eq!(requests.writes(), [""; 0]);
    }

    #[tokio::test]
    async fn a_cell_that_runs_already_is_kept_as_it_is_and_told_that_it_may_span_regions() {
        let run = async |nodes| {
            let (client, requests) = fixture::api_server(|_| None);
            let (cell, observed) = fixture::running();
            let observed = Observed { nodes, ..observed };
            let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
            assert_eq!(report.problem, None);
            (report.held.map(|problem| problem.reason), requests.writes())
        };
        let (held, as_ever) = run(vec![node("eu-1")]).await;
        assert_eq!(held, None);
        let (held, writes) = run(vec![node("eu-1"), node("us-1")]).await;
        assert_eq!(held, Some("RegionRequired"));
        assert_eq!(writes, as_ever);
    }

    /// What another version of Bulkhead made of that template, seen without its Deployment `web` and most of the rest.
    fn incomplete() -> (Cell, Observed) {
        let web =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}});
        let template = CellTemplateSpec { objects: vec![web], ..CellTemplateSpec::default() };
        let older = Revision::new("t", Recipe { template, ..Recipe::default() }, 1);
        let (mut cell, mut observed) = fixture::running();
        cell.status =
            Some(CellStatus { current_revision: Some(older.name.clone()), ..CellStatus::default() });
        observed.template = observed.template.map(|template| fixture::latest(template, &older));
        observed.revisions = vec![older];
        let runtime = kinds::resource("apps", "v1", "Deployment", "deployments");
        observed.objects = [fixture::object(&runtime, names::CELL_RUNTIME)].into();
        (cell, observed)
    }

    /// What the report says last of what is incomplete.
    fn last(report: &Report) -> &str {
        report.health.incomplete.last().map(String::as_str).unwrap_or_default()
    }

    /// A revision that no Cell without values can be built from.
    fn demanding() -> Revision {
        let parameters = vec![Parameter { name: "size".to_owned(), ..Parameter::default() }];
        let template = CellTemplateSpec { parameters, ..CellTemplateSpec::default() };
        Revision::new("t", Recipe { template, layout: LAYOUT, ..Recipe::default() }, 2)
    }

    #[tokio::test]
    async fn what_is_missing_is_made_although_another_version_of_bulkhead_made_the_rest() {
        let check = async |change: fn(&mut Observed), held| {
            let (client, requests) = fixture::api_server(|_| None);
            let (cell, mut observed) = incomplete();
            change(&mut observed);
            let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
            let writes = requests.writes();
            for made in ["/services/cell-runtime", "/networkpolicies/default-deny", "/deployments/web"] {
                assert!(writes.iter().any(|write| write.ends_with(made)), "{made} in {writes:?}");
            }
            assert!(!writes.iter().any(|write| write.ends_with("/deployments/cell-runtime")), "{writes:?}");
            assert_eq!(last(&report), "Deployment web was just made");
            assert_eq!(report.held.map(|problem| problem.reason), held);
        };
        check(|_| {}, None).await;
        check(|observed| observed.template = None, Some("TemplateNotFound")).await;
        let excluded = |observed: &mut Observed| {
            let newer = demanding();
            observed.template = observed.template.take().map(|template| fixture::latest(template, &newer));
            observed.revisions.push(newer);
        };
        check(excluded, Some("InvalidValues")).await;
    }

    #[tokio::test]
    async fn what_comes_after_a_refused_object_is_not_said_to_be_made() {
        let (client, requests) = fixture::api_server(|line| {
            let of_a_service = line.starts_with("PATCH ") && line.contains("/services/");
            of_a_service.then(|| fixture::failure(403, "no"))
        });
        let (cell, observed) = incomplete();
        let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
        assert_eq!(last(&report), "Deployment web is not made yet");
        assert_eq!(report.problem.map(|problem| problem.reason), Some("ApplyRefused"));
        assert!(!requests.writes().iter().any(|write| write.ends_with("/deployments/web")));
    }

    #[tokio::test]
    async fn nothing_is_made_in_a_namespace_that_is_being_deleted() {
        let (client, requests) = fixture::api_server(|_| None);
        let (cell, observed) = fixture::running();
        let terminating = NamespaceSeen { terminating: true, ..fixture::namespace(&cell) };
        let observed = Observed { namespace: Some(terminating), ..observed };
        let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
        assert_eq!(report.problem.map(|problem| problem.reason), Some("NamespaceTerminating"));
        assert_eq!(requests.writes(), [""; 0]);
    }

    #[tokio::test]
    async fn no_cell_takes_the_namespace_of_the_operator_or_of_the_routers_whatever_marks_it_has() {
        for (operator, routers) in [("cell-a", None), ("bulkhead-system", Some("cell-a"))] {
            let (client, requests) = fixture::api_server(|_| None);
            let mut context = fixture::context(client);
            context.config.namespace = operator.to_owned();
            context.config.router_namespace = routers.map(ToOwned::to_owned);
            let (cell, observed) = fixture::running();
            let report = bring_up(&context, &cell, &observed).await.expect("is over");
            assert_eq!(report.problem.map(|problem| problem.reason), Some("NamespaceReserved"));
            assert_eq!(requests.writes(), [""; 0]);
        }
    }

    #[tokio::test]
    async fn a_cell_without_a_template_to_be_made_from_gets_no_namespace_and_says_why() {
        let refused = statement("Stalled", true, "InvalidTemplate", "spec.objects[0].kind: no");
        for (stalled, reason, words) in [
            (None, "TemplateNotFound", "there is no CellTemplate t;"),
            (Some(refused), "InvalidTemplate", "spec.objects[0].kind: no"),
        ] {
            let (client, requests) = fixture::api_server(|_| None);
            let mut template = CellTemplate::new("t", CellTemplateSpec::default());
            let conditions = state(&[], stalled.clone().into_iter().collect(), None, "now");
            template.status = Some(CellTemplateStatus { conditions, ..CellTemplateStatus::default() });
            let template = stalled.map(|_| template);
            let observed = Observed { template, ..Observed::default() };
            let (context, cell) = (fixture::context(client), fixture::cell());
            let report = bring_up(&context, &cell, &observed).await.expect("is over");
            let status = compute(&cell, &report, Timestamp::UNIX_EPOCH);
            for (r#type, holds) in [("Provisioned", false), ("Ready", false), ("Stalled", true)] {
                let condition = find(&status.conditions, r#type).expect("is stated");
                assert_eq!((condition.status, condition.reason.as_str()), (holds.into(), reason));
                assert!(condition.message.contains(words), "{condition:?}");
            }
            assert_eq!(requests.writes(), [""; 0]);
        }
    }
}
