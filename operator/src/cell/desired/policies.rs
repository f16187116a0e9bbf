//! The walls of a cell as NetworkPolicies: default deny both ways, and the few doors that DESIGN calls for. Whether the
//! cluster enforces them is proven elsewhere.

use bulkhead_crds::names;
use serde_json::{Value, json};

use super::{ApiServer, Installation};

pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    vec![
        policy("default-deny", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})),
        policy(
            "within-cell",
            &json!({
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {}}]}],
                "egress": [{"to": [{"podSelector": {}}]}],
            }),
        ),
        policy("dns", &dns()),
        policy("from-routers", &from_routers(installation)),
        policy("to-api-server", &to_api_server(&installation.api_server)),
        policy("to-routers", &to_routers(installation)),
    ]
}

/// Both directions are always written, so that server-side apply takes out what somebody added to either.
fn policy(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    for direction in ["ingress", "egress"] {
        if spec[direction].is_null() {
            spec[direction] = json!([]);
        }
    }
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    })
}

fn namespace(name: &str) -> Value {
    json!({"matchLabels": {"kubernetes.io/metadata.name": name}})
}

fn runtime_pods() -> Value {
    json!({"matchLabels": {names::LABEL_COMPONENT: names::COMPONENT_CELL_RUNTIME}})
}

/// DNS by the pods of the cluster's own server, and by the address that NodeLocal DNSCache listens on. Policies see
/// addresses after the Service's translation, and some clusters' servers listen on 5353.
fn dns() -> Value {
    let ports = |numbers: &[u16]| -> Vec<Value> {
        let port = |protocol: &'static str| {
            numbers.iter().map(move |port| json!({"protocol": protocol, "port": port}))
        };
        port("UDP").chain(port("TCP")).collect()
    };
    json!({
        "podSelector": {},
        "policyTypes": ["Egress"],
        "egress": [
            // Both selectors in one peer: two peers would mean "or", and open all of kube-system.
            {"to": [{
                "namespaceSelector": namespace("kube-system"),
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }], "ports": ports(&[53, 5353])},
            {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": ports(&[53])},
        ],
    })
}

/// Pods of one part of Bulkhead, and no others of its namespace.
fn peer(namespace_name: &str, component: &str) -> Value {
    json!({
        "namespaceSelector": namespace(namespace_name),
        "podSelector": {"matchLabels": {names::LABEL_COMPONENT: component}},
    })
}

fn from_routers(installation: &Installation) -> Value {
    json!({
        "podSelector": runtime_pods(),
        "policyTypes": ["Ingress"],
        "ingress": [{
            "from": [
                peer(&installation.router_namespace, names::COMPONENT_ROUTER),
                peer(&installation.operator_namespace, names::COMPONENT_OPERATOR),
            ],
            "ports": [{"protocol": "TCP", "port": 8080}, {"protocol": "TCP", "port": 8081}],
        }],
    })
}

fn to_api_server(addresses: &[ApiServer]) -> Value {
    let rules: Vec<Value> = addresses
        .iter()
        .map(|address| {
            let mut rule = json!({"to": [{"ipBlock": {"cidr": address.cidr}}]});
            if let Some(port) = address.port {
                rule["ports"] = json!([{"protocol": "TCP", "port": port}]);
            }
            rule
        })
        .collect();
    json!({"podSelector": runtime_pods(), "policyTypes": ["Egress"], "egress": rules})
}

/// To the pods, since policies see addresses after the Service's translation. Where a cell has no tunnels it opens nothing, and
/// is there all the same: a cell that waits for its turn gets its walls and nothing is removed there, so that this door has to
/// close by an edit.
fn to_routers(installation: &Installation) -> Value {
    let rules: Vec<Value> = installation
        .tunnels
        .iter()
        .map(|routers| {
            json!({
                "to": [peer(&installation.router_namespace, names::COMPONENT_ROUTER)],
                "ports": [{"protocol": "TCP", "port": routers.port()}],
            })
        })
        .collect();
    json!({"podSelector": runtime_pods(), "policyTypes": ["Egress"], "egress": rules})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation() -> Installation {
        Installation {
            operator_namespace: "bulkhead-system".to_owned(),
            router_namespace: "bulkhead-system".to_owned(),
            api_server: vec![
                ApiServer { cidr: "172.18.0.2/32".to_owned(), port: Some(6443) },
                ApiServer { cidr: "10.0.0.0/24".to_owned(), port: None },
            ],
            tunnels: Some(([10, 96, 0, 9], 8082).into()),
        }
    }

    #[test]
    fn the_committed_policies_are_what_is_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/policies.yaml");
        let made: String = objects(&installation())
            .iter()
            .map(|policy| "---\n".to_owned() + &serde_yaml::to_string(policy).expect("JSON is YAML"))
            .collect();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &made).expect("the folder can be written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == made, "{path} is stale: run BLESS=1 cargo test -p bulkhead-operator");
    }

    #[test]
    fn no_peer_opens_a_whole_namespace() {
        for policy in objects(&installation()) {
            for direction in ["ingress", "egress"] {
                for rule in policy["spec"][direction].as_array().into_iter().flatten() {
                    let peers =
                        rule["from"].as_array().or(rule["to"].as_array()).expect("no rule is without peers");
                    for peer in peers {
                        assert!(
                            peer["namespaceSelector"].is_null() || peer["podSelector"].is_object(),
                            "{peer}"
                        );
                    }
                }
            }
        }
    }
}
