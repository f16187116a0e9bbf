//! Destinations of examples/payments: which are Ready, which a cell may reach and by which way, and who is told when it may not.

use std::time::Duration;

use anyhow::ensure;
use bulkhead_tests::pods::{orchestrators, running, service, workload};
use bulkhead_tests::world::{SYSTEM, condition, reason};
use bulkhead_tests::{World, eventually};
use serde_json::json;

use crate::payments::{AMEX, CELLS, MASTERCARD, Payments};
use crate::walls::{tcp, walled};

/// How long an Event may take: one about the same is told once in a minute, over all tests.
const TOLD: Duration = Duration::from_secs(90);

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
    let told = || payments.told(["Destination mastercard", "which does not exist"]);
    eventually(TOLD, told).expect("the Cell's owner is told");
    assert_eq!(payments.pay(None).expect("answered").status, 200, "other payments go on");

    payments.apply().expect("made again");
    eventually(Duration::from_secs(20), || {
        let answer = payments.pay(Some(MASTERCARD))?;
        ensure!(answer.status == 200, "answered {}: {}", answer.status, answer.body);
        world.expect_condition("cards-a", "DestinationsResolved", "True")
    })
    .expect("as before");
}

#[test]
fn a_destination_that_routers_have_no_way_to_is_not_ready_and_says_where_and_why() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    assert_eq!(payments.pay(Some(MASTERCARD)).expect("answered").status, 200, "the control");

    let allow = |networks: &str| {
        let patch = format!(r#"{{"spec":{{"allowedNetworks":{networks}}}}}"#);
        world.patch("destination", "mastercard", &patch).expect("stored");
    };
    allow("null");
    eventually(Duration::from_secs(20), || {
        let object = world.json(&["get", "destination", "mastercard"])?;
        ensure!(reason(&object, "Ready") == "DestinationUnavailable", "{}", object["status"]);
        let told = object["status"].to_string();
        ensure!(told.contains("bulkhead-router-0: issuer") && told.contains("in allowedNetworks"), "{told}");
        ensure!(condition(&object, "Programmed") == "True", "routers have it: {told}");
        Ok(())
    })
    .expect("its owner is told what to do");
    let refused = payments.pay(Some(MASTERCARD)).expect("answered");
    assert_eq!(
        (refused.status, &refused.json()["reason"]),
        (503, &"DestinationUnavailable".into()),
        "{}",
        refused.body
    );
    assert_eq!(payments.pay(None).expect("answered").status, 200, "other payments go on");

    allow(r#"["10.0.0.0/8"]"#);
    eventually(Duration::from_secs(20), || {
        let object = world.json(&["get", "destination", "mastercard"])?;
        ensure!(condition(&object, "Ready") == "True", "{}", object["status"]);
        Ok(())
    })
    .expect("Ready again");
    assert_eq!(payments.pay(Some(MASTERCARD)).expect("answered").status, 200);
}

#[test]
fn a_cell_reaches_what_it_does_not_name_once_it_names_it_and_its_owner_is_told_before() {
    let (world, _turn) = World::enter();
    let payments = Payments::new(world);
    assert_eq!(payments.pay(None).expect("answered").status, 200, "the control");
    let refused = payments.pay(Some(AMEX)).expect("answered");
    assert_eq!(
        (refused.status, &refused.json()["reason"]),
        (403, &"DestinationForbidden".into()),
        "{}",
        refused.body
    );
    assert_eq!(payments.stats().received, 1, "nothing went out");
    let told = || payments.told(["Destination amex", "which its spec.destinations does not name"]);
    eventually(TOLD, told).expect("the Cell's owner is told");

    let mut visa = world.json(&["get", "destination", "visa"]).expect("stored");
    visa["metadata"] = json!({"name": "amex"});
    world.apply(&visa.to_string()).expect("stored");
    for cell in CELLS {
        let patch = r#"{"spec":{"destinations":["visa","mastercard","amex"]}}"#;
        world.patch("cell", cell, patch).expect("stored");
    }
    eventually(Duration::from_secs(20), || {
        let answer = payments.pay(Some(AMEX))?;
        ensure!(answer.status == 200, "answered {}: {}", answer.status, answer.body);
        Ok(())
    })
    .expect("it is let through, and no pod was made anew for it");
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
        ("router.example:9090", "0.0.0.0/8"),
        ("router.example:9090", "::/0"),
        ("router.example:9090", "::/128"),
        ("router.example:9090", "::ffff:127.0.0.1/128"),
        ("router.example:9090", "::fffe:0:0/95"),
    ] {
        let refusal = format!("{:#}", ask(endpoint, network).expect_err(endpoint));
        assert!(refusal.contains("bulkhead-destinations"), "{endpoint} {network}: {refusal}");
    }
}
