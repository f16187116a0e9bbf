//! The API server away for two minutes, the operator killed and a router killed meanwhile: routers go on.

use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::pods::{routers, running, service};
use bulkhead_tests::traffic::{Failure, Load, now_ms};
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

/// Waits until what the cluster itself consists of, controllers, scheduler and kubelets, has got over the outage.
fn at_work_again(world: &World) -> Result<()> {
    let wait = format!("--timeout={}s", PATIENCE.as_secs());
    world.kubectl(&["create", "namespace", "after-outage"])?;
    world.kubectl(&["delete", "namespace", "after-outage", &wait])?;
    let operator = ["deployment/bulkhead-operator", "-n", SYSTEM];
    world.kubectl(&[&["rollout", "restart"], &operator[..]].concat())?;
    world.kubectl(&[&["rollout", "status", &wait], &operator[..]].concat())?;
    let lasting = "bulkhead.dev/component in (router, cell-runtime, workload)";
    world.kubectl(&["wait", "pods", "-A", "-l", lasting, "--for=condition=Ready", &wait]).map(drop)
}

/// How long the cluster's own controllers may back off after an outage before they try again.
const PATIENCE: Duration = Duration::from_mins(3);
/// How long the API server is away.
const AWAY: Duration = Duration::from_mins(2);

#[test]
fn nothing_fails_while_the_api_server_the_operator_and_a_router_are_away() {
    survives(AWAY);
}

/// The outage under load: nothing fails during it, and an edit is served soon after it.
pub(crate) fn survives(away_for: Duration) {
    let (world, _turn) = World::enter();
    let operators = running(world, SYSTEM, "bulkhead.dev/component=operator").expect("operators");
    let router_pods = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers");
    // A load for each router, so that none hides behind another.
    let loads: Vec<_> =
        routers(world).expect("addresses").into_iter().map(|router| Load::to(router, 100)).collect();
    for load in &loads {
        load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    }

    let away = ApiServerAway::new(world);
    let since = now_ms();
    for operator in &operators {
        operator.signal(Signal::SIGKILL).expect("killed");
    }
    router_pods[0].signal(Signal::SIGKILL).expect("killed");
    let killed = now_ms();
    eventually(Duration::from_secs(60), || loads[0].fails_since(killed)).expect("the router is away");
    loads[0]
        .wait_for_since(Duration::from_secs(60), "payments-a", killed + 100)
        .expect("its container starts again and serves from the table on its volume");
    let restarted = now_ms();
    let left = away_for.saturating_sub(Duration::from_millis(restarted - since));
    holds_for(left, || loads.iter().try_for_each(Load::flowing)).expect("traffic goes on");
    world.kubectl(&["get", "--raw", "/readyz"]).expect_err("the API server is away all the time");
    drop(away);

    let back = now_ms();
    eventually(Duration::from_secs(30), || world.kubectl(&["get", "--raw", "/readyz"]))
        .expect("the API server is back");
    // A node's own way to the API goes through the Service, which kube-proxy restores in its own time.
    eventually(PATIENCE, || nodes_reach_the_api(world)).expect("it is back for pods too");
    world.patch("cell", "payments-a", r#"{"spec":{"weight":0}}"#).expect("patched");
    let patched = now_ms();
    eventually(Duration::from_secs(5), || {
        let quiet = |load: &Load| load.quiet("payments-a", Duration::from_millis(500));
        anyhow::ensure!(loads.iter().all(quiet), "payments-a still gets requests");
        Ok(())
    })
    .expect("an edit is served within 5 s of the return, by every router");
    world.patch("cell", "payments-a", r#"{"spec":{"weight":100}}"#).expect("patched back");
    at_work_again(world).expect("whoever comes next finds the cluster at work");
    for (number, load) in loads.into_iter().enumerate() {
        let seen = load.stop();
        // The killed router takes nothing until it is back, and what it had in flight is lost with it.
        let excused = |failure: &Failure| {
            number == 0 && failure.of_connection() && (killed - 1_000..restarted).contains(&failure.sent_ms)
        };
        let lost: Vec<_> = seen.failed.iter().filter(|failure| !excused(failure)).collect();
        assert!(
            lost.is_empty(),
            "{} lost by router {number}, the first: {:?} (killed at {killed}, serving again at {restarted}, API back at \
             {back}, patched at {patched})",
            lost.len(),
            lost.first()
        );
    }
}
