//! One bad object among a hundred good ones affects only itself.

use std::fmt::Write as _;
use std::time::Duration;

use bulkhead_tests::pods::routers;
use bulkhead_tests::traffic::{Request, send};
use bulkhead_tests::world::condition;
use bulkhead_tests::{World, eventually};

const NAMESPACE: &str = "policies";

struct Policies<'a>(&'a World);

impl Drop for Policies<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "namespace", NAMESPACE, "--wait=true", "--timeout=60s"]);
    }
}

fn policy(name: &str, header: &str, cell: &str) -> String {
    format!(
        r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"RoutingPolicy","metadata":{{"name":"{name}","namespace":"{NAMESPACE}"}},
"spec":{{"parentRefs":[{{"router":"main","listener":"http"}}],"precedence":500,"rules":[{{"name":"only",
"matches":[{{"all":[{{"header":"x-tenant","exact":"{header}"}}]}}],"groups":[{{"cells":[{{"name":"{cell}"}}]}}]}}]}}}}"#
    )
}

#[test]
fn a_hundred_good_policies_are_served_beside_one_that_conflicts_and_one_with_a_typo() {
    let (world, _turn) = World::enter();
    world
        .apply(&format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{NAMESPACE}"}}}}"#))
        .expect("a namespace");
    let _policies = Policies(world);
    let mut documents = String::new();
    for number in 0..100 {
        let _ = writeln!(
            documents,
            "{}\n---",
            policy(&format!("tenant-{number:03}"), &number.to_string(), "payments-b")
        );
    }
    world.apply(&documents).expect("a hundred good ones");
    eventually(Duration::from_secs(20), || {
        let listed = world.json(&["get", "routingpolicies", "-n", NAMESPACE])?;
        let ready = listed["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|policy| condition(policy, "Ready") == "True")
            .count();
        anyhow::ensure!(ready == 100, "{ready} of 100 are Ready");
        Ok(())
    })
    .expect("all good ones are programmed");

    // The younger of two that say the same gives way, and says why; a cell that does not exist is named.
    world.apply(&policy("usurper", "7", "payments-a")).expect("stored");
    world.apply(&policy("typo", "typo", "payments-x")).expect("stored");
    eventually(Duration::from_secs(20), || {
        let usurper = world.json(&["get", "routingpolicy", "-n", NAMESPACE, "usurper"])?;
        let parent = &usurper["status"]["parents"][0]["conditions"];
        anyhow::ensure!(
            parent.to_string().contains("Conflict") && parent.to_string().contains("tenant-007"),
            "{parent}"
        );
        let typo = world.json(&["get", "routingpolicy", "-n", NAMESPACE, "typo"])?;
        let parent = &typo["status"]["parents"][0]["conditions"];
        anyhow::ensure!(parent.to_string().contains("payments-x"), "{parent}");
        Ok(())
    })
    .expect("the bad ones say why");
    let router = routers(world).expect("routers")[0];
    for number in 0..100 {
        let answer =
            send(router, &Request::get("/").header("x-tenant", &number.to_string())).expect("answered");
        assert_eq!(answer.cell(), Some("payments-b"), "tenant {number}");
    }
    let typo = send(router, &Request::get("/").header("x-tenant", "typo")).expect("answered");
    assert_eq!(
        (typo.status, typo.cell()),
        (503, None),
        "a rule without a cell refuses and never falls through"
    );
}
