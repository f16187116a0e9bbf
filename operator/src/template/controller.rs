//! Keeps the revisions and the status of CellTemplates: one loop over all of them, since there are few. What a revision
//! is, is `revision`'s; how it reaches cells is `rollout`'s.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::{Cell, CellTemplate, CellTemplateStatus, names};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::core::ApiResource;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cell::Context;
use crate::cell::validate::Problem;
use crate::conditions::{Statement, state, statement};
use crate::revision::{self, Recipe, Revision};
use crate::writer::Error;
use crate::{clock, kinds, stores};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(100);
const RESYNC: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(2);
/// Reason of a template that is legal and whose revision cannot be kept.
pub(crate) const REVISION_REFUSED: &str = "RevisionRefused";

/// Looks at every template whenever one, a revision or a cell changes.
pub(crate) async fn run(context: Arc<Context>, mut changed: watch::Receiver<u64>) {
    context.stores.ready().await;
    let mut written = HashMap::new();
    loop {
        changed.borrow_and_update();
        let mut failed = false;
        for template in stores::readable(&context.stores.templates) {
            if let Err(error) = reconcile(&context, &template, &mut written).await {
                failed = true;
                tracing::warn!(template = template.name_any(), %error, "will be tried again");
            }
        }
        if let Err(error) = sweep(&context).await {
            failed = true;
            tracing::warn!(%error, "revisions of templates that are gone could not be removed");
        }
        tokio::select! {
            _ = changed.changed() => tokio::time::sleep(DEBOUNCE).await,
            () = tokio::time::sleep(if failed { RETRY } else { RESYNC }) => {}
        }
    }
}

fn revision_resource() -> ApiResource {
    kinds::resource("apps", "v1", "ControllerRevision", "controllerrevisions")
}

fn stored(context: &Context, template: &str) -> Vec<Arc<ControllerRevision>> {
    context.stores.revisions.state_filter(|stored| revision::template_of(stored) == Some(template))
}

async fn reconcile(
    context: &Context,
    template: &CellTemplate,
    written: &mut HashMap<String, (Option<String>, Value)>,
) -> Result<(), Error> {
    let name = template.name_any();
    let revisions: Vec<_> =
        stored(context, &name).iter().filter_map(|stored| Revision::read(stored)).collect();
    let last = template.status.as_ref().and_then(|status| status.latest_revision.clone());
    let (latest, problem) = match super::check(&template.spec, &context.kinds) {
        Ok(()) => match keep(context, template, &revisions).await {
            Ok(revision) => (Some(revision), None),
            Err(error) if error.is_refusal() => (last, Some(refused(context, &error))),
            Err(error) => return Err(error),
        },
        Err(refusal) => (last, Some(Problem::new("InvalidTemplate", refusal.to_string()))),
    };
    let all = stores::readable(&context.stores.cells);
    let cells: Vec<&Cell> =
        all.iter().filter(|cell| cell.spec.template.as_deref() == Some(name.as_str())).collect();
    let status = status(template, latest.as_deref(), problem.as_ref(), &cells);
    write(context, template, &status, written).await?;
    prune(context, &name, &revisions, latest.as_deref(), &all).await
}

/// Makes the revision of the template as it is now, if there is none, and names it.
async fn keep(context: &Context, template: &CellTemplate, revisions: &[Revision]) -> Result<String, Error> {
    let recipe = Recipe {
        template: template.spec.clone(),
        cell_runtime_image: context.config.cell_runtime_image.clone(),
        image_pull_policy: context.config.image_pull_policy.as_str().to_owned(),
        layout: revision::LAYOUT,
    };
    let number = revisions.iter().map(|revision| revision.number).max().unwrap_or(0) + 1;
    let revision = Revision::new(&template.name_any(), recipe, number);
    if revisions.iter().any(|known| known.name == revision.name) {
        return Ok(revision.name);
    }
    let namespace = &context.config.namespace;
    let object = revision.write(&template.name_any(), namespace);
    match context.writer.create(&revision_resource(), Some(namespace), &object).await {
        Ok(_) => {
            let note = format!("revision {} of the template", revision.name);
            context.writer.event(false, "RevisionCreated", note, &template.object_ref(&())).await;
        }
        // The store had not seen it yet.
        Err(error) if error.code() == Some(409) => {}
        Err(error) => return Err(error),
    }
    Ok(revision.name)
}

/// Without its revision nothing could be made from the template, so it stands as if it were not legal itself.
fn refused(context: &Context, error: &Error) -> Problem {
    let cure = if error.is_too_large() {
        "make the template smaller; long texts can lie in the image, or in volumes".to_owned()
    } else {
        format!("allow it in namespace {}, or change the template", context.config.namespace)
    };
    Problem::new(REVISION_REFUSED, format!("its revision is refused by the API server ({error}): {cure}"))
}

/// `problem` is why no revision could be made of the template as it is now.
fn status(
    template: &CellTemplate,
    latest: Option<&str>,
    problem: Option<&Problem>,
    cells: &[&Cell],
) -> CellTemplateStatus {
    let at_latest = |cell: &&&Cell| {
        cell.status.as_ref().and_then(|status| status.current_revision.as_deref()) == latest
            && latest.is_some()
    };
    let updated = cells.iter().filter(at_latest).count();
    let conditions = template.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let statements = statements(latest, problem, cells.len(), updated);
    CellTemplateStatus {
        observed_generation: template.metadata.generation,
        latest_revision: latest.map(ToOwned::to_owned),
        cells: u32::try_from(cells.len()).ok(),
        updated_cells: u32::try_from(updated).ok(),
        conditions: state(
            conditions,
            statements,
            template.metadata.generation,
            &clock::rfc3339(clock::now()),
        ),
    }
}

fn statements(
    latest: Option<&str>,
    problem: Option<&Problem>,
    cells: usize,
    updated: usize,
) -> Vec<Statement> {
    let count = format!("{updated} of {cells} cells have revision {}", latest.unwrap_or("none"));
    match problem {
        Some(Problem { reason, message }) => vec![
            statement("Ready", false, *reason, format!("{message}; cells keep the revision that they have")),
            statement("Reconciling", false, "Refused", "nothing is under way"),
            statement("Stalled", true, *reason, message.clone()),
        ],
        None => vec![
            statement("Ready", true, "Accepted", count.clone()),
            statement(
                "Reconciling",
                updated < cells,
                if updated < cells { "RollingOut" } else { "UpToDate" },
                count,
            ),
            statement("Stalled", false, "Moving", "nothing stands in the way"),
        ],
    }
}

async fn write(
    context: &Context,
    template: &CellTemplate,
    status: &CellTemplateStatus,
    written: &mut HashMap<String, (Option<String>, Value)>,
) -> Result<(), Error> {
    let value = json!(status);
    let uid = template.metadata.uid.clone().unwrap_or_default();
    let version = template.metadata.resource_version.clone();
    // A store that lags behind shows the version that the last write was decided on.
    if template.status.as_ref() == Some(status)
        || written.get(&uid) == Some(&(version.clone(), value.clone()))
    {
        return Ok(());
    }
    let resource = kinds::resource(names::GROUP, names::VERSION, "CellTemplate", "celltemplates");
    context.writer.status(&resource, None, &template.name_any(), &value).await?;
    written.insert(uid, (version, value));
    Ok(())
}

async fn prune(
    context: &Context,
    template: &str,
    revisions: &[Revision],
    latest: Option<&str>,
    cells: &[Cell],
) -> Result<(), Error> {
    let in_use: Vec<&str> = latest.into_iter().chain(in_use(cells)).collect();
    let stored = stored(context, template);
    for gone in revision::superfluous(revisions, &in_use) {
        if let Some(object) = stored.iter().find(|stored| stored.name_any() == gone.name) {
            remove(context, object).await?;
        }
    }
    Ok(())
}

/// The revisions that Cells have or go to, whichever template they name by now.
fn in_use(cells: &[Cell]) -> impl Iterator<Item = &str> {
    let statuses = cells.iter().filter_map(|cell| cell.status.as_ref());
    statuses
        .flat_map(|status| [&status.current_revision, &status.update_revision])
        .filter_map(|name| name.as_deref())
}

/// Revisions outlive their template, because cells may still have them; they go when neither is left.
async fn sweep(context: &Context) -> Result<(), Error> {
    let cells = stores::readable(&context.stores.cells);
    let gone = context.stores.revisions.state_filter(|stored| {
        revision::template_of(stored).is_some_and(|template| {
            let exists = context.stores.templates.find(|one| one.name_any() == template).is_some();
            let named = cells.iter().any(|cell| cell.spec.template.as_deref() == Some(template));
            !exists && !named && !in_use(&cells).any(|name| stored.metadata.name.as_deref() == Some(name))
        })
    });
    for revision in gone {
        remove(context, &revision).await?;
    }
    Ok(())
}

async fn remove(context: &Context, revision: &ControllerRevision) -> Result<(), Error> {
    let uid = revision.metadata.uid.as_deref().unwrap_or_default();
    context
        .writer
        .delete(&revision_resource(), Some(&context.config.namespace), &revision.name_any(), uid)
        .await
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use bulkhead_crds::condition::{find, is_true};
    use bulkhead_crds::{CellSpec, CellStatus, CellTemplateSpec};
    use kube::core::DeserializeGuard;

    use super::*;
    use crate::fixture;
    use crate::stores::Stores;

    fn cell(revision: &str) -> Cell {
        let mut cell = Cell::new("a", CellSpec::default());
        cell.status =
            Some(CellStatus { current_revision: Some(revision.to_owned()), ..CellStatus::default() });
        cell
    }

    /// What is removed where these Cells are left, and the template's revisions have these numbers.
    async fn removed(cells: Vec<Cell>, template: Option<&str>, numbers: Range<i64>) -> Vec<String> {
        let revisions = numbers
            .map(numbered)
            .map(|revision| serde_json::from_value(revision.write("t", "bulkhead-system")).expect("is one"));
        let mut stores = Stores::empty();
        stores.cells = fixture::store(cells.into_iter().map(|cell| DeserializeGuard(Ok(cell))));
        stores.revisions = fixture::store(revisions);
        let (client, requests) = fixture::api_server(|_| None);
        let mut context = fixture::context(client);
        context.stores = Arc::new(stores);
        match template {
            Some(name) => {
                let template = CellTemplate::new(name, CellTemplateSpec::default());
                reconcile(&context, &template, &mut HashMap::new()).await.expect("is over");
            }
            None => sweep(&context).await.expect("is over"),
        }
        let mut gone = requests.writes();
        gone.retain(|line| line.starts_with("DELETE "));
        gone
    }

    fn numbered(number: i64) -> Revision {
        let recipe = Recipe { cell_runtime_image: number.to_string(), ..Recipe::default() };
        Revision::new("t", recipe, number)
    }

    #[tokio::test]
    async fn a_revision_stays_while_a_cell_has_it_that_names_another_template_by_now() {
        let mut moved = cell(&numbered(0).name);
        moved.spec.template = Some("another".to_owned());
        let gone = |numbers: &[i64]| -> Vec<String> {
            let path = "DELETE /apis/apps/v1/namespaces/bulkhead-system/controllerrevisions";
            numbers.iter().map(|number| format!("{path}/{}", numbered(*number).name)).collect()
        };
        assert_eq!(removed(vec![moved.clone()], None, 0..2).await, gone(&[1]));
        assert_eq!(removed(vec![], None, 0..1).await, gone(&[0]));
        assert_eq!(removed(vec![moved], Some("t"), 0..12).await, gone(&[1]));
    }

    #[test]
    fn a_template_counts_its_cells_and_is_under_way_until_all_have_it() {
        let template = CellTemplate::new("t", CellTemplateSpec::default());
        let half = status(&template, Some("t-2"), None, &[&cell("t-1"), &cell("t-2")]);
        assert_eq!((half.cells, half.updated_cells), (Some(2), Some(1)));
        assert!(is_true(&half.conditions, "Ready") && is_true(&half.conditions, "Reconciling"));
        let whole = status(&template, Some("t-2"), None, &[&cell("t-2")]);
        assert!(!is_true(&whole.conditions, "Reconciling"));
    }

    #[test]
    fn a_refused_template_names_the_field_and_keeps_its_last_revision() {
        let template = CellTemplate::new("t", CellTemplateSpec::default());
        let problem = Problem::new("InvalidTemplate", "spec.objects[0].kind: no");
        let status = status(&template, Some("t-1"), Some(&problem), &[]);
        assert_eq!(status.latest_revision.as_deref(), Some("t-1"));
        let stalled = find(&status.conditions, "Stalled").expect("is stated");
        assert!(stalled.message.starts_with("spec.objects[0].kind"), "{stalled:?}");
    }

    #[tokio::test]
    async fn a_template_whose_revision_the_api_server_refuses_says_so_with_its_words() {
        for (code, words) in [
            (500, "etcdserver: request is too large"),
            (413, "Request entity too large: limit is 3145728"),
            (422, "data is not valid"),
            (403, "exceeded quota: revisions"),
        ] {
            let (client, requests) = fixture::api_server(move |line| {
                line.ends_with("/controllerrevisions").then(|| fixture::failure(code, words))
            });
            let mut template = CellTemplate::new("t", CellTemplateSpec::default());
            template.status = Some(CellTemplateStatus {
                latest_revision: Some("t-1".to_owned()),
                ..CellTemplateStatus::default()
            });
            reconcile(&fixture::context(client), &template, &mut HashMap::new()).await.expect("is over");

            let line = "PATCH /apis/bulkhead.dev/v1alpha1/celltemplates/t/status";
            let written = requests.body(line)["status"].clone();
            let status: CellTemplateStatus = serde_json::from_value(written).expect("is one");
            assert_eq!(status.latest_revision.as_deref(), Some("t-1"), "{words}");
            for (r#type, holds) in [("Ready", false), ("Stalled", true)] {
                let condition = find(&status.conditions, r#type).expect("is stated");
                assert_eq!((condition.status, condition.reason.as_str()), (holds.into(), "RevisionRefused"));
                assert!(condition.message.contains(words), "{condition:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_revision_that_only_fails_for_now_is_tried_again_and_nothing_is_said() {
        let (client, requests) = fixture::api_server(|line| {
            line.ends_with("/controllerrevisions").then(|| fixture::failure(500, "no leader"))
        });
        let template = CellTemplate::new("t", CellTemplateSpec::default());
        let result = reconcile(&fixture::context(client), &template, &mut HashMap::new()).await;
        assert!(result.is_err());
        assert_eq!(requests.writes(), ["POST /apis/apps/v1/namespaces/bulkhead-system/controllerrevisions"]);
    }
}
