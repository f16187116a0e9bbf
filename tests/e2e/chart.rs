//! What the chart makes of its values, without installing it.

use anyhow::Result;
use bulkhead_tests::World;
use bulkhead_tests::world::SYSTEM;
use serde_json::Value;

/// The objects of the chart under these values.
fn render(world: &World, values: &[&str]) -> Result<Vec<Value>> {
    let mut args = vec!["template", "bulkhead", "charts/bulkhead", "-n", SYSTEM, "--kube-version", "1.34.0"];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    let text = world.helm(&args)?;
    text.split("\n---\n").map(|document| Ok(serde_yaml::from_str(document)?)).collect()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).expect("the chart makes it")
}

#[test]
fn routers_get_the_time_that_their_drain_takes() {
    let (world, _turn) = World::enter();
    let check = |values: &[&str], expected: u64| {
        let objects = render(world, values).expect("renders");
        let routers = find(&objects, "StatefulSet", "bulkhead-router");
        assert_eq!(
            routers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], expected,
            "{values:?}"
        );
    };
    // The delay, the drain, ten seconds for what does not end by itself, and five to spare.
    check(&["router.drainDelay=5s", "router.drainTimeout=30s"], 5 + 30 + 10 + 5);
    check(&["router.drainDelay=500ms", "router.drainTimeout=1h2m3s"], 1 + 3600 + 2 * 60 + 3 + 10 + 5);
    check(&["router.drainTimeout=30s", "router.terminationGracePeriodSeconds=300"], 300);

    let short = ["router.drainTimeout=2m", "router.terminationGracePeriodSeconds=45"];
    let refusal = format!("{:#}", render(world, &short).expect_err("too short"));
    assert!(refusal.contains("terminationGracePeriodSeconds is 45"), "{refusal}");
}

#[test]
fn routers_reach_cells_outside_the_cluster_only_where_values_say_so() {
    let (world, _turn) = World::enter();
    let egress = |values: &[&str]| {
        let objects = render(world, values).expect("renders");
        find(&objects, "NetworkPolicy", "bulkhead-router")["spec"]["egress"].clone()
    };
    let closed = egress(&["operator.allowEndpoints=true"]);
    assert!(!closed.to_string().contains("ipBlock"), "{closed}");
    let outside = r#"{"to":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]}"#;
    let open = egress(&["networkPolicy.routerEgress[0].ipBlock.cidr=192.0.2.0/24"]);
    assert!(open.to_string().contains(outside), "{open}");
}
