//! A snapshot for tests: who may have tunnels where to.

use std::net::SocketAddr;
use std::sync::Arc;

use bulkhead_routing::table::{Inputs, build};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::egress::Registry;
use crate::live;
use crate::names::Names;
use crate::objects::Pod;
use crate::snapshot::Snapshot;

fn object<T: DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> T {
    let whole = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(whole).expect("an object of the API")
}

/// Cell a, with an orchestrator at 127.0.0.1, may reach what `a` names; cell b, at 127.0.0.2, nothing. Destinations are
/// given by their names and specs.
pub(super) async fn world(a: &[&str], destinations: &[(&str, Value)]) -> Snapshot {
    let built = build(&Inputs {
        router: &object("Router", "main", &json!({"listeners": [{"name": "http", "port": 8080}]})),
        cells: vec![
            &object("Cell", "a", &json!({"template": "t", "destinations": a})),
            &object("Cell", "b", &json!({"template": "t"})),
        ],
        policies: Vec::new(),
        shifts: Vec::new(),
        destinations: destinations
            .iter()
            .map(|(name, spec)| object("Destination", name, spec))
            .collect::<Vec<_>>()
            .iter()
            .collect(),
    });
    let mut registry = live::Registry::default();
    let mut pod = |last: u8| {
        let traffic = SocketAddr::from(([127, 0, 0, last], 8080));
        vec![registry.pod(Pod { traffic, health: traffic })]
    };
    let pods = vec![pod(1), pod(2)];
    let table = Arc::new(built.table);
    let destinations = Registry::default().of_table(&table, &Names::default()).await;
    Snapshot { table, pods, destinations, ..Snapshot::default() }
}

/// Destinations of every kind, none of which can be reached.
pub(super) async fn snapshot() -> Snapshot {
    let tunnel = |endpoint: &str| json!({"connect": {}, "pointOfNoReturn": false, "endpoints": [endpoint]});
    let issuer = json!({"http": {}, "pointOfNoReturn": false, "endpoints": ["issuer.example:80"]});
    let destinations =
        [("issuer", issuer), ("keys", tunnel("keys.example:443")), ("time", tunnel("time.example:123"))];
    world(&["issuer", "time"], &destinations).await
}
