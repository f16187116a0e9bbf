//! The API server away for two minutes, the operator killed and a router killed meanwhile: routers go on.

use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::pods::{routers, running, service};
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{Network, World, eventually, holds_for};
use nix::sys::signal::Signal;

/// Starts the API server again when this goes out of scope.
struct ApiServerAway<'a>(&'a World);

impl<'a> ApiServerAway<'a> {
    fn new(world: &'a World) -> Self {
        world.cluster("stop-apiserver", &[]).expect("the API server stops");
        Self(world)
    }
}

impl Drop for ApiServerAway<'_> {
    fn drop(&mut self) {
        self.0.cluster("start-apiserver", &[]).expect("the API server starts");
    }
}

/// Whether the Service `default/kubernetes` takes connections from every node.
fn nodes_reach_the_api(world: &World) -> Result<()> {
    let address = service(world, "default", "kubernetes", 443)?;
    (1..=2).try_for_each(|node| Network::of_node(world, node).tcp(address))
}

/// How long traffic is watched with the API server away, beside what the rest takes: two minutes in all.
const WATCHED: Duration = Duration::from_secs(100);

#[test]
fn nothing_fails_while_the_api_server_the_operator_and_a_router_are_away() {
    survives(WATCHED);
}

/// The outage under load: nothing fails during it, and an edit is served soon after it.
pub(crate) fn survives(watched: Duration) {
    let (world, _turn) = World::enter();
    let operators = running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators");
    let router_pods = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers");
    let addresses = routers(world).expect("addresses");
    let load = Load::start(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");

    let away = ApiServerAway::new(world);
    for operator in &operators {
        operator.signal(Signal::SIGKILL).expect("killed");
    }
    router_pods[0].signal(Signal::SIGKILL).expect("killed");
    eventually(Duration::from_secs(60), || bulkhead_tests::traffic::connects(addresses[0]))
        .expect("the router's container starts again, from the table on its volume");
    holds_for(watched, || load.flowing()).expect("traffic goes on");
    drop(away);

    let back = now_ms();
    eventually(Duration::from_secs(30), || world.kubectl(&["get", "--raw", "/readyz"]))
        .expect("the API server is back");
    // A node's own way to the API goes through the Service, which kube-proxy restores in its own time.
    eventually(Duration::from_secs(60), || nodes_reach_the_api(world)).expect("it is back for pods too");
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#).expect("patched");
    let patched = now_ms();
    eventually(Duration::from_secs(5), || {
        anyhow::ensure!(
            load.quiet("payments-a", Duration::from_millis(500)),
            "payments-a still gets requests"
        );
        Ok(())
    })
    .expect("an edit is served within 5 s of the return");
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#).expect("patched back");
    let outcome = load.stop();
    // The cluster's own controllers lost their leases; whoever comes next finds them at work again.
    world.kubectl(&["create", "namespace", "after-outage"]).expect("created");
    world
        .kubectl(&["delete", "namespace", "after-outage", "--timeout=180s"])
        .expect("the cluster's controllers are back");
    // The killed router's own connections may break; no request that a living router took may fail.
    let lost: Vec<_> =
        outcome.failed.iter().filter(|failure| !failure.connection_broke(addresses[0])).collect();
    assert!(
        lost.is_empty(),
        "{} lost, the first: {:?} (API back at {back}, patched at {patched})",
        lost.len(),
        lost.first()
    );
}
