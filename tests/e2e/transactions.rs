//! Payments of examples/payments while what makes them dies: none is lost, and none is made twice.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bulkhead_tests::pods::{Pod, routers, running, workload};
use bulkhead_tests::traffic::{Answer, now_ms, send};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, eventually};

use crate::payments::{CELLS, Payments, RECOVERY, load, payment};

/// The values that have routers know a client's payment again by its key.
const KEYS: [&str; 4] = [
    "router.listeners[0].name=http",
    "router.listeners[0].port=8080",
    "router.listeners[0].protocol=HTTP",
    "router.listeners[0].idempotency.onRepeat=Conflict",
];

/// A node that is down, started again when this goes out of scope.
struct Down<'a> {
    world: &'a World,
    node: String,
}

impl<'a> Down<'a> {
    fn new(world: &'a World, name: &str) -> Self {
        let down = Self { world, node: name.trim_start_matches('n').to_owned() };
        world.cluster("stop-node", &[&down.node]).expect("the node loses power");
        down
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.world.cluster("start-node", &[&self.node]) {
            eprintln!("node n{} stays down: {error:#}", self.node);
        }
        let _ = self.world.kubectl(&["wait", "nodes", "--all", "--for=condition=Ready", "--timeout=180s"]);
    }
}

#[test]
fn killing_every_pod_of_a_cell_loses_no_payment_and_makes_none_twice() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    payments.unchecked_and_slow();
    let load = load(routers(world).expect("routers"), 50);
    for cell in CELLS {
        load.wait_for(Duration::from_secs(10), cell).expect("both cells have payments under way");
    }
    let killed = now_ms();
    let kill = ["delete", "pods", "--all", "-n", "cell-cards-a", "--grace-period=0", "--force"];
    world.kubectl(&kill).expect("gone without a word");
    load.wait_for_since(Duration::from_secs(10), "cards-b", killed + 1_000).expect("the other goes on");
    load.wait_for_since(RECOVERY, "cards-a", killed + 5_000).expect("it comes back");
    payments.each_once(&load.stop());
}

#[test]
fn a_node_that_dies_loses_no_payment_of_the_routers_that_are_left_and_makes_none_twice() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    payments.unchecked_and_slow();
    let issuer = payments.issuer_pod().expect("it runs");
    let dies = CELLS.into_iter().find_map(|cell| {
        let pods = workload(world, cell).ok()?;
        pods.iter().all(|pod| pod.node != issuer.node).then(|| (cell, pods[0].node.clone()))
    });
    let (cell, node) = dies.expect("the cells are on two nodes, and the issuer on one of them");
    let mut left = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers");
    left.retain(|router| router.node != node);
    let addresses: Vec<_> = left.iter().map(|router| router.at(8_080).expect("an address")).collect();
    assert!(!addresses.is_empty(), "a router is on the node that stays");
    let load = load(addresses, 50);
    for cell in CELLS {
        load.wait_for(Duration::from_secs(10), cell).expect("both cells have payments under way");
    }
    let other = CELLS.into_iter().find(|one| *one != cell).expect("there are two");
    let down = Down::new(world, &node);
    let since = now_ms();
    load.wait_for_since(Duration::from_secs(20), other, since + 5_000).expect("the other goes on");
    assert!(load.quiet(cell, Duration::from_secs(1)), "nobody answers from a node that is down");
    drop(down);
    load.wait_for_since(RECOVERY, cell, now_ms()).expect("it comes back");
    payments.each_once(&load.stop());
}

#[test]
fn what_a_router_recorded_outlives_its_pod() {
    let (world, _turn) = World::enter();
    let payments = Payments::with(world, &KEYS);
    world
        .kubectl(&["wait", "--for=condition=Ready", "router/main", "--timeout=60s"])
        .expect("they know keys");
    let router = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers").remove(0);
    // Ledgers remember the keys of earlier runs.
    let (key, other) = (format!("{}-a", now_ms()), format!("{}-b", now_ms()));
    let pay =
        |router: &Pod, key: &str| send(router.at(8_080)?, &payment(None)?.header("idempotency-key", key));
    let decided = |answer: &Answer| {
        assert_eq!((answer.status, &answer.json()["reason"]), (409, &"Decided".into()), "{}", answer.body);
    };
    assert_eq!(pay(&router, &key).expect("answered").status, 200);
    decided(&pay(&router, &key).expect("answered"));

    let kill = ["delete", "pod", "-n", SYSTEM, &router.name, "--grace-period=0", "--force"];
    world.kubectl(&kill).expect("gone without a word");
    let (back, again) = eventually(RECOVERY, || {
        let mut routers = running(world, SYSTEM, "bulkhead.dev/component=router")?;
        routers.retain(|pod| pod.name == router.name);
        let back = routers.pop().context("its successor does not run")?;
        let answer = pay(&back, &key)?;
        // Where nothing happened it may be asked again; any other answer is its last word.
        ensure!(answer.status != 503, "{}", answer.body);
        Ok((back, answer))
    })
    .expect("it comes back");
    decided(&again);
    assert_eq!(pay(&back, &other).expect("answered").status, 200, "of another key it knows nothing");
    assert_eq!((payments.stats().executed, payments.stats().received), (2, 2));
}
