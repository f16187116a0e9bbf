//! The cell's orchestrator: two pods that front every entry, and all that they need. What they do is the cell-runtime's.

use std::net::SocketAddr;

use bulkhead_crds::names;
use serde_json::{Value, json};

use super::{hash, place, pod_labels};
use crate::cell::validate::ValidCell;

const TRAFFIC_PORT: u16 = 8080;
const HEALTH_PORT: u16 = 8081;
/// Where the cell's own pods ask for tunnels; 8082 is the routers'.
const CONNECT_PORT: u16 = 8083;
const ADMIN_PORT: u16 = 9090;
const REPLICAS: u32 = 2;

pub(super) fn objects(cell: &ValidCell, tunnels: Option<SocketAddr>) -> Vec<Value> {
    let configuration = configuration(cell, tunnels);
    let ports = ports(tunnels);
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(),
            "automountServiceAccountToken": false,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(),
            "rules": [{
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["get", "list", "watch"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names::CELL_RUNTIME},
            "subjects": [{"kind": "ServiceAccount", "name": names::CELL_RUNTIME, "namespace": cell.namespace}],
        }),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(),
            "data": {"config.yaml": configuration},
        }),
        service(&ports),
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector()}},
        }),
        deployment(cell, &configuration, &ports),
    ]
}

fn metadata() -> Value {
    json!({"name": names::CELL_RUNTIME})
}

fn selector() -> Value {
    json!({names::LABEL_COMPONENT: names::COMPONENT_CELL_RUNTIME})
}

/// Name and number of what others than probes and Prometheus connect to.
fn ports(tunnels: Option<SocketAddr>) -> Vec<(&'static str, u16)> {
    let always = [(names::PORT_TRAFFIC, TRAFFIC_PORT), (names::PORT_HEALTH, HEALTH_PORT)];
    always.into_iter().chain(tunnels.map(|_| (names::PORT_CONNECT, CONNECT_PORT))).collect()
}

/// Headless, and with the addresses of pods that are not ready: routers judge by the health stream, not by Kubernetes, and a
/// service may need a tunnel to become ready.
fn service(ports: &[(&str, u16)]) -> Value {
    let port = |(name, port): &(&str, u16)| json!({"name": name, "port": port, "protocol": "TCP", "targetPort": name});
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector(),
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
        },
    })
}

/// What the cell-runtime reads: the part of the recipe that is about services, and the Cell's capacity and destinations.
fn configuration(cell: &ValidCell, tunnels: Option<SocketAddr>) -> String {
    let template = &cell.revision.recipe.template;
    let mut configuration = json!({
        "cell": cell.name,
        "revision": cell.revision.name,
        "services": template.services,
    });
    if let Some(entry) = &template.entry {
        configuration["entry"] = json!(entry);
    }
    if !template.steps.is_empty() {
        configuration["steps"] = json!(template.steps);
    }
    if let Some(capacity) = &cell.capacity {
        configuration["capacity"] = json!(capacity);
    }
    if !cell.destinations.is_empty() {
        configuration["destinations"] = json!(cell.destinations);
    }
    if let Some(routers) = tunnels {
        configuration["connect"] = json!({"listen": format!("0.0.0.0:{CONNECT_PORT}"), "routers": [routers]});
    }
    // JSON is YAML, and the same for the same value.
    serde_yaml::to_string(&configuration).unwrap_or_else(|_| configuration.to_string())
}

fn deployment(cell: &ValidCell, configuration: &str, ports: &[(&str, u16)]) -> Value {
    let mut labels = json!(pod_labels(cell, names::COMPONENT_CELL_RUNTIME));
    labels["app.kubernetes.io/name"] = json!(names::CELL_RUNTIME);
    let mut spec = pod_spec(cell, ports);
    place(cell, &mut spec);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(),
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": selector()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {
                    "labels": labels,
                    // New configuration means new pods; the old ones drain.
                    "annotations": {"bulkhead.dev/configuration": hash(&json!(configuration))},
                },
                "spec": spec,
            },
        },
    })
}

fn pod_spec(cell: &ValidCell, ports: &[(&str, u16)]) -> Value {
    json!({
        "serviceAccountName": names::CELL_RUNTIME,
        "automountServiceAccountToken": true,
        "terminationGracePeriodSeconds": 45,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector()},
        }],
        "containers": [container(cell, ports)],
        "volumes": [{"name": "configuration", "configMap": {"name": names::CELL_RUNTIME}}],
    })
}

fn container(cell: &ValidCell, ports: &[(&str, u16)]) -> Value {
    let port = |(name, port): &(&str, u16)| json!({"name": name, "containerPort": port, "protocol": "TCP"});
    let ports: Vec<_> = ports.iter().chain(&[("admin", ADMIN_PORT)]).map(port).collect();
    let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
    let probe = |path: &str, period: u32| {
        json!({"httpGet": {"path": path, "port": "admin", "scheme": "HTTP"}, "periodSeconds": period,
               "timeoutSeconds": 2, "failureThreshold": 3})
    };
    json!({
        "name": names::CELL_RUNTIME,
        "image": cell.revision.recipe.cell_runtime_image,
        "imagePullPolicy": cell.revision.recipe.image_pull_policy,
        "args": [
            "--cell", cell.name,
            "--config", "/etc/bulkhead/config.yaml",
            "--listen", format!("0.0.0.0:{TRAFFIC_PORT}"),
            "--admin-address", format!("0.0.0.0:{ADMIN_PORT}"),
            "--kubernetes",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
            {"name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace")},
        ],
        "ports": ports,
        "livenessProbe": probe("/livez", 5),
        "readinessProbe": probe("/readyz", 1),
        // No CPU limit: a throttled orchestrator would miss its own heartbeats.
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/bulkhead", "readOnly": true}],
    })
}
