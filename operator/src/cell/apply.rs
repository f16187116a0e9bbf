//! Step four of a Cell's reconcile: brings the cell's namespace to what is desired, in the given order, and removes what
//! is no longer desired. Touches the cluster; decides nothing about what should be there.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kube::api::{Api, DynamicObject};
use serde_json::{Value, json};

use super::Context;
use super::desired::{self, ANNOTATION_APPLIED, Key, Object};
use super::observe::{Observed, is_ours};
use super::validate::{Identity, Problem};
use crate::compare;
use crate::writer::Error;

/// What came of applying.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Objects that were written, in order.
    pub wrote: Vec<Key>,
    /// Of these, the objects that somebody else had changed.
    pub drifted: Vec<Key>,
    pub pruned: Vec<Key>,
    /// The first object that the API server refuses or that is not ours. Nothing after it was applied: a workload never
    /// starts behind a wall that could not be built.
    pub problem: Option<Problem>,
}

/// What earlier applies of this process taught: how the API server writes our words, and which generation is ours.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<(String, Key), Remembered>>);

#[derive(Clone, Debug)]
struct Remembered {
    applied: String,
    projection: Value,
    generation: i64,
}

impl Memory {
    fn get(&self, namespace: &str, key: &Key) -> Option<Remembered> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(namespace.to_owned(), key.clone())).cloned()
    }

    fn put(&self, namespace: &str, key: Key, remembered: Remembered) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((namespace.to_owned(), key), remembered);
    }

    pub(crate) fn forget_namespace(&self, namespace: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != namespace);
    }

    /// Whether a store still shows the object as it was before our last apply.
    pub(crate) fn is_stale(&self, namespace: &str, key: &Key, object: &DynamicObject) -> bool {
        let seen = object.metadata.generation.unwrap_or(0);
        self.get(namespace, key).is_some_and(|remembered| seen < remembered.generation)
    }
}

/// # Errors
/// What may go away by itself: not leading, conflicts, an API server that is away.
pub(crate) async fn apply(
    context: &Context,
    cell: &Identity,
    objects: &[Object],
    observed: &Observed,
) -> Result<Applied, Error> {
    let mut applied = apply_alone(context, cell, objects, observed).await?;
    if applied.problem.is_none() {
        prune(context, cell, objects, observed, &mut applied).await?;
    }
    Ok(applied)
}

/// Applies these and removes nothing.
///
/// # Errors
/// As [`apply`].
pub(crate) async fn apply_alone(
    context: &Context,
    cell: &Identity,
    objects: &[Object],
    observed: &Observed,
) -> Result<Applied, Error> {
    let mut applied = Applied::default();
    for object in objects {
        let live = match observed.objects.get(&object.key()) {
            Some(live) => Some(DynamicObject::clone(live)),
            // The stores hold only what carries our labels, so somebody else's object is not among them.
            None => unseen(context, cell, object).await?,
        };
        if let Some(live) = &live
            && !is_ours(live, &cell.name)
        {
            applied.problem = Some(Problem::new(
                "ObjectNotOwned",
                format!(
                    "{} {}/{} exists and was not made by the operator, so it is left alone; delete it, or rename the \
                     template's object",
                    object.resource.kind, cell.namespace, object.name
                ),
            ));
            return Ok(applied);
        }
        match write(context, cell, object, live.as_ref(), &mut applied).await {
            Ok(()) => {}
            Err(error) if error.is_refusal() => {
                applied.problem = Some(refused(&error));
                return Ok(applied);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(applied)
}

async fn unseen(context: &Context, cell: &Identity, object: &Object) -> Result<Option<DynamicObject>, Error> {
    let api =
        Api::<DynamicObject>::namespaced_with(context.client.clone(), &cell.namespace, &object.resource);
    api.get_opt(&object.name).await.map_err(|source| Error::Api {
        verb: "get",
        object: format!("{} {}/{}", object.resource.kind, cell.namespace, object.name),
        source: Box::new(source),
    })
}

async fn write(
    context: &Context,
    cell: &Identity,
    object: &Object,
    live: Option<&DynamicObject>,
    applied: &mut Applied,
) -> Result<(), Error> {
    let key = object.key();
    let wanted = comparable(&object.value);
    let mark = &object.value["metadata"]["annotations"][ANNOTATION_APPLIED];
    let live_value = live.map(|live| serde_json::to_value(live).unwrap_or_default());
    // What somebody added to one of these is a hole.
    let compared_exactly = key.of_kind() == ("networking.k8s.io", "NetworkPolicy");
    if let Some(live_value) = &live_value
        && (!compared_exactly || compare::equals(&wanted["spec"], &live_value["spec"]))
        && (compare::matches(&wanted, live_value)
            || context.memory.get(&cell.namespace, &key).is_some_and(|remembered| {
                *mark == remembered.applied
                    && compare::projection(&wanted, live_value) == remembered.projection
            }))
    {
        return Ok(());
    }
    let mut value = object.value.clone();
    if let Some(first) = &object.autoscaled {
        // Leaving out a field that we once applied would reset it; the autoscaler's own number changes nothing.
        let replicas = live_value.as_ref().map_or(first, |live| &live["spec"]["replicas"]);
        if replicas.is_number() {
            value["spec"]["replicas"] = replicas.clone();
        }
    }
    let result = context.writer.apply(&object.resource, Some(&cell.namespace), &value).await;
    let stored = match result {
        Err(error) if error.code() == Some(422) && key.of_kind() == ("batch", "Job") && live.is_some() => {
            // A Job's pods cannot be changed. It is removed, and the event of that brings us back to make it anew.
            let uid = live.and_then(|live| live.metadata.uid.as_deref()).unwrap_or_default();
            context.writer.delete(&object.resource, Some(&cell.namespace), &object.name, uid).await?;
            applied.wrote.push(key);
            return Ok(());
        }
        other => other?,
    };
    let generation = stored.metadata.generation.unwrap_or(0);
    let stored = serde_json::to_value(&stored).unwrap_or_default();
    let remembered = Remembered {
        applied: mark.as_str().unwrap_or_default().to_owned(),
        projection: compare::projection(&wanted, &stored),
        generation,
    };
    context.memory.put(&cell.namespace, key.clone(), remembered);
    if live_value
        .is_some_and(|live| live["metadata"]["annotations"][ANNOTATION_APPLIED] == *mark && stored != live)
    {
        applied.drifted.push(key.clone());
    }
    applied.wrote.push(key);
    Ok(())
}

/// Items of a list carry neither `apiVersion` nor `kind`.
fn comparable(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    value
}

/// Removes what carries our labels and is not desired any more; what holds data stays.
async fn prune(
    context: &Context,
    cell: &Identity,
    objects: &[Object],
    observed: &Observed,
    applied: &mut Applied,
) -> Result<(), Error> {
    let desired: BTreeSet<Key> = objects.iter().map(Object::key).collect();
    for (key, object) in &observed.objects {
        let kind = context.kinds.of_group(&key.group, &key.kind);
        let Some(kind) = kind.filter(|kind| !kind.holds_data) else { continue };
        let leaving = object.metadata.deletion_timestamp.is_some();
        // What a controller made for its own purposes may carry copies of our labels.
        let owned_by_another =
            object.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        if desired.contains(key) || leaving || owned_by_another {
            continue;
        }
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        context.writer.delete(&kind.resource, Some(&cell.namespace), &key.name, uid).await?;
        applied.pruned.push(key.clone());
    }
    Ok(())
}

fn refused(error: &Error) -> Problem {
    let text = error.to_string();
    let reason = if text.contains("exceeded quota") || text.contains("must specify limits") {
        "QuotaForbidden"
    } else {
        "ApplyRefused"
    };
    Problem::new(reason, format!("the API server refuses an object of this cell: {text}"))
}

/// The objects that hold no data and are no walls, for the end of a cell that keeps its namespace.
pub(crate) fn without_data(context: &Context, observed: &Observed) -> Vec<(Key, Value)> {
    observed
        .objects
        .iter()
        .filter(|(key, object)| {
            let kind = context.kinds.of_group(&key.group, &key.kind);
            let holds_data = kind.is_some_and(|kind| kind.holds_data);
            !holds_data && !desired::is_wall(key) && object.metadata.deletion_timestamp.is_none()
        })
        .map(|(key, object)| (key.clone(), json!(object.metadata.uid)))
        .collect()
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::names;

    use super::*;
    use crate::{fixture, kinds};

    #[tokio::test]
    async fn an_object_that_somebody_else_made_is_left_alone_and_named() {
        for labels in [
            json!({}),
            json!({names::LABEL_CELL: "a"}),
            json!({names::LABEL_CELL: "b", names::LABEL_MANAGED_BY: names::MANAGER}),
        ] {
            let theirs = json!({"apiVersion": "v1", "kind": "Service",
                                "metadata": {"name": "web", "namespace": "cell-a", "labels": labels}});
            let (client, requests) = fixture::api_server(move |line| {
                (line == "GET /api/v1/namespaces/cell-a/services/web").then(|| (200, theirs.clone()))
            });
            let service = kinds::resource("", "v1", "Service", "services");
            let wanted = ["web", "after-it"].map(|name| Object {
                resource: service.clone(),
                name: name.to_owned(),
                value: json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}),
                autoscaled: None,
            });
            let cell = Identity::of(&fixture::cell());
            let context = fixture::context(client);
            let applied = apply(&context, &cell, &wanted, &Observed::default()).await.expect("is over");
            let problem = applied.problem.expect("it is in the way");
            assert_eq!(problem.reason, "ObjectNotOwned");
            assert!(problem.message.contains("Service cell-a/web "), "{problem}");
            assert_eq!(requests.writes(), [""; 0]);
        }
    }
}
