//! Payments of examples/payments: they reach an issuer outside the cells through the routers alone, and none is lost or made
//! twice when a cell dies in the middle of its work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_samples::issuer::Stats;
use bulkhead_samples::load::{Body, Plan};
use bulkhead_samples::payment::Payment;
use bulkhead_tests::pods::{Pod, orchestrators, routers, running, service, workload};
use bulkhead_tests::traffic::{Answer, Load, Request, Seen, now_ms, send};
use bulkhead_tests::world::{SYSTEM, condition, reason};
use bulkhead_tests::{World, eventually};
use serde_json::Value;

use crate::walls::{tcp, walled};

const EXAMPLE: &str = "examples/payments/";
const CELLS: [&str; 2] = ["cards-a", "cards-b"];
/// Lets routers reach the issuer's namespace, as the example says.
const EGRESS: &str =
    r"networkPolicy.routerEgress[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=issuer";
/// Where the issuer says what it executed.
const CONTROL: u16 = 8_081;
/// A card of the example's second Destination; the sample's is of the first.
const MASTERCARD: &str = "5555555555554444";
/// How long pods that are killed may take until their cell is back and has its whole share.
const RECOVERY: Duration = Duration::from_mins(3);

/// The example, removed when this goes out of scope.
struct Payments<'a>(&'a World);

impl<'a> Payments<'a> {
    fn new(world: &'a World) -> Self {
        let payments = Self(world);
        world.install_bulkhead_with(&[EGRESS]).expect("the routers' way out is open");
        world.kubectl(&["apply", "-f", EXAMPLE]).expect("stored");
        let wait = ["wait", "--for=condition=Ready", "destination/visa", "destination/mastercard"];
        world
            .kubectl(&[&wait[..], &["cell/cards-a", "cell/cards-b", "--timeout=120s"]].concat())
            .expect("Ready");
        eventually(RECOVERY, || payments.whole()).expect("both cells have their whole share");
        payments.issuer(&Request::delete("/stats")).expect("its book is empty");
        payments
    }

    /// Whether both cells serve, with nothing taken off their weight.
    fn whole(&self) -> Result<()> {
        self.0.all_serving(&CELLS)?;
        for cell in CELLS {
            let weight = self.0.json(&["get", "cell", cell])?["status"]["effectiveWeight"].clone();
            ensure!(weight == 100, "{cell} has {weight} %");
        }
        Ok(())
    }

    fn issuer_pod(&self) -> Result<Pod> {
        running(self.0, "issuer", "app=issuer")?.pop().context("the issuer does not run")
    }

    /// Asks the issuer itself, which nothing keeps this machine from.
    fn issuer(&self, request: &Request) -> Result<Answer> {
        let answer = send(self.issuer_pod()?.at(CONTROL)?, request)?;
        ensure!(answer.status < 300, "the issuer answers {}: {}", answer.status, answer.body);
        Ok(answer)
    }

    fn stats(&self) -> Stats {
        let answer = self.issuer(&Request::get("/stats")).expect("the issuer counts");
        serde_json::from_str(&answer.body).expect("its counts are JSON")
    }

    /// Has the issuer execute whatever comes, so that a message that comes twice shows, and take its time, so that many are
    /// with it at any moment.
    fn unchecked_and_slow(&self) {
        let order = r#"{"duplicateCheck": false, "delayMs": 100}"#;
        self.issuer(&Request::put("/control", order)).expect("it takes the order");
    }

    /// One payment through the first router, with that card instead of the sample's.
    fn pay(&self, card: Option<&str>) -> Result<Answer> {
        let mut payment = serde_json::to_value(Payment::sample("alone"))?;
        if let Some(card) = card {
            payment["card"] = Value::from(card);
        }
        send(routers(self.0)?[0], &Request::post("/card-payments", payment.to_string()))
    }

    /// Says that each payment of the load was answered and executed once, and no other was.
    #[track_caller]
    fn each_once(&self, seen: &Seen) {
        assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
        let stats = self.stats();
        assert_eq!(
            (stats.keys_executed_more_than_once, stats.ids_executed_more_than_once),
            (0, 0),
            "{stats:?}"
        );
        assert_eq!(
            (stats.executed, stats.received),
            (seen.hits.len() as u64, seen.hits.len() as u64),
            "{stats:?}"
        );
    }
}

impl Drop for Payments<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "-f", EXAMPLE, "--ignore-not-found", "--timeout=180s"]);
        let _ = self.0.install_bulkhead();
    }
}

/// Payments at that rate through these routers, each with a reference of its own.
fn load(routers: Vec<SocketAddr>, rate: u32) -> Load {
    let payment =
        |reference: &str| serde_json::to_vec(&Payment::sample(reference)).unwrap_or_default().into();
    Load::of(Plan {
        targets: routers,
        method: http::Method::POST,
        path: "/card-payments".to_owned(),
        headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"))],
        keys: u64::MAX,
        body: Body::Of(std::sync::Arc::new(payment)),
        rate,
        connections: 64,
        duration: None,
        ..Plan::default()
    })
}

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
        let _ = self.world.cluster("start-node", &[&self.node]);
        let _ = self.world.kubectl(&["wait", "nodes", "--all", "--for=condition=Ready", "--timeout=180s"]);
    }
}

#[test]
fn a_payment_reaches_the_issuer_through_a_router_and_never_from_its_cell() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    let issuer = payments.issuer_pod().expect("it runs").at(8_080).expect("an address");
    let targets = [
        tcp("the issuer", issuer),
        tcp("the issuer's Service", service(world, "issuer", "issuer", 8_080).expect("a Service")),
    ];
    let router = running(world, SYSTEM, "bulkhead.dev/component=router").expect("routers").remove(0);
    for cell in CELLS {
        let (services, runtimes) = (workload(world, cell), orchestrators(world, cell));
        let (services, runtimes) = (services.expect("services"), runtimes.expect("orchestrators"));
        walled(&targets, &router, &services.iter().chain(&runtimes).collect::<Vec<_>>());
    }
    for card in [None, Some(MASTERCARD)] {
        let answer = payments.pay(card).expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let receipt = answer.json();
        assert_eq!((&receipt["approved"], &receipt["issuer"]), (&true.into(), &"issuer".into()), "{receipt}");
        assert!(CELLS.iter().any(|cell| receipt["cell"] == *cell), "{receipt}");
    }
    assert_eq!((payments.stats().executed, payments.stats().received), (2, 2));
}

#[test]
fn a_destination_that_is_not_there_is_told_by_status_event_and_answer() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    for destination in ["visa", "mastercard"] {
        let object = world.json(&["get", "destination", destination]).expect("stored");
        for r#type in ["Ready", "Accepted", "Programmed", "DuplicateChecked"] {
            assert_eq!(condition(&object, r#type), "True", "{}", object["status"]);
        }
    }
    assert_eq!(payments.pay(Some(MASTERCARD)).expect("answered").status, 200, "the control");

    world.kubectl(&["delete", "destination", "mastercard"]).expect("deleted");
    let refused = eventually(Duration::from_secs(20), || {
        let answer = payments.pay(Some(MASTERCARD))?;
        ensure!(answer.status == 403, "answered {}: {}", answer.status, answer.body);
        Ok(answer)
    });
    assert_eq!(refused.expect("routers know it no more").json()["reason"], "DestinationForbidden");
    for cell in CELLS {
        eventually(Duration::from_secs(20), || {
            world.expect_condition(cell, "DestinationsResolved", "False")?;
            world.expect_condition(cell, "Ready", "True")
        })
        .expect("the cell says what it misses, and is ready for the rest");
    }
    eventually(Duration::from_secs(30), || {
        let reason = "reason=DestinationForbidden,type=Warning";
        let events = world.json(&["get", "events", "-n", "default", "--field-selector", reason])?;
        let told = events["items"].to_string();
        ensure!(told.contains("mastercard") && told.contains("which does not exist"), "{told}");
        Ok(())
    })
    .expect("the Cell's owner is told");
    assert_eq!(payments.pay(None).expect("answered").status, 200, "other payments go on");

    world.kubectl(&["apply", "-f", EXAMPLE]).expect("made again");
    eventually(Duration::from_secs(20), || {
        let answer = payments.pay(Some(MASTERCARD))?;
        ensure!(answer.status == 200, "answered {}: {}", answer.status, answer.body);
        world.expect_condition("cards-a", "DestinationsResolved", "True")
    })
    .expect("as before");
}

#[test]
fn a_cell_must_name_what_its_template_sends_to_and_a_destination_is_never_a_routers_own_pod() {
    let (world, _turn) = World::enter();
    let _payments = Payments::new(world);
    world.patch("cell", "cards-b", r#"{"spec":{"destinations":["mastercard"]}}"#).expect("stored");
    eventually(Duration::from_secs(20), || {
        let cell = world.json(&["get", "cell", "cards-b"])?;
        ensure!(reason(&cell, "Stalled") == "DestinationForbidden", "{}", cell["status"]);
        Ok(())
    })
    .expect("the Cell is told what to add");
    world.patch("cell", "cards-b", r#"{"spec":{"destinations":["visa","mastercard"]}}"#).expect("stored");
    world.kubectl(&["wait", "--for=condition=Ready", "cell/cards-b", "--timeout=120s"]).expect("Ready again");

    let ask = |endpoint: &str, network: &str| {
        let document = format!(
            "apiVersion: bulkhead.dev/v1alpha1\nkind: Destination\nmetadata: {{name: tried}}\n\
             spec: {{connect: {{}}, endpoints: [\"{endpoint}\"], allowedNetworks: [\"{network}\"]}}\n"
        );
        world.feed(&["create", "--dry-run=server", "-f", "-"], &document)
    };
    ask("192.0.2.1:443", "10.0.0.0/8").expect("the control");
    for (endpoint, network) in [
        ("127.0.0.1:9090", "10.0.0.0/8"),
        ("localhost:9090", "10.0.0.0/8"),
        ("0.0.0.0:9090", "10.0.0.0/8"),
        ("[::1]:9090", "10.0.0.0/8"),
        ("[::ffff:127.0.0.1]:9090", "10.0.0.0/8"),
        ("router.example:9090", "127.5.0.0/16"),
        ("router.example:9090", "0.0.0.0/0"),
        ("router.example:9090", "::/0"),
    ] {
        let refusal = format!("{:#}", ask(endpoint, network).expect_err(endpoint));
        assert!(refusal.contains("bulkhead-destinations"), "{endpoint} {network}: {refusal}");
    }
}

#[test]
fn killing_every_pod_of_a_cell_loses_no_payment_and_makes_none_twice() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    payments.unchecked_and_slow();
    let load = load(routers(world).expect("routers"), 200);
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
    let load = load(addresses, 200);
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
