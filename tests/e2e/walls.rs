//! From a pod of one cell, nothing of another cell, of the outside or of the API server can be reached.

use bulkhead_tests::World;
use bulkhead_tests::pods::{Pod, orchestrators, running, workload};

/// Where nothing is denied: the place of the negative control.
const OPEN: &str = "walls-open";

struct OpenPod<'a> {
    world: &'a World,
    pod: Pod,
}

impl<'a> OpenPod<'a> {
    /// A pod of the same image in a namespace without policies, on the given node.
    fn new(world: &'a World, node: &str) -> Self {
        world
            .apply(&format!(
                r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{OPEN}"}}}}
---
{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"probe","namespace":"{OPEN}","labels":{{"app":"probe"}}}},
"spec":{{"nodeName":"{node}","terminationGracePeriodSeconds":0,"containers":[{{"name":"probe","image":"localhost/bulkhead/sample:dev","imagePullPolicy":"IfNotPresent",
"args":["workload","--listen","0.0.0.0:8080","--name","probe"]}}]}}}}"#
            ))
            .expect("a pod without walls");
        world
            .kubectl(&["wait", "-n", OPEN, "--for=condition=Ready", "pod/probe", "--timeout=60s"])
            .expect("it runs");
        let pod = running(world, OPEN, "app=probe").expect("listed").remove(0);
        Self { world, pod }
    }
}

impl Drop for OpenPod<'_> {
    fn drop(&mut self) {
        let _ = self.world.kubectl(&["delete", "namespace", OPEN, "--wait=true", "--timeout=60s"]);
    }
}

/// What `bulkhead-samples probe` says from inside the pod: OPEN or BLOCKED.
fn probe(world: &World, from: &Pod, protocol: &str, target: &str) -> String {
    let args = [
        "exec",
        "-n",
        &from.namespace,
        &from.name,
        "--",
        "/bulkhead-samples",
        "probe",
        protocol,
        target,
        "--timeout",
        "1s",
    ];
    // A blocked probe exits with 1, and kubectl passes that on; its words come all the same.
    let said = world.kubectl(&args).unwrap_or_else(|error| format!("{error:#}"));
    if said.contains("OPEN") {
        "OPEN".to_owned()
    } else if said.contains("BLOCKED") {
        "BLOCKED".to_owned()
    } else {
        said
    }
}

#[test]
fn a_cell_reaches_no_other_cell_no_outside_and_no_api_server() {
    let (world, _turn) = World::enter();
    let own = workload(world, "payments-a").expect("workload of a").remove(0);
    let other = workload(world, "payments-b").expect("workload of b").remove(0);
    assert_ne!(own.node, other.node, "the example places these cells on two nodes");
    let control = OpenPod::new(world, &own.node);
    let service =
        world.json(&["get", "service", "-n", "cell-payments-b", "payments"]).expect("a Service of b");
    let service_ip =
        service.pointer("/spec/clusterIP").and_then(|ip| ip.as_str()).expect("an address").to_owned();
    let api = world.json(&["get", "service", "kubernetes", "-n", "default"]).expect("the API's Service");
    let api = api.pointer("/spec/clusterIP").and_then(|ip| ip.as_str()).expect("an address").to_owned();

    // Open to everybody, so that a block can be told from an absence. The rest is shown open from a pod without walls.
    let open_targets = [
        ("tcp", "203.0.113.1:80".to_owned()),
        ("udp", "203.0.113.1:53".to_owned()),
        ("tcp", "169.254.169.254:80".to_owned()),
        ("tcp", format!("{api}:443")),
        ("tcp", format!("{}:8080", control.pod.ip)),
    ];
    for (protocol, target) in &open_targets {
        assert_eq!(
            probe(world, &control.pod, protocol, target),
            "OPEN",
            "negative control: {protocol} {target}"
        );
        assert_eq!(probe(world, &own, protocol, target), "BLOCKED", "from {}: {protocol} {target}", own.name);
    }
    // What a cell's own policy closes is closed to the control too; its own pods show that somebody answers there.
    let neighbour = orchestrators(world, "payments-b").expect("orchestrators of b").remove(0);
    for target in
        [format!("{}:8080", other.ip), format!("{service_ip}:8080"), format!("{}:8080", neighbour.ip)]
    {
        assert_eq!(probe(world, &other, "tcp", &target), "OPEN", "negative control from b itself: {target}");
        assert_eq!(probe(world, &own, "tcp", &target), "BLOCKED", "from a: {target}");
        assert_eq!(
            probe(world, &control.pod, "tcp", &target),
            "BLOCKED",
            "from outside every cell: {target}"
        );
    }
}
