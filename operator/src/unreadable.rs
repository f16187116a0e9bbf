//! Says on every object that cannot be read that it is not, since nobody else could: for all other code it is as if it did
//! not exist, or had not changed.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::{Condition, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::reflector::Store;
use serde::Deserialize;
use tokio::sync::watch;

use crate::cell::Context;
use crate::conditions::{Statement, state, statement};
use crate::stores::{Guard, Stores};
use crate::writer::Error;
use crate::{clock, kinds};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_secs(1);

/// One object that cannot be read.
struct Unreadable {
    resource: ApiResource,
    meta: ObjectMeta,
    error: String,
}

/// What was said, by UID, generation and error, so that it is said once.
type Said = HashSet<(String, i64, String)>;

/// Looks whenever one of these changes, until the process ends.
pub(crate) async fn run(
    context: Arc<Context>,
    (mut routing, mut templates): (watch::Receiver<u64>, watch::Receiver<u64>),
) {
    context.stores.ready().await;
    let mut said = Said::new();
    loop {
        routing.borrow_and_update();
        templates.borrow_and_update();
        let failed = say(&context, &mut said).await;
        tokio::select! {
            _ = routing.changed() => {}
            _ = templates.changed() => {}
            () = tokio::time::sleep(RETRY), if failed => {}
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Whether something could not be said and must be tried again.
async fn say(context: &Context, said: &mut Said) -> bool {
    let mut failed = false;
    let found = find(&context.stores);
    let key = |one: &Unreadable| {
        (one.meta.uid.clone().unwrap_or_default(), one.meta.generation.unwrap_or(0), one.error.clone())
    };
    said.retain(|known| found.iter().any(|one| key(one) == *known));
    for one in found {
        if !said.insert(key(&one)) {
            continue;
        }
        let (kind, name) = (&one.resource.kind, one.meta.name.as_deref().unwrap_or_default());
        tracing::warn!(kind, name, error = one.error, "an object cannot be read");
        if let Err(error) = say_of(context, &one).await {
            tracing::warn!(kind, name, %error, "could not be said in its status");
            if !error.is_refusal() {
                said.remove(&key(&one));
                failed = true;
            }
        }
    }
    failed
}

/// Says it in the object's status, unless that has it already.
async fn say_of(context: &Context, one: &Unreadable) -> Result<(), Error> {
    let (namespace, name) = (one.meta.namespace.as_deref(), one.meta.name.as_deref().unwrap_or_default());
    let last = conditions(context, one).await?;
    let now = clock::rfc3339(clock::now());
    let next = state(&last, vec![ready(one)], one.meta.generation, &now);
    if next.iter().all(|condition| last.contains(condition)) {
        return Ok(());
    }
    context.writer.conditions(&one.resource, namespace, name, &next).await
}

/// The conditions that the object has, as far as these can be read.
async fn conditions(context: &Context, one: &Unreadable) -> Result<Vec<Condition>, Error> {
    let name = one.meta.name.as_deref().unwrap_or_default();
    let api: Api<DynamicObject> = match &one.meta.namespace {
        Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &one.resource),
        None => Api::all_with(context.client.clone(), &one.resource),
    };
    let object = api.get_opt(name).await.map_err(|source| Error::Api {
        verb: "get",
        object: format!("{} {name}", one.resource.kind),
        source: Box::new(source),
    })?;
    let conditions = object.map(|object| object.data["status"]["conditions"].clone()).unwrap_or_default();
    Ok(Vec::deserialize(conditions).unwrap_or_default())
}

fn find(stores: &Stores) -> Vec<Unreadable> {
    let mut found = Vec::new();
    add(&mut found, &stores.cells);
    add(&mut found, &stores.templates);
    add(&mut found, &stores.routers);
    add(&mut found, &stores.policies);
    add(&mut found, &stores.shifts);
    add(&mut found, &stores.destinations);
    found
}

fn add<K>(found: &mut Vec<Unreadable>, store: &Store<Guard<K>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + 'static,
{
    let resource = kinds::resource(names::GROUP, names::VERSION, &K::kind(&()), &K::plural(&()));
    found.extend(store.state().iter().filter_map(|guard| {
        let invalid = guard.0.as_ref().err()?;
        let (meta, error) = (invalid.metadata.clone(), invalid.error.clone());
        Some(Unreadable { resource: resource.clone(), meta, error })
    }));
}

fn ready(one: &Unreadable) -> Statement {
    let text = format!(
        "this {} cannot be read: {}; correct that field. Until then what was read of it before holds, if anything was",
        one.resource.kind, one.error
    );
    statement("Ready", false, "Unreadable", text)
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, RoutingPolicy};
    use kube::runtime::{reflector, watcher};
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture;

    fn found<K>(objects: &[Value]) -> Vec<Unreadable>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Send + serde::de::DeserializeOwned + 'static,
    {
        let (store, mut writer) = reflector::store::<Guard<K>>();
        for object in objects {
            let guard = serde_json::from_value(object.clone()).expect("a guard takes anything");
            writer.apply_watcher_event(&watcher::Event::Apply(guard));
        }
        let mut found = Vec::new();
        add(&mut found, &store);
        found
    }

    #[test]
    fn an_object_that_cannot_be_read_is_named_with_what_is_wrong() {
        let cells = found::<Cell>(&[
            json!({"metadata": {"name": "good"}, "spec": {"template": "t"}}),
            json!({"metadata": {"name": "bad"}, "spec": {"template": "t", "weight": "many"}}),
        ]);
        let [bad] = cells.as_slice() else { panic!("{} are unreadable", cells.len()) };
        assert_eq!((bad.resource.plural.as_str(), bad.meta.name.as_deref()), ("cells", Some("bad")));
        let ready = ready(bad);
        assert_eq!((ready.status, ready.reason.as_str()), (false.into(), "Unreadable"));
        assert!(ready.message.starts_with("this Cell cannot be read: "), "{}", ready.message);
        assert!(ready.message.contains("many"), "{}", ready.message);
    }

    #[tokio::test]
    async fn a_new_leader_leaves_what_was_said_already_and_its_time() {
        let check = async |status: Value, time: Option<&str>| {
            let object = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "Cell",
                                "metadata": {"name": "bad", "uid": "u", "generation": 3},
                                "spec": {"template": "t", "weight": "many"}, "status": status});
            let found = found::<Cell>(std::slice::from_ref(&object));
            let (client, requests) = fixture::api_server(move |line| {
                (line == "GET /apis/bulkhead.dev/v1alpha1/cells/bad").then(|| (200, object.clone()))
            });
            say_of(&fixture::context(client), &found[0]).await.expect("is said");
            let written = "PATCH /apis/bulkhead.dev/v1alpha1/cells/bad/status";
            assert_eq!(requests.writes().len(), usize::from(time.is_some()), "{status}");
            if let Some(time) = time {
                let ready = &requests.body(written)["status"]["conditions"][0];
                assert_eq!(ready["reason"], "Unreadable");
                assert_eq!(ready["lastTransitionTime"] == "2030-01-01T00:00:00Z", time == "old", "{ready}");
            }
        };
        let ready = |status: &str, message: &str| {
            json!({"conditions": [{"type": "Ready", "status": status, "reason": "Unreadable", "message": message,
                                   "lastTransitionTime": "2030-01-01T00:00:00Z", "observedGeneration": 3}]})
        };
        let bad = json!({"metadata": {"name": "bad"}, "spec": {"template": "t", "weight": "many"}});
        let said = super::ready(&found::<Cell>(&[bad])[0]).message;
        check(ready("False", &said), None).await;
        check(ready("False", "another error"), Some("old")).await;
        check(ready("True", &said), Some("new")).await;
        check(json!({}), Some("new")).await;
        check(json!({"conditions": 7}), Some("new")).await;
    }

    #[test]
    fn policies_are_named_by_their_namespace_too() {
        let policies = found::<RoutingPolicy>(&[
            json!({"metadata": {"name": "p", "namespace": "apps"}, "spec": {"rules": 1}}),
        ]);
        assert_eq!(policies.len(), 1);
        assert_eq!(policies[0].resource.plural, "routingpolicies");
        assert_eq!(policies[0].meta.namespace.as_deref(), Some("apps"));
    }
}
