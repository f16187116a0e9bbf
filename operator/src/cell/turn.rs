//! Where a cell and its siblings stand between revisions: from what was observed to the values that `rollout` decides on.
//! Pure.

use bulkhead_crds::condition::{find, is_true};
use bulkhead_crds::{Cell, ConditionStatus, names};
use jiff::Timestamp;
use kube::ResourceExt;

use super::Context;
use super::observe::Observed;
use super::shift::{self, Purpose};
use super::validate::{self, Problem};
use crate::revision::{self, Revision};
use crate::rollout::Member;
use crate::template::controller::REVISION_REFUSED;

/// The newest accepted revision of the Cell's template.
pub(super) fn target<'a>(cell: &Cell, observed: &'a Observed) -> Result<&'a Revision, Problem> {
    let Some(template) = &observed.template else {
        let name = cell.spec.template.as_deref().unwrap_or_default();
        let text = format!("there is no CellTemplate {name}; make it, or name another in spec.template");
        return Err(Problem::new("TemplateNotFound", text));
    };
    let latest = template.status.as_ref().and_then(|status| status.latest_revision.as_deref());
    let found = observed.revisions.iter().find(|revision| Some(revision.name.as_str()) == latest);
    if let Some(found) = found {
        return Ok(found);
    }
    let conditions = template.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match find(conditions, "Stalled") {
        Some(stalled) if stalled.status == ConditionStatus::True => {
            let reason =
                if stalled.reason == REVISION_REFUSED { REVISION_REFUSED } else { "InvalidTemplate" };
            let text = format!(
                "CellTemplate {} is not accepted, so nothing new is made from it: {}",
                template.name_any(),
                stalled.message
            );
            Err(Problem::new(reason, text))
        }
        _ => Err(Problem::new(
            "TemplateNotChecked",
            format!("CellTemplate {} is being checked", template.name_any()),
        )),
    }
}

/// The revision that the cell's objects were made from.
pub(super) fn current<'a>(cell: &Cell, observed: &'a Observed) -> Option<&'a Revision> {
    let name = at(cell, observed)?;
    observed.revisions.iter().find(|revision| revision.name == name)
}

/// Whether two Cells are, or by their revisions still are, of one template, so that they are never out for an update at
/// the same time.
pub(super) fn share_a_template(one: &Cell, other: &Cell) -> bool {
    templates(one).iter().any(|template| template.is_some() && templates(other).contains(template))
}

/// The template that the Cell names, and that of the revision that it has.
fn templates(cell: &Cell) -> [Option<&str>; 2] {
    let at = cell.status.as_ref().and_then(|status| status.current_revision.as_deref());
    [cell.spec.template.as_deref(), at.and_then(revision::template_in)]
}

/// Its name: as status has it, or, where status was lost, as the label of its orchestrator has it.
fn at(cell: &Cell, observed: &Observed) -> Option<String> {
    if let Some(name) = cell.status.as_ref().and_then(|status| status.current_revision.clone()) {
        return Some(name);
    }
    let hash = observed.orchestrator()?.metadata.labels.as_ref()?.get(names::LABEL_REVISION)?;
    observed.revisions.iter().find(|revision| revision.hash == *hash).map(|revision| revision.name.clone())
}

pub(super) fn members(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    target: &Revision,
    now: Timestamp,
) -> Vec<Member> {
    let of_this = |sibling: &Cell| sibling.name() == cell.name();
    // Cells of another template have an order of their own. The store may be a step behind the object that we were called
    // with.
    let same = |sibling: &&Cell| sibling.spec.template == cell.spec.template && !of_this(sibling);
    let siblings = observed.siblings.iter().filter(same).chain([cell]);
    siblings
        .map(|sibling| {
            let mut member = member(context, sibling, observed, target, now);
            if of_this(sibling) {
                member.at = at(cell, observed);
            }
            member
        })
        .collect()
}

fn member(context: &Context, cell: &Cell, observed: &Observed, target: &Revision, now: Timestamp) -> Member {
    let name = cell.name();
    let conditions = cell.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let at = cell.status.as_ref().and_then(|status| status.current_revision.clone());
    let made = shift::find(observed, name, Purpose::Update);
    let traffic = shift::traffic(observed, name, made);
    let weight = shift::weight_without_ours(cell, &observed.shifts, now);
    let outdated = at.as_deref().is_some_and(|at| at != target.name);
    Member {
        name: name.to_owned(),
        ready: is_true(conditions, "Ready"),
        shifted: made.is_some(),
        drained: shift::is_drained(&traffic, shift::made_at(made), observed.drain_timeout_ms, now),
        takes_traffic: weight > 0,
        // No router has it in its table: there is nothing that could come back.
        full: made.is_none()
            && (traffic.has_full(weight) || (traffic.known && traffic.effective_weight.is_none())),
        excluded: outdated && validate::validate(cell, target, &context.kinds).is_err(),
        leaving: cell.metadata.deletion_timestamp.is_some(),
        at,
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{CellSpec, CellTemplate, CellTemplateSpec, CellTemplateStatus};

    use super::*;
    use crate::conditions::{state, statement};
    use crate::fixture;

    #[test]
    fn cells_share_the_template_that_they_name_and_that_of_their_revision() {
        let cell = |template: &str, at: Option<&str>| {
            let mut cell = fixture::cell();
            cell.spec.template = Some(template.to_owned());
            cell.status.get_or_insert_default().current_revision = at.map(ToOwned::to_owned);
            cell
        };
        let moving = cell("new", Some("old-one-bcdfghjklm"));
        for (other, expected) in [
            (cell("new", None), true),
            (cell("old-one", None), true),
            (cell("old-one", Some("old-one-tvwxzbcdfg")), true),
            (cell("third", Some("old-one-bcdfghjklm")), true),
            (cell("third", Some("third-bcdfghjklm")), false),
            (cell("old", None), false),
        ] {
            assert_eq!(share_a_template(&moving, &other), expected, "{other:?}");
            assert_eq!(share_a_template(&other, &moving), expected, "{other:?}");
        }
        let outside = Cell::new("outside", CellSpec::default());
        assert!(!share_a_template(&outside, &outside));
    }

    #[test]
    fn a_cell_of_a_template_that_is_not_accepted_says_why_it_is_not() {
        let check = |stalled: Option<&str>, expected: &str| {
            let mut template = CellTemplate::new("t", CellTemplateSpec::default());
            let statements = stalled.map(|reason| statement("Stalled", true, reason, "the words"));
            let conditions = state(&[], statements.into_iter().collect(), None, "now");
            template.status = Some(CellTemplateStatus { conditions, ..CellTemplateStatus::default() });
            let observed = Observed { template: Some(template), ..Observed::default() };
            let problem = target(&fixture::cell(), &observed).expect_err("there is no revision");
            assert_eq!(problem.reason, expected, "{problem}");
            assert_eq!(problem.message.ends_with(": the words"), stalled.is_some(), "{problem}");
        };
        let missing = target(&fixture::cell(), &Observed::default()).expect_err("there is no template");
        assert_eq!(missing.reason, "TemplateNotFound");
        assert!(missing.message.starts_with("there is no CellTemplate t;"), "{missing}");
        check(Some("RevisionRefused"), "RevisionRefused");
        check(Some("InvalidTemplate"), "InvalidTemplate");
        check(None, "TemplateNotChecked");
    }
}
