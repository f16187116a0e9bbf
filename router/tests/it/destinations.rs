//! What a router tells of its destinations.

use serde_json::Value;

use crate::world::{World, eventually};

fn destination(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: Destination
metadata: {{name: {name}}}
spec: {{http: {{}}, pointOfNoReturn: false, {spec}}}
"
    )
}

/// Each with the names of its addresses, and each that is not available with why.
async fn told(world: &World) -> (Value, Value) {
    let table: Value = serde_json::from_slice(&world.admin("/v1/table").await.body).expect("is JSON");
    (table["destinations"].clone(), table["refusedDestinations"].clone())
}

#[tokio::test]
async fn a_destination_that_cannot_be_reached_is_listed_with_why_and_harms_no_other() {
    let world = World::start().await;
    world.write("issuer.yaml", &destination("issuer", "endpoints: ['10.1.2.3:443']"));
    world.write("named.yaml", &destination("named", "endpoints: ['127.1:443']"));
    world.write("secret.yaml", &destination("secret", "endpoints: ['10.1.2.3:443'], tls: {caSecret: ca}"));
    let all = async || told(&world).await.0.as_array().is_some_and(|all| all.len() == 3);
    eventually("all destinations are in the table", all).await;

    let (destinations, refused) = told(&world).await;
    assert_eq!(destinations[0]["addresses"], serde_json::json!(["10.1.2.3:443"]));
    let why = |place: usize| {
        let name = refused[place]["name"].as_str().unwrap_or_default();
        (name, refused[place]["message"].as_str().unwrap_or_default())
    };
    assert!(matches!(why(0), ("named", message) if message.contains("127.0.0.1 is loopback")), "{refused}");
    assert!(matches!(why(1), ("secret", message) if message.contains("--tls-dir")), "{refused}");
    let metrics = world.metrics().await;
    for line in [
        "bulkhead_router_egress_addresses{destination=\"issuer\"} 1",
        "bulkhead_router_egress_addresses{destination=\"named\"} 0",
        "bulkhead_router_egress_certificates_unusable{destination=\"issuer\"} 0",
        "bulkhead_router_egress_certificates_unusable{destination=\"secret\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert_eq!(world.spread(4).await.values().sum::<usize>(), 4);
}
