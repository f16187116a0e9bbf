//! What a step of an update asks for besides the objects themselves: the TrafficShift that takes the cell out, its end, and
//! the Events. The step is `rollout`'s to choose.

use bulkhead_crds::Cell;

use super::observe::Observed;
use super::shift::{self, Purpose};
use super::statements::Report;
use super::validate::Identity;
use super::{Context, Error};
use crate::rollout::Step;

/// Takes a cell out or lets it back in, as the step says, and tells of it.
///
/// # Errors
/// What may go away by itself.
pub(super) async fn follow(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    step: &Step,
    report: &mut Report,
) -> Result<(), Error> {
    let about = context.about(cell);
    let target = report.update_revision.clone().unwrap_or_default();
    match step {
        Step::TakeOut => {
            let _alone = context.beginning.lock().await;
            if shift::another_is_out(context, &observed.siblings, cell.name()).await? {
                report.step = Some(Step::Wait("another cell is being updated".to_owned()));
                return Ok(());
            }
            let reason = format!("update of cell {} to revision {target}", cell.name());
            if let Err(problem) = shift::make(context, &Identity::of(cell), Purpose::Update, &reason).await? {
                report.step = Some(Step::Wait(problem.message.clone()));
                report.held = Some(problem);
                return Ok(());
            }
            let note = format!("taken out of the routers' tables to be brought to {target}");
            context.writer.event(false, "UpdateStarted", note, &about).await;
        }
        Step::Update if report.wrote > 0 => {
            context
                .writer
                .event(false, "Updated", format!("its objects are of revision {target}"), &about)
                .await;
        }
        // Not in the pass that still corrected something: what was seen of its readiness is older than that.
        Step::BringBack if report.wrote == 0 => {
            if let Some(shift) = shift::find(observed, cell.name(), Purpose::Update) {
                shift::remove(context, shift).await?;
                let own = report.current_revision.clone().unwrap_or_default();
                let note = format!("runs with {own}; the routers bring it back step by step");
                context.writer.event(false, "UpdateFinished", note, &about).await;
            }
        }
        Step::BringBack | Step::Update | Step::Keep | Step::Wait(_) | Step::AwaitDrain | Step::AwaitReady => {
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::template::{Parameter, ParameterType};
    use bulkhead_crds::{Cell, CellTemplateSpec, TrafficShift};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use crate::cell::bring_up::bring_up;
    use crate::cell::observe::Observed;
    use crate::conditions::{state, statement};
    use crate::revision::{LAYOUT, Recipe, Revision};
    use crate::rollout::Step;
    use crate::{fixture, kinds};

    const SHIFTS: &str = "/apis/bulkhead.dev/v1alpha1/trafficshifts";

    /// An API server in which no cell is out.
    fn nobody_out() -> (kube::Client, fixture::Requests) {
        fixture::api_server(|line| {
            (line.strip_suffix(SHIFTS) == Some("GET ")).then(|| (200, json!({"metadata": {}, "items": []})))
        })
    }

    /// A revision whose Cells must give a value of that name, made by this version of Bulkhead.
    fn asking_for(value: &str, number: i64) -> Revision {
        let parameters =
            vec![Parameter { name: value.to_owned(), r#type: ParameterType::String, ..Parameter::default() }];
        let template = CellTemplateSpec { parameters, ..CellTemplateSpec::default() };
        Revision::new("t", Recipe { template, layout: LAYOUT, ..Recipe::default() }, number)
    }

    /// A Cell that runs with the first of these revisions, of which the second is the newest, with a workload in it; its
    /// value fits only what asks for `size`.
    fn between(own: &Revision, newest: &Revision) -> (Cell, Observed) {
        let (mut cell, mut observed) = fixture::running();
        cell.spec.values = [("size".to_owned(), json!("large"))].into();
        cell.status.get_or_insert_default().current_revision = Some(own.name.clone());
        observed.template = observed.template.map(|template| fixture::latest(template, newest));
        observed.revisions = vec![own.clone(), newest.clone()];
        let deployment = kinds::resource("apps", "v1", "Deployment", "deployments");
        observed.objects.extend([fixture::object(&deployment, "web")]);
        (cell, observed)
    }

    /// The operator's shift that takes that cell out for its update.
    fn shift(cell: &str) -> TrafficShift {
        let spec = json!({"cell": cell, "weight": 0, "reason": "update", "owner": "Operator"});
        TrafficShift::new(&format!("bulkhead-update-{cell}"), serde_json::from_value(spec).expect("is one"))
    }

    #[tokio::test]
    async fn a_value_that_only_the_newest_revision_knows_keeps_no_cell_from_its_update() {
        let (client, requests) = nobody_out();
        let (cell, observed) = between(&asking_for("colour", 1), &asking_for("size", 2));
        let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
        assert_eq!((report.problem, report.held, report.step), (None, None, Some(Step::TakeOut)));
        assert_eq!(report.current_revision, Some(asking_for("colour", 1).name));
        let writes = requests.writes();
        for made in ["/networkpolicies/default-deny", "/trafficshifts"] {
            assert!(writes.iter().any(|write| write.ends_with(made)), "{made} in {writes:?}");
        }
        let of_workload = |write: &String| write.contains("/deployments/") || write.starts_with("DELETE ");
        assert!(!writes.iter().any(of_workload), "{writes:?}");
    }

    #[tokio::test]
    async fn a_cell_that_no_revision_fits_any_more_is_not_kept_out() {
        let (client, requests) = nobody_out();
        let (cell, mut observed) = between(&asking_for("colour", 1), &asking_for("shape", 2));
        observed.shifts = vec![shift("a")];
        let context = fixture::context(client);
        let report = bring_up(&context, &cell, &observed).await.expect("is over");
        assert_eq!(report.problem.map(|problem| problem.reason), Some("InvalidValues"));
        assert!(report.wrote > 0, "its walls are put right first");
        let gone = format!("DELETE {SHIFTS}/bulkhead-update-a");
        assert!(!requests.writes().contains(&gone));
        observed.objects.extend(requests.applied());
        bring_up(&context, &cell, &observed).await.expect("is over");
        assert!(requests.writes().contains(&gone), "{:?}", requests.writes());
    }

    #[tokio::test]
    async fn a_cell_that_is_out_for_a_template_that_is_gone_comes_back_once_it_is_ready() {
        let gone = format!("DELETE {SHIFTS}/bulkhead-update-a");
        for (ready, step) in [(false, Step::AwaitReady), (true, Step::BringBack)] {
            let (client, requests) = nobody_out();
            let (mut cell, mut observed) = fixture::running();
            let conditions = state(&[], vec![statement("Ready", ready, "Test", "")], None, "now");
            cell.status.get_or_insert_default().conditions = conditions;
            (observed.template, observed.shifts) = (None, vec![shift("a")]);
            let context = fixture::context(client);
            bring_up(&context, &cell, &observed).await.expect("is over");
            observed.objects.extend(requests.applied());
            let report = bring_up(&context, &cell, &observed).await.expect("is over");
            assert_eq!(report.step, Some(step));
            assert_eq!(report.held.map(|problem| problem.reason), Some("TemplateNotFound"));
            assert_eq!(requests.writes().contains(&gone), ready);
        }
    }

    #[tokio::test]
    async fn a_cell_that_leaves_a_template_is_never_out_beside_one_that_stays_and_has_no_place_in_its_order()
    {
        let own = asking_for("colour", 1);
        let check = async |out: bool, deleted: bool, step: Step| {
            let listed: Vec<_> = out.then(|| shift("0")).into_iter().collect();
            let (client, _) = fixture::api_server(move |line| {
                let list = json!({"metadata": {}, "items": listed});
                (line.strip_suffix(SHIFTS) == Some("GET ")).then_some((200, list))
            });
            let (cell, mut observed) = between(&own, &asking_for("size", 2));
            let mut sibling = cell.clone();
            sibling.metadata.name = Some("0".to_owned());
            sibling.metadata.deletion_timestamp = deleted.then_some(Time(Timestamp::UNIX_EPOCH));
            sibling.spec.template = Some("another".to_owned());
            observed.siblings.push(sibling);
            let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
            assert_eq!(report.step, Some(step));
        };
        check(false, false, Step::TakeOut).await;
        check(true, false, Step::Wait("another cell is being updated".to_owned())).await;
        check(true, true, Step::TakeOut).await;
    }

    #[tokio::test]
    async fn an_update_whose_shift_cannot_be_made_waits_and_says_why() {
        let check = async |code, owner: &'static str, held, step: &str| {
            let (client, requests) = fixture::api_server(move |line| {
                match line.strip_suffix(SHIFTS) {
                Some("GET ") => Some((200, json!({"metadata": {}, "items": []}))),
                Some("POST ") => Some(fixture::failure(code, "no")),
                _ => line.ends_with("/bulkhead-update-a").then(|| {
                    let shift = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "TrafficShift",
                                       "metadata": {"name": "bulkhead-update-a"},
                                       "spec": {"cell": "b", "weight": 0, "reason": "theirs", "owner": owner}});
                    (200, shift)
                }),
            }
            });
            let (cell, mut observed) = fixture::running();
            let newer = Revision::new("t", Recipe { layout: LAYOUT, ..Recipe::default() }, 2);
            observed.template = observed.template.map(|template| fixture::latest(template, &newer));
            observed.revisions.push(newer);
            let report = bring_up(&fixture::context(client), &cell, &observed).await.expect("is over");
            assert_eq!(report.held.map(|problem| problem.reason), held, "{code} {owner}");
            let taken = format!("{:?}", report.step);
            assert!(taken.contains(step), "{taken}");
            assert_eq!(requests.events().contains(&"UpdateStarted".to_owned()), held.is_none());
        };
        check(409, "User", Some("ShiftNameTaken"), "Wait(\"TrafficShift bulkhead-update-a was not made")
            .await;
        check(403, "User", Some("ShiftRefused"), "Wait(\"the API server refuses the TrafficShift").await;
        check(404, "User", Some("ShiftNotMade"), "Wait(\"this cluster knows no TrafficShifts").await;
        // The store is a step behind: the operator itself made it.
        check(409, "Operator", None, "TakeOut").await;
    }
}
