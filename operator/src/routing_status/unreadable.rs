//! Says on every object that cannot be read that it is not, since nobody else could: for all other code it is as if it did
//! not exist, or had not changed.

use std::collections::HashSet;
use std::fmt::Debug;

use bulkhead_crds::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ApiResource;
use kube::runtime::reflector::Store;

use crate::cell::Context;
use crate::conditions::{Statement, state, statement};
use crate::stores::{Guard, Stores};
use crate::{clock, kinds};

/// One object that cannot be read.
struct Unreadable {
    resource: ApiResource,
    meta: ObjectMeta,
    error: String,
}

/// What was said, by UID, generation and error, so that it is said once.
pub(super) type Said = HashSet<(String, i64, String)>;

/// Whether something could not be said and must be tried again.
pub(super) async fn say(context: &Context, said: &mut Said) -> bool {
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
        let conditions = state(&[], vec![ready(&one)], one.meta.generation, &clock::rfc3339(clock::now()));
        let namespace = one.meta.namespace.as_deref();
        if let Err(error) = context.writer.conditions(&one.resource, namespace, name, &conditions).await {
            tracing::warn!(kind, name, %error, "could not be said in its status");
            if !error.is_refusal() {
                said.remove(&key(&one));
                failed = true;
            }
        }
    }
    failed
}

fn find(stores: &Stores) -> Vec<Unreadable> {
    let mut found = Vec::new();
    add(&mut found, &stores.cells);
    add(&mut found, &stores.templates);
    add(&mut found, &stores.routers);
    add(&mut found, &stores.policies);
    add(&mut found, &stores.shifts);
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
        "this {} cannot be read: {}; correct that field. Until then nothing that it says is done",
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
