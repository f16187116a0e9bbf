//! The one way to write to the cluster: every call checks at that moment that this process leads, and is counted.
//! What to write is decided elsewhere.

mod error;
mod event;

use bulkhead_crds::{Condition, names};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{
    Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::core::ApiResource;
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};

use error::failed;
pub(crate) use error::{Error, code};
use event::event;

use crate::lease::Leadership;

/// Writes to the cluster.
#[derive(Clone)]
pub(crate) struct Writer {
    client: Client,
    leadership: Leadership,
    reporter: String,
    writes: IntCounterVec,
}

impl Writer {
    /// # Errors
    /// When the registry has the metric already.
    pub(crate) fn new(
        client: Client,
        leadership: Leadership,
        pod_name: &str,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let writes = IntCounterVec::new(
            Opts::new("bulkhead_operator_writes_total", "Writes to the Kubernetes API, by verb and kind."),
            &["verb", "kind"],
        )?;
        registry.register(Box::new(writes.clone()))?;
        Ok(Self { reporter: pod_name.to_owned(), client, leadership, writes })
    }

    /// A plain create: fails where the object exists.
    ///
    /// # Errors
    /// Not leading, or what the API server said.
    pub(crate) async fn create(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<DynamicObject, Error> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let target = self.begin("create", resource, namespace, name)?;
        let params = PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
        let typed: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|error| failed("create", &target, kube::Error::SerdeError(error)))?;
        self.api(resource, namespace)
            .create(&params, &typed)
            .await
            .map_err(|error| failed("create", &target, error))
    }

    /// Server-side apply with our field manager. Forced, because what others changed in our fields is drift.
    ///
    /// # Errors
    /// Not leading, or what the API server said.
    pub(crate) async fn apply(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<DynamicObject, Error> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let target = self.begin("apply", resource, namespace, name)?;
        self.api(resource, namespace)
            .patch(name, &PatchParams::apply(names::MANAGER).force(), &Patch::Apply(object))
            .await
            .map_err(|error| failed("apply", &target, error))
    }

    /// Deletes that very object, by its UID; one that is gone already is no error.
    ///
    /// # Errors
    /// Not leading, or what the API server said.
    pub(crate) async fn delete(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Result<(), Error> {
        let target = self.begin("delete", resource, namespace, name)?;
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api(resource, namespace).delete(name, &params).await {
            Ok(_) => Ok(()),
            // 409: the name is another object's now, which is not ours to delete.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed("delete", &target, error)),
        }
    }

    /// Merges metadata into that very version of an object.
    ///
    /// # Errors
    /// Not leading, or what the API server said; a conflict when the object has changed since it was read.
    pub(crate) async fn merge_metadata(
        &self,
        resource: &ApiResource,
        name: &str,
        resource_version: &str,
        metadata: &Value,
    ) -> Result<(), Error> {
        let target = self.begin("patch", resource, None, name)?;
        let mut patch = json!({"metadata": metadata});
        patch["metadata"]["resourceVersion"] = json!(resource_version);
        self.api(resource, None)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(|_| ())
            .map_err(|error| failed("patch", &target, error))
    }

    /// Replaces what we say in an object's status.
    ///
    /// # Errors
    /// Not leading, or what the API server said.
    pub(crate) async fn status(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
        status: &Value,
    ) -> Result<(), Error> {
        self.apply_status(names::MANAGER, resource, namespace, name, status).await
    }

    /// Puts conditions beside whatever else a status says: for an object whose status we do not know.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub(crate) async fn conditions(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
        conditions: &[Condition],
    ) -> Result<(), Error> {
        // Another manager: what the usual one wrote and leaves out would be removed.
        let manager = format!("{}-unreadable", names::MANAGER);
        let status = json!({"conditions": conditions});
        self.apply_status(&manager, resource, namespace, name, &status).await
    }

    async fn apply_status(
        &self,
        manager: &str,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
        status: &Value,
    ) -> Result<(), Error> {
        let target = self.begin("status", resource, namespace, name)?;
        let mut object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "status": status,
        });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        self.api(resource, namespace)
            .patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(object))
            .await
            .map(|_| ())
            .map_err(|error| failed("status", &target, error))
    }

    /// Tells what happened, after it happened. An Event that cannot be written is logged and nothing else.
    pub(crate) async fn event(&self, warning: bool, reason: &str, note: String, about: &ObjectReference) {
        let object = format!("an Event about {}", about.name.as_deref().unwrap_or_default());
        tracing::info!(reason, note, kind = about.kind, name = about.name, "event");
        if !self.leadership.holds() {
            tracing::debug!(object, "not leading, so not written");
            return;
        }
        self.writes.with_label_values(&["create", "Event"]).inc();
        let event = event(&self.reporter, warning, reason, &note, about);
        // Those of cluster-scoped objects lie in `default`, where kubectl looks for them.
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(%error, object, "could not be written");
        }
    }

    fn begin(
        &self,
        verb: &'static str,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<String, Error> {
        let object = match namespace {
            Some(namespace) => format!("{} {namespace}/{name}", resource.kind),
            None => format!("{} {name}", resource.kind),
        };
        if !self.leadership.holds() {
            return Err(Error::NotLeader { object });
        }
        self.writes.with_label_values(&[verb, &resource.kind]).inc();
        tracing::debug!(verb, object, "writing");
        Ok(object)
    }

    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bulkhead_process::clock::Monotonic;
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::kinds;

    /// A client that counts requests and answers each with that status.
    fn client(status: u16, requests: &Arc<AtomicUsize>) -> Client {
        let requests = Arc::clone(requests);
        let service = tower::service_fn(move |_: Request<Body>| {
            requests.fetch_add(1, Ordering::SeqCst);
            let reason = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
                                "message": "no", "reason": "Test"});
            let response =
                Response::builder().status(status).body(Body::from(reason.to_string().into_bytes()));
            async { response }
        });
        Client::new(service, "default")
    }

    fn writer(status: u16, requests: &Arc<AtomicUsize>, leads: bool) -> Writer {
        let clock = Monotonic::start();
        let leadership = Leadership::none(clock);
        if leads {
            leadership.hold_until(clock.millis() + 600_000);
        }
        Writer::new(client(status, requests), leadership, "pod", &Registry::new()).expect("a fresh registry")
    }

    #[tokio::test]
    async fn nothing_is_sent_without_the_lease() {
        let requests = Arc::new(AtomicUsize::new(0));
        let writer = writer(500, &requests, false);
        let namespace = kinds::namespace();
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
        assert!(matches!(writer.create(&namespace, None, &object).await, Err(Error::NotLeader { .. })));
        assert!(matches!(writer.apply(&namespace, None, &object).await, Err(Error::NotLeader { .. })));
        assert!(matches!(writer.delete(&namespace, None, "x", "u").await, Err(Error::NotLeader { .. })));
        let marks = json!({"labels": {}});
        assert!(matches!(
            writer.merge_metadata(&namespace, "x", "1", &marks).await,
            Err(Error::NotLeader { .. })
        ));
        assert!(matches!(
            writer.status(&namespace, None, "x", &json!({})).await,
            Err(Error::NotLeader { .. })
        ));
        writer.event(false, "Test", "text".to_owned(), &ObjectReference::default()).await;
        assert_eq!(requests.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_delete_of_what_is_gone_or_another_objects_is_done() {
        for (status, done) in [(404, true), (409, true), (500, false)] {
            let requests = Arc::new(AtomicUsize::new(0));
            let result = writer(status, &requests, true).delete(&kinds::namespace(), None, "x", "u").await;
            assert_eq!(result.is_ok(), done, "{status}");
        }
    }
}
