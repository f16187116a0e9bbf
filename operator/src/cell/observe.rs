//! Step one of a Cell's reconcile: the reads. May read the cluster and the stores; decides nothing. What must not be old
//! when it is written is read again there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bulkhead_crds::{Cell, CellTemplate, TrafficShift, names};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;

use super::desired::{ApiServer, Key};
use super::{Context, turn};
use crate::orchestrators::Voices;
use crate::revision::{self, Revision};
use crate::routing_status::snapshot::Snapshot;
use crate::{stores, tunnels};

/// Everything that a reconcile of one Cell looks at.
#[derive(Default)]
pub(crate) struct Observed {
    pub namespace: Option<NamespaceSeen>,
    /// Ours in the cell's namespace.
    pub objects: BTreeMap<Key, Arc<DynamicObject>>,
    pub template: Option<CellTemplate>,
    /// All revisions of the Cell's template, and its own, which may be of another.
    pub revisions: Vec<Revision>,
    /// The Cells of the same template, this one among them, and those that share one while they or this one change theirs.
    pub siblings: Vec<Cell>,
    pub shifts: Vec<TrafficShift>,
    /// Of the Destinations that the Cell names, those that exist, readable or not.
    pub destinations: BTreeSet<String>,
    pub snapshot: Arc<Snapshot>,
    /// What the cell's orchestrators say; None before they have addresses.
    pub voices: Option<Voices>,
    pub api_server: Vec<ApiServer>,
    /// Where routers open tunnels, for a Cell that names a Destination of kind `connect`.
    pub tunnels: Option<SocketAddr>,
    pub nodes: Vec<Arc<PartialObjectMeta<Node>>>,
    /// The longest drain time-out of any Router, in milliseconds.
    pub drain_timeout_ms: i64,
    /// Names of the cell's pods that have not ended; asked only while the Cell is deleted.
    pub pods: Vec<String>,
    /// What StatefulSets, DaemonSets and Jobs could not make, as their Events say; asked only while one lacks pods.
    pub failures: Vec<String>,
}

impl Observed {
    /// The Deployment of the cell's orchestrator.
    pub(crate) fn orchestrator(&self) -> Option<&Arc<DynamicObject>> {
        let (kind, group) = ("Deployment".to_owned(), "apps".to_owned());
        self.objects.get(&Key { kind, group, name: names::CELL_RUNTIME.to_owned() })
    }
}

/// A namespace of the cell's name, whoever made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceSeen {
    pub uid: String,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub terminating: bool,
}

/// # Errors
/// What the API server said.
pub(crate) async fn observe(context: &Context, cell: &Cell) -> kube::Result<Observed> {
    let stores = &context.stores;
    let template_name = cell.spec.template.as_deref().unwrap_or_default();
    let mut observed = Observed {
        namespace: namespace(context, cell).await?,
        objects: objects(context, cell),
        template: stores::get(&stores.templates, template_name),
        revisions: revisions(context, cell),
        siblings: stores::readable(&stores.cells),
        shifts: stores::readable(&stores.shifts),
        destinations: destinations(context, cell),
        snapshot: context.snapshot.borrow().clone(),
        voices: context.voices.borrow().cells.get(cell.name()).cloned(),
        api_server: api_server(context),
        tunnels: tunnels(context, cell),
        nodes: stores.nodes.state(),
        drain_timeout_ms: drain_timeout_ms(context),
        pods: Vec::new(),
        failures: Vec::new(),
    };
    observed.siblings.retain(|sibling| turn::share_a_template(sibling, cell));
    observed.shifts.retain(|shift| {
        shift.spec.cell.as_ref().is_some_and(|name| observed.siblings.iter().any(|cell| cell.name() == name))
            || shift.spec.cell.as_deref() == Some(cell.name())
    });
    if cell.metadata.deletion_timestamp.is_some() {
        observed.pods = pods(context, cell).await?;
    }
    if lacks_pods(&observed.objects) {
        observed.failures = failures(context, &cell.namespace_name()).await?;
    }
    Ok(observed)
}

/// Asked of the API server each time: who owns a namespace is never judged by a stale answer.
async fn namespace(context: &Context, cell: &Cell) -> kube::Result<Option<NamespaceSeen>> {
    if !cell.spec.endpoints.is_empty() {
        return Ok(None);
    }
    let api = Api::<Namespace>::all(context.client.clone());
    Ok(api.get_opt(&cell.namespace_name()).await?.map(|namespace| NamespaceSeen {
        uid: namespace.metadata.uid.unwrap_or_default(),
        resource_version: namespace.metadata.resource_version.unwrap_or_default(),
        labels: namespace.metadata.labels.unwrap_or_default(),
        annotations: namespace.metadata.annotations.unwrap_or_default(),
        terminating: namespace.metadata.deletion_timestamp.is_some(),
    }))
}

fn objects(context: &Context, cell: &Cell) -> BTreeMap<Key, Arc<DynamicObject>> {
    let namespace = cell.namespace_name();
    let mut objects = BTreeMap::new();
    for (kind, store) in context.kinds.iter().zip(&context.stores.objects) {
        let here = |object: &DynamicObject| {
            object.metadata.namespace.as_deref() == Some(namespace.as_str()) && is_ours(object, cell.name())
        };
        for object in store.state_filter(here) {
            let name = object.metadata.name.clone().unwrap_or_default();
            objects.insert(Key::new(&kind.resource, &name), object);
        }
    }
    objects
}

/// Whether an object carries the labels that we put on everything of that cell.
pub(crate) fn is_ours(object: &DynamicObject, cell: &str) -> bool {
    let label =
        |name: &str| object.metadata.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    label(names::LABEL_CELL) == Some(cell) && label(names::LABEL_MANAGED_BY) == Some(names::MANAGER)
}

fn revisions(context: &Context, cell: &Cell) -> Vec<Revision> {
    let own = cell.status.as_ref().and_then(|status| status.current_revision.as_deref());
    let wanted = |stored: &ControllerRevision| {
        let of_template = revision::template_of(stored) == cell.spec.template.as_deref();
        of_template || stored.metadata.name.as_deref().is_some_and(|name| Some(name) == own)
    };
    context.stores.revisions.state_filter(wanted).iter().filter_map(|stored| Revision::read(stored)).collect()
}

fn destinations(context: &Context, cell: &Cell) -> BTreeSet<String> {
    let exists = |name: &&String| context.stores.destinations.get(&ObjectRef::new(name)).is_some();
    cell.spec.destinations.iter().filter(exists).cloned().collect()
}

fn api_server(context: &Context) -> Vec<ApiServer> {
    let fixed = &context.config.api_server_cidrs;
    if !fixed.is_empty() {
        return fixed.iter().map(|cidr| ApiServer { cidr: cidr.clone(), port: None }).collect();
    }
    let mut found = Vec::new();
    for slice in context.stores.api_server.state() {
        let ports: Vec<_> = slice.ports.iter().flatten().filter_map(|port| port.port).collect();
        for address in slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses) {
            let bits = if address.contains(':') { 128 } else { 32 };
            found.extend(ports.iter().map(|port| ApiServer {
                cidr: format!("{address}/{bits}"),
                port: u16::try_from(*port).ok(),
            }));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn tunnels(context: &Context, cell: &Cell) -> Option<SocketAddr> {
    let destinations = stores::readable(&context.stores.destinations);
    let address = || tunnels::address(&context.stores.tunnels.state());
    tunnels::may_have(cell, &destinations).then(address).flatten()
}

fn drain_timeout_ms(context: &Context) -> i64 {
    let routers = stores::readable(&context.stores.routers);
    let longest = routers.iter().map(|router| router.spec.drain_timeout.get()).max();
    let longest = longest.unwrap_or(std::time::Duration::from_secs(30));
    i64::try_from(longest.as_millis()).unwrap_or(i64::MAX)
}

/// Pods of other people in the namespace hold nobody up, and pods that ended need no end.
async fn pods(context: &Context, cell: &Cell) -> kube::Result<Vec<String>> {
    let api = Api::<Pod>::namespaced(context.client.clone(), &cell.namespace_name());
    let ours =
        format!("{}={},{}={}", names::LABEL_CELL, cell.name(), names::LABEL_MANAGED_BY, names::MANAGER);
    let params = ListParams::default().labels(&ours).fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = api.list_metadata(&params).await?;
    Ok(pods.items.into_iter().filter_map(|pod| pod.metadata.name).collect())
}

/// Deployments say in their own status why pods cannot be made; the others only say it in Events.
fn lacks_pods(objects: &BTreeMap<Key, Arc<DynamicObject>>) -> bool {
    objects.iter().any(|(key, object)| {
        let count = |value: &Value| value.as_i64().unwrap_or(0);
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        match key.of_kind() {
            ("apps", "StatefulSet") => count(&status["replicas"]) < count(&spec["replicas"]),
            ("apps", "DaemonSet") => {
                count(&status["currentNumberScheduled"]) < count(&status["desiredNumberScheduled"])
            }
            ("batch", "Job") => status["active"].is_null() && status["succeeded"].is_null(),
            _ => false,
        }
    })
}

async fn failures(context: &Context, namespace: &str) -> kube::Result<Vec<String>> {
    let api = Api::<Event>::namespaced(context.client.clone(), namespace);
    let params = ListParams::default().fields("reason=FailedCreate").limit(50);
    let events = api.list(&params).await?;
    let relevant = events.items.into_iter().filter(|event| {
        matches!(event.involved_object.kind.as_deref(), Some("StatefulSet" | "DaemonSet" | "Job"))
    });
    Ok(relevant.filter_map(|event| event.message).collect())
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::Destination;
    use kube::core::DeserializeGuard;
    use serde_json::json;

    use super::*;
    use crate::fixture;
    use crate::revision::Recipe;
    use crate::stores::Stores;

    #[tokio::test]
    async fn a_cell_that_names_another_template_is_seen_with_its_own_revision() {
        let revision = |template: &str, image: &str| {
            let recipe = Recipe { cell_runtime_image: image.to_owned(), ..Recipe::default() };
            Revision::new(template, recipe, 1)
        };
        let own = revision("old", "1");
        let stored = [("old", &own), ("old", &revision("old", "2")), ("t", &revision("t", "3"))];
        let stored = stored.map(|(template, revision)| {
            serde_json::from_value(revision.write(template, "bulkhead-system")).expect("is one")
        });
        let (client, _) = fixture::api_server(|_| None);
        let mut context = fixture::context(client);
        let mut stores = Stores::empty();
        stores.revisions = fixture::store(stored);
        context.stores = Arc::new(stores);
        let mut cell = fixture::cell();
        cell.status.get_or_insert_default().current_revision = Some(own.name.clone());

        let observed = observe(&context, &cell).await.expect("is seen");
        assert_eq!(turn::current(&cell, &observed), Some(&own));
        assert_eq!(observed.revisions.len(), 2, "and no other of a template that it does not name");
    }
    #[tokio::test]
    async fn the_way_to_tunnels_is_seen_only_for_a_cell_that_names_a_destination_behind_them() {
        let check = async |kind: &str, named: &[&str], expected: Option<&str>| {
            let (client, _) = fixture::api_server(|_| None);
            let mut context = fixture::context(client);
            let mut stores = Stores::empty();
            let spec = json!({kind: {}, "endpoints": ["there:443"]});
            let destination = Destination::new("keys", serde_json::from_value(spec).expect("is one"));
            stores.destinations = fixture::store([DeserializeGuard(Ok(destination))]);
            let service = json!({"metadata": {"name": "routers", "namespace": "bulkhead-system"},
                                 "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "connect", "port": 8082}]}});
            stores.tunnels = fixture::store([serde_json::from_value(service).expect("is one")]);
            context.stores = Arc::new(stores);
            let mut cell = fixture::cell();
            cell.spec.destinations = named.iter().map(|name| (*name).to_owned()).collect();
            let observed = observe(&context, &cell).await.expect("is seen");
            assert_eq!(observed.tunnels.map(|address| address.to_string()).as_deref(), expected);
        };
        check("connect", &["keys"], Some("10.96.0.9:8082")).await;
        check("http", &["keys"], None).await;
        check("connect", &[], None).await;
    }
}
