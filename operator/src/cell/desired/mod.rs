//! What must exist for one cell: pure, from a validated Cell to whole objects, in the order in which they are applied.
//! One file for each family; `apply` brings the cluster to it.

mod cell_runtime;
mod namespace;
mod policies;
mod quota;
mod workload;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bulkhead_crds::names;
use kube::core::ApiResource;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::validate::ValidCell;
use crate::kinds::Kinds;

pub(crate) use namespace::{ANNOTATION_RETAINED, new_namespace, wanted_labels};

/// Says, on every object, which desired state was last applied, so that a field that we no longer set is noticed.
pub(crate) const ANNOTATION_APPLIED: &str = "bulkhead.dev/applied";

/// One object that must exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub resource: ApiResource,
    pub name: String,
    pub value: Value,
    /// An autoscaler sets `spec.replicas`, so that we leave it alone; with what the template has there to begin with.
    pub autoscaled: Option<Value>,
}

impl Object {
    pub(crate) fn key(&self) -> Key {
        Key::new(&self.resource, &self.name)
    }
}

/// An object of a cell. Kinds that an installation adds may share a name with one of another group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: String,
    pub group: String,
    pub name: String,
}

impl Key {
    pub(crate) fn new(resource: &ApiResource, name: &str) -> Self {
        Self { kind: resource.kind.clone(), group: resource.group.clone(), name: name.to_owned() }
    }

    /// Group and kind, to tell kinds apart.
    pub(crate) fn of_kind(&self) -> (&str, &str) {
        (&self.group, &self.kind)
    }
}

/// What of the installation goes into a cell, besides its recipe.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    pub operator_namespace: String,
    pub router_namespace: String,
    /// Addresses and ports of the API server, as cells may reach it.
    pub api_server: Vec<ApiServer>,
    /// Where routers open tunnels, for a cell that names a Destination of kind `connect`: [`crate::tunnels`].
    pub tunnels: Option<SocketAddr>,
}

/// One way to the API server: a CIDR, and a port where it is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ApiServer {
    pub cidr: String,
    pub port: Option<u16>,
}

/// Everything in the cell's namespace, in order: walls first, then the cell-runtime, then the workload.
pub(crate) fn objects(cell: &ValidCell, installation: &Installation, kinds: &Kinds) -> Vec<Object> {
    let walls = quota::objects(cell).into_iter().chain(policies::objects(installation));
    let mut objects: Vec<Object> = walls.filter_map(|value| object(cell, value, None, kinds)).collect();
    let runtime = cell_runtime::objects(cell, installation.tunnels).into_iter();
    objects
        .extend(runtime.filter_map(|value| object(cell, value, Some(names::COMPONENT_CELL_RUNTIME), kinds)));
    let autoscaled = workload::autoscaled(&cell.objects, kinds);
    objects.extend(cell.objects.iter().filter_map(|value| {
        let decorated = workload::decorate(cell, value);
        let mut object = object(cell, decorated, Some(names::COMPONENT_WORKLOAD), kinds)?;
        if autoscaled.contains(&object.key()) {
            let spec = object.value["spec"].as_object_mut();
            object.autoscaled = Some(spec.and_then(|spec| spec.remove("replicas")).unwrap_or(Value::Null));
        }
        Some(object)
    }));
    for object in &mut objects {
        stamp(&mut object.value);
    }
    objects.sort_by_key(|object| {
        (
            object.value["metadata"]["labels"][names::LABEL_COMPONENT] == names::COMPONENT_WORKLOAD,
            kinds.position(&object.resource),
        )
    });
    objects
}

/// Whether an object is a wall: the same in every revision, so that it may change in all cells at once, and there for as
/// long as the namespace is. No template has any.
pub(crate) fn is_wall(key: &Key) -> bool {
    matches!(key.of_kind(), ("networking.k8s.io", "NetworkPolicy") | ("", "ResourceQuota" | "LimitRange"))
}

/// Labels, namespace and kind around what a family made. Kinds are those of the closed list, so each is found.
fn object(cell: &ValidCell, mut value: Value, component: Option<&str>, kinds: &Kinds) -> Option<Object> {
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let resource = kinds.find(&text("apiVersion"), &text("kind"))?.resource.clone();
    let name = value["metadata"]["name"].as_str()?.to_owned();
    value["metadata"]["namespace"] = json!(cell.namespace);
    let labels = &mut value["metadata"]["labels"];
    labels[names::LABEL_CELL] = json!(cell.name);
    labels[names::LABEL_MANAGED_BY] = json!(names::MANAGER);
    if let Some(component) = component {
        labels[names::LABEL_COMPONENT] = json!(component);
        // Walls are the same in every revision.
        labels[names::LABEL_REVISION] = json!(cell.revision.hash);
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    Some(Object { resource, name, value, autoscaled: None })
}

fn stamp(value: &mut Value) {
    let hash = hash(value);
    value["metadata"]["annotations"][ANNOTATION_APPLIED] = json!(hash);
}

/// Sixteen hexadecimal digits that change with any part of the value. Maps of `serde_json` are sorted, so that equal
/// values have equal texts.
pub(crate) fn hash(value: &Value) -> String {
    let digest = Sha256::digest(value.to_string());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Labels that every pod of the cell carries.
fn pod_labels(cell: &ValidCell, component: &str) -> BTreeMap<&'static str, String> {
    [
        (names::LABEL_CELL, cell.name.clone()),
        (names::LABEL_MANAGED_BY, names::MANAGER.to_owned()),
        (names::LABEL_COMPONENT, component.to_owned()),
    ]
    .into()
}

/// Puts the Cell's placement into a pod's spec: the operator's word goes before the template's.
fn place(cell: &ValidCell, spec: &mut Value) {
    for (key, value) in &cell.node_selector {
        spec["nodeSelector"][key] = json!(value);
    }
    if let Value::Array(tolerations) = &cell.tolerations
        && !tolerations.is_empty()
    {
        match &mut spec["tolerations"] {
            Value::Array(own) => own.extend(tolerations.iter().cloned()),
            none => *none = cell.tolerations.clone(),
        }
    }
    if cell.dedicated_nodes {
        let other_cells = json!({
            "labelSelector": {"matchExpressions": [
                {"key": names::LABEL_CELL, "operator": "Exists"},
                {"key": names::LABEL_CELL, "operator": "NotIn", "values": [cell.name]},
            ]},
            "namespaceSelector": {},
            "topologyKey": "kubernetes.io/hostname",
        });
        let terms =
            &mut spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        match terms {
            Value::Array(own) => own.push(other_cells),
            none => *none = json!([other_cells]),
        }
    }
}

/// What Pod Security `restricted` asks of a pod and its containers, where they do not say it themselves.
fn restrict(spec: &mut Value) {
    let pod = &mut spec["securityContext"];
    default(pod, "runAsNonRoot", &json!(true));
    default(pod, "seccompProfile", &json!({"type": "RuntimeDefault"}));
    spec["automountServiceAccountToken"] = json!(false);
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let context = &mut container["securityContext"];
            default(context, "allowPrivilegeEscalation", &json!(false));
            if context["capabilities"]["drop"].is_null() {
                context["capabilities"]["drop"] = json!(["ALL"]);
            }
        }
    }
    // Indexing made it; an empty list of none would be sent as null.
    if spec["initContainers"].is_null()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("initContainers");
    }
}

fn default(object: &mut Value, field: &str, value: &Value) {
    if object[field].is_null() {
        object[field] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::{LAYOUT, Recipe, Revision};

    fn cell() -> ValidCell {
        let template = serde_json::from_value(json!({
            "objects": [],
            "services": [{"name": "web", "port": 8080}],
            "entry": {"service": "web"},
        }))
        .expect("a template");
        let recipe = Recipe {
            template,
            cell_runtime_image: "registry/cell-runtime:1".to_owned(),
            image_pull_policy: "IfNotPresent".to_owned(),
            layout: LAYOUT,
        };
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 2, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "web", "image": "web:1"}]},
            }},
        });
        let autoscaler = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
        });
        ValidCell {
            name: "a".to_owned(),
            namespace: "cell-a".to_owned(),
            revision: Revision::new("payments", recipe, 1),
            objects: vec![autoscaler, deployment],
            node_selector: [("topology.kubernetes.io/zone".to_owned(), "z1".to_owned())].into(),
            tolerations: json!([{"key": "cells", "operator": "Exists"}]),
            dedicated_nodes: true,
            quota: serde_json::from_value(json!({"cpu": "2", "pods": "9"})).expect("a quota"),
            capacity: serde_json::from_value(json!({"inFlight": 100})).expect("a capacity"),
            destinations: vec!["mastercard".to_owned(), "visa".to_owned()],
        }
    }

    fn installation() -> Installation {
        Installation {
            operator_namespace: "bulkhead-system".to_owned(),
            router_namespace: "bulkhead-system".to_owned(),
            api_server: vec![ApiServer { cidr: "172.18.0.2/32".to_owned(), port: Some(6443) }],
            tunnels: None,
        }
    }

    fn made() -> Vec<Object> {
        objects(&cell(), &installation(), &Kinds::new(&[]))
    }

    #[test]
    fn the_committed_cell_is_what_is_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/cell.yaml");
        let text: String = made()
            .iter()
            .map(|object| "---\n".to_owned() + &serde_yaml::to_string(&object.value).expect("JSON is YAML"))
            .collect();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &text).expect("the folder can be written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == text,
            "{path} is stale: run BLESS=1 cargo test -p bulkhead-operator. Where more than walls and marks differ for the \
             same recipe, raise revision::LAYOUT, or running cells will all change at once"
        );
    }

    #[test]
    fn walls_come_before_the_orchestrator_and_that_before_the_workload() {
        let kinds: Vec<String> = made().iter().map(|object| object.resource.kind.clone()).collect();
        let place = |kind: &str| kinds.iter().position(|one| one == kind).expect("is made");
        assert!(
            place("NetworkPolicy") < place("ServiceAccount") && place("ServiceAccount") < place("ConfigMap")
        );
        let last = kinds.iter().rposition(|one| one == "NetworkPolicy").expect("is made");
        assert!(last < place("Deployment"), "{kinds:?}");
        assert_eq!(kinds.last().map(String::as_str), Some("HorizontalPodAutoscaler"));
    }

    #[test]
    fn walls_are_all_that_another_revision_leaves_as_it_is() {
        let mut other = cell();
        other.revision.hash = "another".to_owned();
        let second = objects(&other, &installation(), &Kinds::new(&[]));
        for (first, second) in made().iter().zip(&second) {
            assert_eq!(is_wall(&first.key()), first == second, "{:?}", first.key());
        }
    }

    #[test]
    fn replicas_that_an_autoscaler_sets_are_not_ours() {
        let made = made();
        let web = made.iter().find(|object| object.name == "web" && object.resource.kind == "Deployment");
        let web = web.expect("is made");
        assert!(web.value["spec"]["replicas"].is_null());
        assert_eq!(web.autoscaled, Some(json!(2)), "it begins with what the template says");
    }

    #[test]
    fn an_edit_of_what_a_cell_may_reach_starts_new_orchestrators_and_nothing_else() {
        let mut other = cell();
        other.destinations.pop();
        let second = objects(&other, &installation(), &Kinds::new(&[]));
        let changed = changed(&second);
        let changed: Vec<_> = changed.iter().map(|object| object.resource.kind.as_str()).collect();
        assert_eq!(changed, ["ConfigMap", "Deployment"]);
    }

    #[test]
    fn tunnels_are_a_door_for_the_orchestrator_and_a_port_of_it_and_nothing_else() {
        let tunnels = Some(([10, 96, 0, 9], 8082).into());
        let second = objects(&cell(), &Installation { tunnels, ..installation() }, &Kinds::new(&[]));
        let changed = changed(&second);
        let [wall, configuration, service, deployment] = &changed[..] else { panic!("{changed:?}") };

        assert_eq!(wall.name, "to-routers");
        let door = &wall.value["spec"]["egress"];
        assert_eq!(door[0]["ports"], json!([{"protocol": "TCP", "port": 8082}]));
        assert_eq!(door[0]["to"][0]["podSelector"]["matchLabels"][names::LABEL_COMPONENT], "router");
        let who = &wall.value["spec"]["podSelector"]["matchLabels"][names::LABEL_COMPONENT];
        assert_eq!(who, names::COMPONENT_CELL_RUNTIME);

        let text = configuration.value["data"]["config.yaml"].as_str().expect("is text");
        let read: Value = serde_yaml::from_str(text).expect("is YAML");
        assert_eq!(read["connect"], json!({"listen": "0.0.0.0:8083", "routers": ["10.96.0.9:8082"]}));
        assert_eq!(service.value["spec"]["ports"][2]["port"], 8083);
        let container = &deployment.value["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["ports"][2],
            json!({"name": "connect", "containerPort": 8083, "protocol": "TCP"})
        );
    }

    /// Of those, the objects that are not as they are made without any change.
    fn changed(second: &[Object]) -> Vec<&Object> {
        let made = made();
        assert_eq!(made.len(), second.len());
        second.iter().zip(&made).filter(|(second, first)| second != first).map(|(second, _)| second).collect()
    }

    #[test]
    fn the_mark_changes_with_any_part_of_an_object() {
        let first = made();
        let mut other = cell();
        other.objects[1]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("web:2");
        let second = objects(&other, &installation(), &Kinds::new(&[]));
        let changed: Vec<_> =
            first.iter().zip(&second).filter(|(a, b)| a != b).map(|(a, _)| a.key().name).collect();
        assert_eq!(changed, ["web"]);
    }
}
