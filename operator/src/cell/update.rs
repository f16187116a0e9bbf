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
                let note = format!("Ready with {target}; the routers bring it back step by step");
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
    use serde_json::json;

    use crate::cell::bring_up::bring_up;
    use crate::fixture;
    use crate::revision::{LAYOUT, Recipe, Revision};

    #[tokio::test]
    async fn an_update_whose_shift_cannot_be_made_waits_and_says_why() {
        const SHIFTS: &str = "/apis/bulkhead.dev/v1alpha1/trafficshifts";
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
