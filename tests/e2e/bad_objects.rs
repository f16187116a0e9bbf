//! One bad object among a hundred good ones affects only itself.

use std::fmt::Write as _;
use std::time::Duration;

use bulkhead_tests::pods::routers;
use bulkhead_tests::traffic::{Load, Request, send};
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
    world.apply(&policy("late", "late", "payments-a")).expect("stored");
    eventually(Duration::from_secs(30), || {
        let late = world.json(&["get", "routingpolicy", "-n", NAMESPACE, "late"])?;
        anyhow::ensure!(condition(&late, "Ready") == "True", "{}", late["status"]);
        Ok(())
    })
    .expect("a good one after them is programmed all the same");
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

/// An object that the schema takes and that is wrong all the same, removed when this goes out of scope.
struct Bad<'a> {
    world: &'a World,
    kind: &'static str,
    name: &'static str,
}

impl<'a> Bad<'a> {
    fn new(world: &'a World, kind: &'static str, name: &'static str, spec: &str) -> Self {
        let document = format!(
            "apiVersion: bulkhead.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        );
        world.apply(&document).expect("stored");
        Self { world, kind, name }
    }

    /// Waits until its conditions say what is wrong.
    #[track_caller]
    fn says(&self, word: &str) {
        let said = eventually(Duration::from_secs(20), || {
            let object = self.world.json(&["get", self.kind, self.name])?;
            anyhow::ensure!(condition(&object, "Ready") == "False", "{}", object["status"]);
            let conditions = object["status"]["conditions"].to_string();
            anyhow::ensure!(conditions.contains(word), "{conditions}");
            Ok(())
        });
        assert!(said.is_ok(), "{} {} says {word:?}: {said:?}", self.kind, self.name);
    }
}

impl Drop for Bad<'_> {
    fn drop(&mut self) {
        let _ = self.world.kubectl(&["delete", self.kind, self.name, "--timeout=60s"]);
    }
}

#[test]
fn one_bad_object_of_each_kind_says_why_and_harms_no_other() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 100);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    let cell = Bad::new(world, "Cell", "bad-cell", "{template: payments, values: {replicas: many}}");
    let pod = "{hostNetwork: true, containers: [{name: c, image: x}]}";
    let deployment = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{selector: {{matchLabels: {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, spec: {pod}}}}}}}"
    );
    let template =
        format!("{{objects: [{deployment}], services: [{{name: web, port: 80}}], entry: {{service: web}}}}");
    let template = Bad::new(world, "CellTemplate", "bad-template", &template);
    let shift = "{cell: payments-x, weight: 0, reason: a test, expiresAt: \"2099-01-01T00:00:00Z\"}";
    let shift = Bad::new(world, "TrafficShift", "bad-shift", shift);
    let destination = "{connect: {}, endpoints: [\"192.0.2.1:443\"], timeout: 0s}";
    let destination = Bad::new(world, "Destination", "bad-destination", destination);
    let router = Bad::new(world, "Router", "bad-router", "{listeners: [{name: http, port: 8081}]}");
    cell.says("replicas");
    template.says("hostNetwork");
    shift.says("payments-x");
    destination.says("timeout");
    router.says("NoRouter");
    world.all_serving(&["payments-a", "payments-b", "payments-c"]).expect("cells serve on");
    // Drift of a good one is still corrected: the operator is not held up by the bad ones.
    world.kubectl(&["delete", "service", "payments", "-n", "cell-payments-c"]).expect("deleted by hand");
    eventually(Duration::from_secs(20), || {
        world.kubectl(&["get", "service", "payments", "-n", "cell-payments-c"])
    })
    .expect("made again");
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
}
