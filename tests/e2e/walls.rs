//! From a pod of one cell, nothing of another cell, of the outside or of the API server can be reached.

use std::net::SocketAddr;

use anyhow::Result;
use bulkhead_samples::dns::Transport;
use bulkhead_tests::pods::{Pod, orchestrators, running, service, workload};
use bulkhead_tests::{Network, World};

/// Where nothing is denied: the place of the negative control.
const OPEN: &str = "walls-open";
/// Where the workload pods send back datagrams while this test runs.
const ECHO: u16 = 9_999;

/// Pods without walls, one on each node, removed when this goes out of scope.
struct OpenPods<'a>(&'a World);

impl<'a> OpenPods<'a> {
    fn new(world: &'a World, nodes: [&str; 2]) -> (Self, [Pod; 2]) {
        let open = Self(world);
        world
            .apply(&format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{OPEN}"}}}}"#))
            .expect("a namespace without policies");
        let pods = nodes.map(|node| {
            world
                .apply(&format!(
                    r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"on-{node}","namespace":"{OPEN}","labels":{{"app":"probe"}}}},
"spec":{{"nodeName":"{node}","terminationGracePeriodSeconds":0,"containers":[{{"name":"probe","image":"localhost/bulkhead/sample:dev","imagePullPolicy":"IfNotPresent",
"args":["workload","--listen","0.0.0.0:8080","--name","probe"]}}]}}}}"#
                ))
                .expect("a pod without walls");
            world
                .kubectl(&["wait", "-n", OPEN, "--for=condition=Ready", &format!("pod/on-{node}"), "--timeout=60s"])
                .expect("it runs");
            let mut listed = running(world, OPEN, "app=probe").expect("listed");
            listed.retain(|pod| pod.node == node);
            listed.remove(0)
        });
        (open, pods)
    }
}

impl Drop for OpenPods<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "namespace", OPEN, "--wait=true", "--timeout=60s"]);
    }
}

/// A Service for datagrams in a cell, which no cell of the examples has; removed when this goes out of scope.
struct DatagramService<'a> {
    world: &'a World,
    namespace: String,
}

impl<'a> DatagramService<'a> {
    fn new(world: &'a World, cell: &str) -> Self {
        let namespace = format!("cell-{cell}");
        world
            .apply(&format!(
                r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"datagrams","namespace":"{namespace}"}},
"spec":{{"selector":{{"app":"payments"}},"ports":[{{"port":{ECHO},"protocol":"UDP"}}]}}}}"#
            ))
            .expect("a Service for datagrams");
        Self { world, namespace }
    }
}

impl Drop for DatagramService<'_> {
    fn drop(&mut self) {
        let _ = self.world.kubectl(&["delete", "service", "-n", &self.namespace, "datagrams"]);
    }
}

/// Somewhere, and how to try it.
pub(crate) struct Target {
    what: String,
    at: SocketAddr,
    tries: fn(&Network, SocketAddr) -> Result<()>,
}

pub(crate) fn tcp(what: impl Into<String>, at: SocketAddr) -> Target {
    Target { what: format!("{} over TCP at {at}", what.into()), at, tries: Network::tcp }
}

fn udp(what: impl Into<String>, at: SocketAddr) -> Target {
    Target { what: format!("{} over UDP at {at}", what.into()), at, tries: Network::udp }
}

/// Shows that `control` reaches every target, and then that none of the `walled` does.
#[track_caller]
pub(crate) fn walled(targets: &[Target], control: &Pod, walled: &[&Pod]) {
    let from = |pod: &Pod| Network::of_pod(pod).expect("it runs");
    for Target { what, at, tries } in targets {
        let open = tries(&from(control), *at);
        assert!(open.is_ok(), "the negative control: {} does not reach {what}: {open:?}", control.name);
        for pod in walled {
            assert!(tries(&from(pod), *at).is_err(), "{} of {} reaches {what}", pod.name, pod.namespace);
        }
    }
}

#[test]
fn a_cell_reaches_no_other_cell_no_outside_and_no_api_server() {
    let (world, _turn) = World::enter();
    let cells = ["payments-a", "payments-b"];
    let workloads = cells.map(|cell| workload(world, cell).expect("workload pods"));
    let runtimes = cells.map(|cell| orchestrators(world, cell).expect("orchestrators"));
    let nodes = [0, 1].map(|cell: usize| workloads[cell][0].node.as_str());
    assert_ne!(nodes[0], nodes[1], "the example places these cells on two nodes");
    let (_open, controls) = OpenPods::new(world, nodes);
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let endpoints = world.json(&["get", "endpoints", "-n", "default", "kubernetes"]).expect("of the API");
    let endpoint = &endpoints["subsets"][0];
    let endpoint = format!(
        "{}:{}",
        endpoint["addresses"][0]["ip"].as_str().expect("an address"),
        endpoint["ports"][0]["port"]
    );
    let outside = [
        tcp("the outside", address("203.0.113.1:80")),
        udp("the outside", address("203.0.113.1:53")),
        tcp("the metadata service", address("169.254.169.254:80")),
        udp("the metadata service", address("169.254.169.254:53")),
    ];
    let api = [
        tcp("the API's Service", service(world, "default", "kubernetes", 443).expect("a Service")),
        tcp("the API server", address(&endpoint)),
    ];
    for (cell, other) in [(0, 1), (1, 0)] {
        let (own, control) = (&workloads[cell][0], &controls[cell]);
        let neighbour = tcp("a pod without walls", controls[other].at(8080).expect("an address"));
        walled(&outside, control, &[own, &runtimes[cell][0]]);
        walled(&[neighbour], control, &[own, &runtimes[cell][0]]);
        // Only the orchestrator has to ask the API server.
        walled(&api, &runtimes[cell][0], &[own]);

        // What a cell's own policies close is closed to the control too; another pod of the cell shows that somebody
        // answers there.
        let name = cells[other];
        let namespace = format!("cell-{name}");
        let (one, another) = (&workloads[other][0], &workloads[other][1]);
        Network::of_pod(one).and_then(|pod| pod.echo(ECHO)).expect("it sends back datagrams");
        let _datagrams = DatagramService::new(world, name);
        let at = |port| service(world, &namespace, if port == ECHO { "datagrams" } else { "payments" }, port);
        Network::of_pod(another).and_then(|pod| pod.echo(ECHO)).expect("whichever pod the Service picks");
        let targets = [
            tcp(format!("a pod of {name}"), one.at(8080).expect("an address")),
            udp(format!("a pod of {name}"), one.at(ECHO).expect("an address")),
            tcp(format!("the Service of {name}"), at(8080).expect("a Service")),
            udp(format!("the Service of {name}"), at(ECHO).expect("a Service")),
        ];
        walled(&targets, another, &[own, &runtimes[cell][0], control]);
        let orchestrator =
            tcp(format!("the orchestrator of {name}"), runtimes[other][0].at(8080).expect("an address"));
        let router =
            running(world, bulkhead_tests::world::SYSTEM, "bulkhead.dev/component=router").expect("routers");
        walled(&[orchestrator], &router[0], &[own, &runtimes[cell][0], control]);
    }
}

/// Pods of one node meet on its bridge and not on the way between nodes, so that their walls stand elsewhere.
#[test]
fn cells_on_the_same_node_are_as_far_apart_as_on_two() {
    let (world, _turn) = World::enter();
    let own = workload(world, "payments-c").expect("workload pods").remove(0);
    let neighbours = ["payments-a", "payments-b"].map(|cell| workload(world, cell).expect("workload pods"));
    let beside = neighbours.into_iter().find(|pods| pods[0].node == own.node).expect("one is on that node");
    let [one, another] = &beside[..] else { panic!("two pods: {beside:?}") };
    assert_eq!((&one.node, &another.node), (&own.node, &own.node));
    let runtimes = orchestrators(world, "payments-c").expect("orchestrators");
    let runtime = runtimes.iter().find(|pod| pod.node == own.node).expect("one is on each node");
    Network::of_pod(one).and_then(|pod| pod.echo(ECHO + 1)).expect("it sends back datagrams");
    let targets = [
        tcp(format!("a pod of {}", one.namespace), one.at(8080).expect("an address")),
        udp(format!("a pod of {}", one.namespace), one.at(ECHO + 1).expect("an address")),
    ];
    walled(&targets, another, &[&own, runtime]);
}

#[test]
fn a_cell_resolves_its_own_names_over_udp_and_tcp() {
    let (world, _turn) = World::enter();
    let server = service(world, "kube-system", "kube-dns", 53).expect("the cluster's DNS");
    let pod = workload(world, "payments-a").expect("workload pods").remove(0);
    let network = Network::of_pod(&pod).expect("it runs");
    let own = service(world, "cell-payments-a", "payments", 8080).expect("a Service").ip();
    for transport in [Transport::Udp, Transport::Tcp] {
        let found = network.resolve(server, "payments.cell-payments-a.svc.cluster.local", transport);
        assert_eq!(found.expect("resolved"), own, "{transport:?}");
    }
}
