//! Nothing that we did not make is adopted, changed or deleted.

use std::time::Duration;

use bulkhead_tests::world::{OPERATOR, reason};
use bulkhead_tests::{World, eventually};

fn cell(name: &str, policy: &str) -> String {
    format!(
        r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"Cell","metadata":{{"name":"{name}"}},"spec":{{"template":"payments","deletionPolicy":"{policy}"}}}}"#
    )
}

#[test]
fn a_namespace_that_was_there_before_is_neither_adopted_nor_deleted() {
    let (world, _turn) = World::enter();
    world.apply(r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"cell-victim","labels":{"owner":"somebody"}}}"#).expect("a namespace by hand");
    let before = world.json(&["get", "namespace", "cell-victim"]).expect("read");
    world.apply(&cell("victim", "Delete")).expect("stored");
    eventually(Duration::from_secs(20), || {
        let object = world.json(&["get", "cell", "victim"])?;
        anyhow::ensure!(reason(&object, "Provisioned") == "NamespaceNotOwned", "{}", object["status"]);
        Ok(())
    })
    .expect("the Cell says why it is not provisioned");
    world.kubectl(&["delete", "cell", "victim", "--timeout=60s"]).expect("the Cell can be deleted");
    let after = world.json(&["get", "namespace", "cell-victim"]).expect("the namespace is still there");
    for field in ["/metadata/uid", "/metadata/labels", "/metadata/annotations", "/metadata/resourceVersion"] {
        assert_eq!(before.pointer(field), after.pointer(field), "{field}");
    }
    world.kubectl(&["delete", "namespace", "cell-victim", "--timeout=60s"]).expect("cleaned up");
}

#[test]
fn an_object_of_somebody_else_in_a_cell_is_left_alone() {
    let (world, _turn) = World::enter();
    let theirs = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"theirs","namespace":"cell-payments-a"},"data":{"keep":"me"}}"#;
    world.apply(theirs).expect("a ConfigMap of the cell's users");
    world
        .patch("cell", "payments-a", r#"{"metadata":{"annotations":{"touched":"yes"}}}"#)
        .expect("a reconcile");
    eventually(Duration::from_secs(10), || world.expect_condition("payments-a", "Ready", "True"))
        .expect("still Ready");
    let after = world
        .json(&["get", "configmap", "-n", "cell-payments-a", "theirs"])
        .expect("prune takes only what is ours");
    assert_eq!(after["data"]["keep"], "me");
    world.kubectl(&["delete", "configmap", "-n", "cell-payments-a", "theirs"]).expect("cleaned up");
}

#[test]
fn drift_is_corrected_once_and_the_users_spec_is_never_written() {
    let (world, _turn) = World::enter();
    let deployments = world
        .json(&["get", "deployments", "-n", "cell-payments-c", "-l", "bulkhead.dev/component=workload"])
        .expect("listed");
    let name = deployments["items"][0]["metadata"]["name"].as_str().expect("a Deployment").to_owned();
    let wanted = deployments["items"][0]["spec"]["replicas"].clone();
    let spec = world.json(&["get", "cell", "payments-c"]).expect("read")["spec"].clone();
    world
        .kubectl(&["scale", "deployment", &name, "-n", "cell-payments-c", "--replicas=5"])
        .expect("scaled by hand");
    eventually(Duration::from_secs(20), || {
        let now = world.json(&["get", "deployment", &name, "-n", "cell-payments-c"])?;
        anyhow::ensure!(now["spec"]["replicas"] == wanted, "replicas: {}", now["spec"]["replicas"]);
        Ok(())
    })
    .expect("corrected");
    let generation = || {
        world.json(&["get", "deployment", &name, "-n", "cell-payments-c"]).expect("read")["metadata"]["generation"].clone()
    };
    let corrected = generation();
    bulkhead_tests::holds_for(Duration::from_secs(3), || {
        anyhow::ensure!(generation() == corrected, "written again without need");
        Ok(())
    })
    .expect("once, not for ever");
    assert_eq!(world.json(&["get", "cell", "payments-c"]).expect("read")["spec"], spec);
}

fn shift(name: &str, owner: &str, expires_at: &str) -> String {
    format!(
        r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"TrafficShift","metadata":{{"name":"{name}"}},
"spec":{{"cell":"nobody","weight":0,"reason":"test","owner":"{owner}"{expires_at}}}}}"#
    )
}

#[test]
fn only_the_operator_makes_shifts_without_an_end_and_only_under_its_names() {
    let (world, _turn) = World::enter();
    let refused = |object: &str| format!("{:#}", world.apply(object).expect_err("is refused"));
    let said = refused(&shift("mine", "Operator", ""));
    assert!(said.contains("only Bulkhead's operator"), "{said}");
    let said = refused(&shift("bulkhead-update-nobody", "User", r#","expiresAt":"2099-01-01T00:00:00Z""#));
    assert!(said.contains("give the TrafficShift another name"), "{said}");

    let theirs = shift("of-the-operator", "Operator", "");
    world.feed(&["create", "--as", OPERATOR, "-f", "-"], &theirs).expect("the operator may");
    world
        .kubectl(&["label", "trafficshift", "of-the-operator", "seen=yes"])
        .expect("others may edit its metadata, as the garbage collector does");
    world
        .patch("trafficshift", "of-the-operator", r#"{"spec":{"reason":"another"}}"#)
        .expect_err("others may not change what it says");
    world.kubectl(&["delete", "trafficshift", "of-the-operator"]).expect("others may remove it");
}

#[test]
fn a_policy_of_ours_is_put_back_and_one_of_theirs_is_left_as_it_is() {
    let (world, _turn) = World::enter();
    let namespace = "cell-payments-c";
    let policies = || world.json(&["get", "networkpolicies", "-n", namespace]).expect("listed");
    let specs = |list: &serde_json::Value, theirs: bool| {
        let named = |item: &serde_json::Value| item["metadata"]["name"] == "theirs";
        let items = list["items"].as_array().into_iter().flatten().filter(|item| named(item) == theirs);
        items.map(|item| (item["metadata"]["name"].clone(), item["spec"].clone())).collect::<Vec<_>>()
    };
    let before = specs(&policies(), false);
    let ours = before[0].0.as_str().expect("a name").to_owned();
    let theirs = |port: u16| {
        format!(
            r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"theirs","namespace":"{namespace}"}},
"spec":{{"podSelector":{{"matchLabels":{{"app":"none"}}}},"ingress":[{{"ports":[{{"port":{port}}}]}}]}}}}"#
        )
    };
    world.apply(&theirs(1)).expect("a policy of the cell's users");
    let put_back = || {
        eventually(Duration::from_secs(20), || {
            anyhow::ensure!(specs(&policies(), false) == before, "{}", policies());
            Ok(())
        })
    };
    world
        .kubectl(&[
            "patch",
            "networkpolicy",
            "-n",
            namespace,
            &ours,
            "--type=merge",
            "-p",
            r#"{"spec":{"ingress":[{}],"egress":[{}]}}"#,
        ])
        .expect("a hole is opened by hand");
    put_back().expect("closed again");
    world.kubectl(&["delete", "networkpolicy", "-n", namespace, &ours]).expect("deleted by hand");
    put_back().expect("made again");
    world.apply(&theirs(2)).expect("theirs is edited");
    let edited = specs(&policies(), true);
    world
        .patch("cell", "payments-c", r#"{"metadata":{"annotations":{"touched":"policies"}}}"#)
        .expect("a reconcile");
    bulkhead_tests::holds_for(Duration::from_secs(3), || {
        anyhow::ensure!(specs(&policies(), true) == edited, "{}", policies());
        Ok(())
    })
    .expect("theirs stays as they left it");
    world.kubectl(&["delete", "networkpolicy", "-n", namespace, "theirs"]).expect("deleted");
    eventually(Duration::from_secs(10), || world.expect_condition("payments-c", "Ready", "True"))
        .expect("Ready");
    assert!(specs(&policies(), true).is_empty(), "what they deleted stays deleted");
}

#[test]
fn a_weight_of_0_that_was_applied_server_side_stays_with_whoever_applied_it() {
    let (world, _turn) = World::enter();
    let cell = |weight: u32| {
        format!(
            r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"Cell","metadata":{{"name":"payments-a"}},"spec":{{"template":"payments","weight":{weight}}}}}"#
        )
    };
    let apply = |manager: &str, weight: u32, force: &[&str]| {
        let args = [&["apply", "--server-side", "--field-manager", manager, "-f", "-"], force].concat();
        world.feed(&args, &cell(weight))
    };
    apply("gitops", 0, &["--force-conflicts"]).expect("applied");
    eventually(Duration::from_secs(10), || world.expect_condition("payments-a", "Drained", "True"))
        .expect("drained");
    let object = world.json(&["get", "cell", "payments-a", "--show-managed-fields"]).expect("read");
    let theirs = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owned: Vec<_> = theirs.filter(|entry| !entry["fieldsV1"]["f:spec"]["f:weight"].is_null()).collect();
    assert_eq!(owned.len(), 1, "{owned:?}");
    assert_eq!(owned[0]["manager"], "gitops");
    assert_eq!(object["spec"]["weight"], 0, "0 is a value, not an absence");
    let conflict = format!("{:#}", apply("somebody", 100, &[]).expect_err("a conflict"));
    assert!(conflict.contains("gitops"), "{conflict}");
    // Who applies nothing any more gives the field up.
    apply("kubectl-client-side-apply", 100, &["--force-conflicts"]).expect("taken back");
}

#[test]
fn only_the_operator_writes_the_marks_that_say_which_cell_owns_a_namespace() {
    let (world, _turn) = World::enter();
    let refused = |args: &[&str], words: &str| {
        let said = format!("{:#}", world.kubectl(args).expect_err("is refused"));
        assert!(said.contains(words), "{said}");
    };
    let owned = |label: &str, annotation: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"cell-thief","labels":{{{label}}},"annotations":{{{annotation}}}}}}}"#
        )
    };
    let uid = world.json(&["get", "cell", "payments-a"]).expect("read")["metadata"]["uid"].clone();
    for (label, annotation) in [
        ("", format!(r#""bulkhead.dev/cell-uid":{uid}"#)),
        (r#""bulkhead.dev/cell":"payments-a""#, String::new()),
    ] {
        let said = format!("{:#}", world.apply(&owned(label, &annotation)).expect_err("is refused"));
        assert!(said.contains("only Bulkhead's operator"), "{said}");
    }
    let cell = "cell-payments-a";
    refused(&["annotate", "namespace", cell, "bulkhead.dev/cell-uid-"], "only Bulkhead's operator");
    refused(
        &["label", "namespace", cell, "--overwrite", "bulkhead.dev/cell=payments-b"],
        "only Bulkhead's operator",
    );
    let level = "pod-security.kubernetes.io/enforce=privileged";
    refused(&["label", "namespace", cell, "--overwrite", level], "Pod Security level of a cell's namespace");

    world.kubectl(&["label", "namespace", cell, "team=cards"]).expect("other labels are anybody's");
    world.kubectl(&["label", "namespace", cell, "team-"]).expect("cleaned up");
    world.kubectl(&["label", "namespace", "default", level]).expect("and so are other namespaces");
    world
        .kubectl(&["label", "namespace", "default", "pod-security.kubernetes.io/enforce-"])
        .expect("cleaned up");
}
