//! The namespace of one Cell: made, taken back, put right or left alone, as `validate::ownership` decides.

use bulkhead_crds::{Cell, names};
use serde_json::{Value, json};

use super::desired::{self, ANNOTATION_RETAINED};
use super::observe::{NamespaceSeen, Observed};
use super::statements::Report;
use super::validate::{self, Identity, Ownership, Problem};
use super::{Context, Error};
use crate::{compare, kinds};

/// Sees to the namespace. False when nothing may be made in it now.
pub(super) async fn ensure(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    report: &mut Report,
) -> Result<bool, Error> {
    let identity = Identity::of(cell);
    let seen = observed.namespace.as_ref();
    match (validate::ownership(cell, seen), seen) {
        (Ownership::Foreign(problem), _) => {
            report.problem = Some(problem);
            report.namespace = None;
            Ok(false)
        }
        (Ownership::Terminating, _) => {
            report.passing = true;
            let text =
                format!("namespace {} is being deleted; it is made again after that", identity.namespace);
            report.problem = Some(Problem::new("NamespaceTerminating", text));
            Ok(false)
        }
        (Ownership::Lost, _) => {
            // Written before the new one is made: if we die in between, the UID in status must not disown it.
            report.namespace_uid = None;
            report.namespace = None;
            report.passing = true;
            context.memory.forget_namespace(&identity.namespace);
            let text = format!("namespace {} was deleted; it is made again", identity.namespace);
            report.problem = Some(Problem::new("NamespaceGone", text));
            Ok(false)
        }
        (Ownership::Adoptable, Some(seen)) => {
            adopt(context, cell, &identity, seen).await?;
            report.passing = true;
            report.problem =
                Some(Problem::new("Adopting", format!("namespace {} is being taken", identity.namespace)));
            Ok(false)
        }
        (Ownership::Missing, _) | (_, None) => {
            let object = desired::new_namespace(&identity);
            let made = match context.writer.create(&kinds::namespace(), None, &object).await {
                Err(error) if error.is_refusal() => {
                    report.problem = Some(Problem::new("ApplyRefused", error.to_string()));
                    return Ok(false);
                }
                made => made?,
            };
            report.namespace = Some(identity.namespace.clone());
            report.namespace_uid = made.metadata.uid;
            let note = format!("made namespace {}", identity.namespace);
            context.writer.event(false, "NamespaceCreated", note, &context.about(cell)).await;
            Ok(true)
        }
        (Ownership::Ours, Some(seen)) => {
            report.namespace = Some(identity.namespace.clone());
            report.namespace_uid = Some(seen.uid.clone());
            correct_labels(context, &identity, seen).await?;
            Ok(true)
        }
    }
}

/// The labels of a namespace are walls too: Pod Security goes by them.
async fn correct_labels(context: &Context, identity: &Identity, seen: &NamespaceSeen) -> Result<(), Error> {
    let wanted = desired::wanted_labels(identity);
    if compare::matches(&wanted, &json!(seen.labels)) {
        return Ok(());
    }
    let marks = json!({"labels": wanted});
    context
        .writer
        .merge_metadata(&kinds::namespace(), &identity.namespace, &seen.resource_version, &marks)
        .await?;
    Ok(())
}

async fn adopt(
    context: &Context,
    cell: &Cell,
    identity: &Identity,
    seen: &NamespaceSeen,
) -> Result<(), Error> {
    let marks = json!({
        "labels": desired::wanted_labels(identity),
        "annotations": {names::ANNOTATION_CELL_UID: identity.uid, ANNOTATION_RETAINED: Value::Null},
    });
    context
        .writer
        .merge_metadata(&kinds::namespace(), &identity.namespace, &seen.resource_version, &marks)
        .await?;
    let note = format!("took namespace {}, retained by an earlier Cell of this name", identity.namespace);
    context.writer.event(false, "NamespaceAdopted", note, &context.about(cell)).await;
    Ok(())
}
