//! From EndpointSlices to addresses. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// Which Service a slice belongs to.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The Service of the cell's orchestrators, and its port that streams health.
pub(crate) const PEERS_SERVICE: &str = "cell-runtime";
const HEALTH_PORT: &str = "health";

/// Slices by name, whole lists only.
pub(crate) type Slices = BTreeMap<String, EndpointSlice>;

/// The pods of a service, whatever their `ready` says. Pods that are being stopped count only where there are no
/// others, as kube-proxy has it.
pub(crate) fn pods(slices: &Slices, service: &str, port: u16) -> Vec<SocketAddr> {
    let mut staying = Vec::new();
    let mut stopping = Vec::new();
    for slice in of_service(slices, service) {
        let Some(port) = target_port(slice, port) else { continue };
        for endpoint in &slice.endpoints {
            let list = if is_stopping(endpoint) { &mut stopping } else { &mut staying };
            list.extend(addresses(endpoint, port));
        }
    }
    let mut pods = if staying.is_empty() { stopping } else { staying };
    pods.sort_unstable();
    pods.dedup();
    pods
}

/// Health addresses of the other orchestrators, those that serve, this pod not among them.
pub(crate) fn peers(slices: &Slices, own_pod: &str) -> Vec<SocketAddr> {
    let mut peers = Vec::new();
    for slice in of_service(slices, PEERS_SERVICE) {
        let named = slice.ports.iter().flatten().find(|port| port.name.as_deref() == Some(HEALTH_PORT));
        let Some(port) = named.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        for endpoint in &slice.endpoints {
            let own = endpoint.target_ref.as_ref().is_some_and(|pod| pod.name.as_deref() == Some(own_pod));
            if is_serving(endpoint) && !is_stopping(endpoint) && !own {
                peers.extend(addresses(endpoint, port));
            }
        }
    }
    peers.sort_unstable();
    peers.dedup();
    peers
}

fn of_service<'a>(slices: &'a Slices, service: &'a str) -> impl Iterator<Item = &'a EndpointSlice> {
    slices.values().filter(move |slice| {
        let labels = slice.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(SERVICE_LABEL)).is_some_and(|name| name == service)
    })
}

/// The port on the pods: the only one there is, else the one of that number.
fn target_port(slice: &EndpointSlice, wanted: u16) -> Option<u16> {
    let ports: Vec<u16> =
        slice.ports.iter().flatten().filter_map(|port| u16::try_from(port.port?).ok()).collect();
    match ports.as_slice() {
        [only] => Some(*only),
        several => several.iter().copied().find(|port| *port == wanted),
    }
}

/// `ready` is true for all where a Service publishes pods that are not ready; `serving` says what their probes say.
fn is_serving(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.serving.or(conditions.ready)).unwrap_or(true)
}

fn is_stopping(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.terminating).unwrap_or(false)
}

fn addresses(endpoint: &Endpoint, port: u16) -> impl Iterator<Item = SocketAddr> {
    endpoint
        .addresses
        .iter()
        .filter_map(move |address| Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(json: &serde_json::Value) -> Slices {
        let list: Vec<EndpointSlice> = serde_json::from_value(json.clone()).expect("slices");
        list.into_iter().map(|slice| (slice.metadata.name.clone().unwrap_or_default(), slice)).collect()
    }

    fn slice(name: &str, ports: &serde_json::Value, endpoints: &serde_json::Value) -> serde_json::Value {
        serde_json::json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        })
    }

    fn texts(addresses: &[SocketAddr]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pods_count_whatever_their_ready_says_and_a_lone_port_is_the_port() {
        let slices = slices(&serde_json::json!([slice(
            "web",
            &serde_json::json!([{"port": 8080}]),
            &serde_json::json!([
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": true, "terminating": true}},
            ]),
        )]));
        assert_eq!(texts(&pods(&slices, "web", 80)), ["10.0.0.1:8080", "10.0.0.2:8080"]);
        assert!(pods(&slices, "other", 80).is_empty());
    }

    #[test]
    fn stopping_pods_serve_where_no_other_does_and_ports_are_told_by_number() {
        let slices = slices(&serde_json::json!([slice(
            "web",
            &serde_json::json!([{"name": "metrics", "port": 9090}, {"name": "http", "port": 8080}]),
            &serde_json::json!([{"addresses": ["10.0.0.3"], "conditions": {"terminating": true}}]),
        )]));
        assert_eq!(texts(&pods(&slices, "web", 8080)), ["10.0.0.3:8080"]);
        assert!(pods(&slices, "web", 80).is_empty());
    }

    #[test]
    fn peers_are_the_other_serving_orchestrators_at_their_health_port() {
        let slices = slices(&serde_json::json!([slice(
            "cell-runtime",
            &serde_json::json!([{"name": "traffic", "port": 8080}, {"name": "health", "port": 8081}]),
            &serde_json::json!([
                {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "me"}},
                {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Pod", "name": "peer"}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": true, "serving": false}},
                {"addresses": ["10.0.0.4"], "conditions": {"ready": true, "terminating": true}},
            ]),
        )]));
        assert_eq!(texts(&peers(&slices, "me")), ["10.0.0.2:8081"]);
    }
}
