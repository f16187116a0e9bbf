//! A cell's services reach a `connect` Destination through their orchestrator and a router, as HTTPS_PROXY says: that one, and in
//! no other way.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_samples::dns::Transport;
use bulkhead_tests::pods::{Pod, orchestrators, running, service, workload};
use bulkhead_tests::world::{SYSTEM, condition, reason};
use bulkhead_tests::{Network, World, eventually};

use crate::walls::{tcp, walled};

/// Where nothing is denied and the routers may go.
const OUTSIDE: &str = "tunnels-outside";
const EGRESS: &str = r"networkPolicy.routerEgress[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=tunnels-outside";
/// Where the server outside says back what it hears.
const ECHO: u16 = 9_999;
/// Where a cell-runtime takes tunnels, and where a router does.
const PROXY: u16 = 8_083;
const CONNECT: u16 = 8_082;
/// May have tunnels to the server, and may not.
const ALLOWED: &str = "payments-a";
const OTHER: &str = "payments-b";
/// How long new orchestrators may take to be there and in every router's table.
const ROLLOUT: Duration = Duration::from_mins(2);

/// A server outside every cell and a Destination of it that one cell names; removed when this goes out of scope.
struct Outside<'a> {
    world: &'a World,
    echo: SocketAddr,
}

impl<'a> Outside<'a> {
    fn new(world: &'a World) -> Self {
        let mut outside = Self { world, echo: SocketAddr::from(([0, 0, 0, 0], ECHO)) };
        world.install_bulkhead_with(&[EGRESS]).expect("the routers' way out is open");
        let namespace =
            format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{OUTSIDE}"}}}}"#);
        world.apply(&namespace).expect("a namespace without policies");
        world
            .apply(&format!(
                r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"echo","namespace":"{OUTSIDE}","labels":{{"app":"echo"}}}},
"spec":{{"terminationGracePeriodSeconds":0,"containers":[{{"name":"echo","image":"localhost/bulkhead/sample:dev","imagePullPolicy":"IfNotPresent",
"args":["probe","serve-tcp","--listen","0.0.0.0:{ECHO}"]}}]}}}}"#
            ))
            .expect("a server");
        world
            .kubectl(&["wait", "-n", OUTSIDE, "--for=condition=Ready", "pod/echo", "--timeout=60s"])
            .expect("it runs");
        let pod = running(world, OUTSIDE, "app=echo").expect("listed").remove(0);
        outside.echo = pod.at(ECHO).expect("an address");
        world
            .apply(&format!(
                "apiVersion: bulkhead.dev/v1alpha1\nkind: Destination\nmetadata: {{name: echo}}\n\
                 spec: {{connect: {{}}, pointOfNoReturn: false, endpoints: [\"{}\"]}}\n",
                outside.echo
            ))
            .expect("stored");
        world.patch("cell", ALLOWED, r#"{"spec":{"destinations":["echo"]}}"#).expect("stored");
        world
            .kubectl(&["wait", "--for=condition=Ready", "destination/echo", "--timeout=60s"])
            .expect("routers open tunnels to it");
        outside
    }

    /// Waits until no orchestrator of before is left.
    fn rolled_out(&self) {
        let namespace = format!("cell-{ALLOWED}");
        let rollout = ["rollout", "status", "-n", &namespace, "deployment/cell-runtime", "--timeout=120s"];
        self.world.kubectl(&rollout).expect("all orchestrators are new");
    }

    /// What comes back for a word through a tunnel to `target` that a pod of the allowed cell asks for at `cell-runtime`, the name
    /// that its HTTPS_PROXY would have.
    fn ask(&self, from: &Pod, target: SocketAddr) -> Result<(u16, String)> {
        let network = Network::of_pod(from)?;
        let dns = service(self.world, "kube-system", "kube-dns", 53)?;
        let name = format!("cell-runtime.cell-{ALLOWED}.svc.cluster.local");
        let runtime = network.resolve(dns, &name, Transport::Udp)?;
        network.tunnel((runtime, PROXY).into(), &target.to_string(), "a word")
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        let _ = self.world.patch("cell", ALLOWED, r#"{"spec":{"destinations":null}}"#);
        let _ = self.world.kubectl(&["delete", "destination", "echo", "--ignore-not-found"]);
        let _ = self.world.kubectl(&["delete", "namespace", OUTSIDE, "--ignore-not-found", "--timeout=60s"]);
        let _ = self.world.install_bulkhead();
    }
}

#[test]
fn a_cells_pod_has_tunnels_to_what_its_cell_names_and_no_other_way_there() {
    let (world, _turn) = World::enter();
    let outside = Outside::new(world);
    let own = workload(world, ALLOWED).expect("workload pods").remove(0);
    let echoed = eventually(ROLLOUT, || {
        let answer = outside.ask(&own, outside.echo)?;
        ensure!(answer.0 == 200, "{answer:?}");
        Ok(answer)
    });
    assert_eq!(echoed.expect("the tunnel opens").1, "a word");
    outside.rolled_out();

    let unnamed = SocketAddr::new(outside.echo.ip(), ECHO - 1);
    let (status, words) = outside.ask(&own, unnamed).expect("answered");
    assert_eq!(status, 403, "{words}");
    assert!(words.contains("DestinationForbidden"), "{words}");

    let neighbour = workload(world, OTHER).expect("workload pods").remove(0);
    let [runtime, other] =
        [ALLOWED, OTHER].map(|cell| orchestrators(world, cell).expect("orchestrators").remove(0));
    let router = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers").remove(0);
    let everybody = [&own, &neighbour, &runtime, &other];
    walled(&[tcp("the server outside", outside.echo)], &router, &everybody);
    let at_routers = [
        tcp("a router's tunnels", router.at(CONNECT).expect("an address")),
        tcp("their Service", service(world, SYSTEM, "bulkhead-router-connect", CONNECT).expect("a Service")),
    ];
    walled(&at_routers, &runtime, &[&own, &neighbour, &other]);
    let proxy = |of: &Pod| tcp("the tunnels of an orchestrator", of.at(PROXY).expect("an address"));
    walled(&[proxy(&runtime)], &own, &[&neighbour, &other, &router]);
    let offered = Network::of_pod(&neighbour).expect("it runs").tcp(other.at(PROXY).expect("an address"));
    assert!(offered.is_err(), "a cell that names no such Destination has no proxy");
}

#[test]
fn without_routers_that_open_tunnels_the_destination_says_so_and_its_cell_has_no_proxy() {
    let (world, _turn) = World::enter();
    let outside = Outside::new(world);
    let own = workload(world, ALLOWED).expect("workload pods").remove(0);
    eventually(ROLLOUT, || {
        let answer = outside.ask(&own, outside.echo)?;
        ensure!(answer.0 == 200, "{answer:?}");
        Ok(())
    })
    .expect("the control");

    world.install_bulkhead_with(&[EGRESS, "router.connect.enabled=false"]).expect("the routers open none");
    eventually(ROLLOUT, || {
        let destination = world.json(&["get", "destination", "echo"])?;
        ensure!(condition(&destination, "Ready") == "False", "{}", destination["status"]);
        ensure!(reason(&destination, "Ready") == "NoTunnels", "{}", destination["status"]);
        let runtimes = orchestrators(world, ALLOWED)?;
        let from = Network::of_pod(&own)?;
        for runtime in &runtimes {
            ensure!(from.tcp(runtime.at(PROXY)?).is_err(), "{} still takes tunnels", runtime.name);
        }
        Ok(())
    })
    .expect("it is told, and the proxies go");
    world.expect_condition(ALLOWED, "Ready", "True").expect("the cell does all other work");
}
