//! Cells come and go: added at run time, drained before they are deleted, and the chart leaves nothing half done.

use std::time::Duration;

use bulkhead_tests::audit::{self, Write};
use bulkhead_tests::traffic::{Load, now_ms};
use bulkhead_tests::world::{SYSTEM, reason};
use bulkhead_tests::{World, eventually};

fn cell(name: &str, policy: &str) -> String {
    format!(
        r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"Cell","metadata":{{"name":"{name}"}},"spec":{{"template":"payments","deletionPolicy":"{policy}","quota":{{"pods":"10"}}}}}}"#
    )
}

#[test]
fn a_cell_is_added_and_deleted_at_run_time_and_the_others_do_not_notice() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    // Of what has no status, any write shows; of the rest, any of its spec.
    let versions = |kinds: &str, version: &str| {
        let columns = format!(
            r#"jsonpath={{range .items[*]}}{{.kind}}{{"/"}}{{.metadata.name}}{{" "}}{{.metadata.uid}}{{" "}}{{.metadata.{version}}}{{"\n"}}{{end}}"#
        );
        world.kubectl(&["get", kinds, "-n", "cell-payments-a", "-o", &columns]).expect("listed")
    };
    let objects_of_a = || {
        versions("pods,services,deployments,resourcequotas", "generation")
            + &versions("configmaps,serviceaccounts,roles,networkpolicies,limitranges", "resourceVersion")
    };
    let before = objects_of_a();
    world.apply(&cell("payments-d", "Delete")).expect("stored");
    world
        .kubectl(&["wait", "--for=condition=Ready", "cell/payments-d", "--timeout=60s"])
        .expect("Ready within a minute");
    assert!(
        world
            .kubectl(&["get", "resourcequota", "-n", "cell-payments-d", "-o", "name"])
            .expect("listed")
            .contains("resourcequota")
    );

    // What the spec no longer says is removed.
    world.patch("cell", "payments-d", r#"{"spec":{"quota":null}}"#).expect("patched");
    eventually(Duration::from_secs(30), || {
        let quotas = world.kubectl(&["get", "resourcequota", "-n", "cell-payments-d", "-o", "name"])?;
        anyhow::ensure!(quotas.trim().is_empty(), "{quotas}");
        Ok(())
    })
    .expect("the quota goes with its field");

    // It takes its part, and gives it back before it goes.
    world
        .apply(
            "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: with-d, namespace: default}
spec:
  parentRefs: [{router: main, listener: http}]
  precedence: 500
  rules: [{name: all, key: {header: x-account}, groups: [{cells: [{name: payments-d}, {name: payments-b}]}]}]
",
        )
        .expect("stored");
    load.wait_for(Duration::from_secs(30), "payments-d").expect("it takes traffic");
    world.kubectl(&["delete", "cell", "payments-d", "--timeout=90s"]).expect("deleted");
    let gone = now_ms();
    load.wait_for_since(Duration::from_secs(10), "payments-b", gone).expect("traffic goes on");
    eventually(Duration::from_secs(60), || {
        let left =
            world.kubectl(&["get", "namespace", "cell-payments-d", "--ignore-not-found", "-o", "name"])?;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .expect("deletionPolicy Delete removes the namespace");
    assert_eq!(objects_of_a(), before, "nothing of another cell was touched");
    let outcome = load.stop();
    world.kubectl(&["delete", "routingpolicy", "with-d"]).expect("cleaned up");
    assert_eq!(outcome.sent_between("payments-d", gone, u64::MAX), 0, "requests to a cell that is gone");
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed.first());
}

#[test]
fn a_deleted_cell_retains_its_namespace_and_is_taken_again_only_by_name() {
    let (world, _turn) = World::enter();
    world.apply(&cell("payments-e", "Retain")).expect("stored");
    world.kubectl(&["wait", "--for=condition=Ready", "cell/payments-e", "--timeout=60s"]).expect("Ready");
    let uid = world
        .kubectl(&["get", "namespace", "cell-payments-e", "-o", "jsonpath={.metadata.uid}"])
        .expect("read");
    world.kubectl(&["delete", "cell", "payments-e", "--timeout=90s"]).expect("deleted");
    let after = world
        .kubectl(&["get", "namespace", "cell-payments-e", "-o", "jsonpath={.metadata.uid}"])
        .expect("retained");
    assert_eq!(uid, after);

    world.apply(&cell("payments-e", "Delete")).expect("stored");
    eventually(Duration::from_secs(20), || {
        let object = world.json(&["get", "cell", "payments-e"])?;
        let provisioned = object["status"]["conditions"].to_string();
        anyhow::ensure!(
            provisioned.contains("NamespaceNotOwned") && provisioned.contains(&uid),
            "{provisioned}"
        );
        Ok(())
    })
    .expect("the refusal prints the command, with the namespace's UID");
    world
        .kubectl(&["annotate", "cell", "payments-e", &format!("bulkhead.dev/adopt-namespace-uid={uid}")])
        .expect("annotated");
    world
        .kubectl(&["wait", "--for=condition=Ready", "cell/payments-e", "--timeout=60s"])
        .expect("taken again");
    world.kubectl(&["delete", "cell", "payments-e", "--timeout=90s"]).expect("deleted");
}

#[test]
fn a_cell_whose_namespace_and_pods_are_gone_can_be_deleted() {
    let (world, _turn) = World::enter();
    world.apply(&cell("payments-f", "Delete")).expect("stored");
    world.kubectl(&["wait", "--for=condition=Ready", "cell/payments-f", "--timeout=60s"]).expect("Ready");
    let uid = || world.kubectl(&["get", "namespace", "cell-payments-f", "-o", "jsonpath={.metadata.uid}"]);
    let first = uid().expect("read");
    let from = audit::end(world).expect("there is a log");
    world
        .kubectl(&["delete", "namespace", "cell-payments-f", "--timeout=60s"])
        .expect("somebody deletes the namespace of a living Cell");
    eventually(Duration::from_secs(60), || {
        anyhow::ensure!(uid()? != first, "still the old one");
        world.expect_condition("payments-f", "Ready", "True")
    })
    .expect("the Cell gets a new one");
    let into_it = |write: &Write| write.namespace == "cell-payments-f" && write.resource != "namespaces";
    let writes = audit::writes_since(world, from).expect("read");
    let made = writes.iter().position(|write| write.verb == "create" && write.resource == "namespaces");
    let (meanwhile, after) = writes.split_at(made.expect("the new one is made"));
    assert!(!meanwhile.iter().any(into_it), "written into a namespace that goes: {meanwhile:?}");
    assert!(after.iter().any(into_it), "the negative control: the new one was filled");

    let from = audit::end(world).expect("there is a log");
    world
        .kubectl(&["delete", "namespace", "cell-payments-f", "--wait=false"])
        .expect("and that is deleted together with it");
    world.kubectl(&["delete", "cell", "payments-f", "--timeout=90s"]).expect("the Cell goes too");
    let writes = audit::writes_since(world, from).expect("read");
    assert!(!writes.iter().any(into_it), "written into a namespace that goes: {writes:?}");
}

#[test]
fn somebody_elses_pod_does_not_hold_up_the_deletion_of_a_cell() {
    let (world, _turn) = World::enter();
    world.apply(&cell("payments-g", "Delete")).expect("stored");
    world.kubectl(&["wait", "--for=condition=Ready", "cell/payments-g", "--timeout=60s"]).expect("Ready");
    world
        .apply(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"by-hand","namespace":"cell-payments-g"},
"spec":{"terminationGracePeriodSeconds":0,"securityContext":{"runAsNonRoot":true,"runAsUser":65532,"seccompProfile":{"type":"RuntimeDefault"}},
"containers":[{"name":"by-hand","image":"localhost/bulkhead/sample:dev","imagePullPolicy":"IfNotPresent",
"args":["workload","--listen","0.0.0.0:8080","--name","by-hand"],
"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}"#,
        )
        .expect("a pod by hand");
    world.kubectl(&["delete", "cell", "payments-g", "--timeout=90s"]).expect("the Cell goes");
    eventually(Duration::from_secs(60), || {
        let left =
            world.kubectl(&["get", "namespace", "cell-payments-g", "--ignore-not-found", "-o", "name"])?;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .expect("and the namespace with everything in it");
}

#[test]
fn a_quota_that_leaves_no_room_for_the_pods_is_told() {
    let (world, _turn) = World::enter();
    world.apply(&cell("payments-h", "Delete").replace("\"10\"", "\"1\"")).expect("stored");
    let told = eventually(Duration::from_secs(60), || {
        let object = world.json(&["get", "cell", "payments-h"])?;
        anyhow::ensure!(reason(&object, "WorkloadReady") == "QuotaForbidden", "{}", object["status"]);
        Ok(object["status"]["conditions"].to_string())
    });
    world.kubectl(&["delete", "cell", "payments-h", "--timeout=90s"]).expect("deleted");
    assert!(told.expect("the Cell says so").contains("exceeded quota"));
}

#[test]
fn helm_upgrade_keeps_everything_and_uninstall_refuses_while_cells_exist() {
    let (world, _turn) = World::enter();
    world.install_bulkhead().expect("upgrading to the same changes nothing");
    let refusal =
        world.helm(&["uninstall", "bulkhead", "-n", SYSTEM, "--timeout", "60s"]).expect_err("cells exist");
    assert!(format!("{refusal:#}").contains("pre-delete"), "{refusal:#}");
    let why =
        world.kubectl(&["logs", "-n", SYSTEM, "job/bulkhead-pre-delete-check"]).expect("the check says why");
    assert!(why.contains("payments-a"), "{why}");
    world
        .kubectl(&["get", "deployment", "-n", SYSTEM, "bulkhead-operator"])
        .expect("the operator is still there");

    // Helm holds a release whose uninstall was refused for half gone; the chart's notes say how to take it back.
    let history = world.helm(&["history", "bulkhead", "-n", SYSTEM, "-o", "json"]).expect("a release");
    let history: serde_json::Value = serde_json::from_str(&history).expect("JSON");
    let newest = history.as_array().and_then(|all| all.last()).map(|last| last["revision"].to_string());
    world
        .helm(&["rollback", "bulkhead", &newest.expect("a revision"), "-n", SYSTEM, "--wait"])
        .expect("taken back");
    world.install_bulkhead().expect("and can be upgraded again");
    world.all_serving(&["payments-a", "payments-b", "payments-c"]).expect("cells serve on");
}
