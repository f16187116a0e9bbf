//! Helm takes away all that it brought but the CRDs, and those change under living Cells.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::pods::{routers, running};
use bulkhead_tests::traffic::{Request, send};
use bulkhead_tests::world::SYSTEM;
use bulkhead_tests::{World, eventually};
use serde_yaml::Value;
use tempfile::TempDir;

/// The chart of the CRDs as an older release may have been: Cells had no `capacity` yet.
fn older_crds() -> TempDir {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/bulkhead-crds");
    let older = tempfile::tempdir().expect("a folder");
    fs::create_dir(older.path().join("templates")).expect("a folder");
    for folder in ["", "templates"] {
        for file in fs::read_dir(chart.join(folder)).expect("the chart is in the tree") {
            let file = file.expect("readable");
            if file.path().is_file() {
                fs::copy(file.path(), older.path().join(folder).join(file.file_name())).expect("copied");
            }
        }
    }
    let cells = older.path().join("templates/cells.yaml");
    let mut crd: Value = serde_yaml::from_str(&fs::read_to_string(&cells).expect("readable")).expect("YAML");
    let spec = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let removed = spec["properties"].as_mapping_mut().and_then(|fields| fields.remove("capacity"));
    assert!(removed.is_some(), "Cells have a capacity");
    fs::write(&cells, serde_yaml::to_string(&crd).expect("YAML")).expect("written");
    older
}

#[test]
fn uninstall_leaves_the_crds_and_their_upgrade_leaves_the_cells() {
    let (world, _turn) = World::enter();
    world.kubectl(&["delete", "-f", "examples/", "--timeout=120s"]).expect("deleted");
    world
        .helm(&["uninstall", "bulkhead", "-n", SYSTEM, "--wait", "--timeout", "60s"])
        .expect("no Cell is left");
    let left = |kinds: &str, selector: &str| {
        world.kubectl(&["get", kinds, "-A", "-l", selector, "-o", "name"]).expect("listed")
    };
    assert_eq!(left("namespaces", "bulkhead.dev/cell"), "");
    let kinds = "deployments,statefulsets,services,configmaps,networkpolicies,poddisruptionbudgets,serviceaccounts,jobs,\
                 clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,routers.bulkhead.dev";
    assert_eq!(left(kinds, "app.kubernetes.io/instance=bulkhead"), "");
    world.helm(&["uninstall", "bulkhead-crds", "-n", SYSTEM]).expect("uninstalled");
    let crds = world.kubectl(&["get", "crds", "-o", "name"]).expect("listed");
    let ours = crds.lines().filter(|name| name.ends_with(".bulkhead.dev")).count();
    assert_eq!(ours, 6, "{crds}");

    let older = older_crds();
    world.install_crds(older.path().to_str().expect("plain text")).expect("installed");
    world.install_bulkhead().expect("installed");
    world.apply_examples().expect("ready");
    let capacity = |dry: &str| {
        let patch = r#"{"spec":{"capacity":{"inFlight":500}}}"#;
        world.kubectl(&["patch", "cell", "payments-c", "--type=merge", dry, "-p", patch])
    };
    let cells = || {
        let names = r#"jsonpath={range .items[*]}{.metadata.uid}{" "}{.metadata.generation}{"\n"}{end}"#;
        world.kubectl(&["get", "cells", "-o", names]).expect("listed")
    };
    let before = cells();
    assert!(capacity("--dry-run=server").expect("the field is dropped").contains("no change"), "the control");
    world.install_crds("charts/bulkhead-crds").expect("upgraded");
    assert_eq!(cells(), before);
    world.all_serving(&["payments-a", "payments-b", "payments-c"]).expect("cells serve on");
    assert!(!capacity("--dry-run=server").expect("the field is known").contains("no change"));
}

/// Names and UIDs of the pods of all cells, which show whether any was made anew.
fn pods_of_cells(world: &World) -> Result<BTreeSet<String>> {
    let uids = r#"jsonpath={range .items[*]}{.metadata.namespace}{"/"}{.metadata.name}{" "}{.metadata.uid}{"\n"}{end}"#;
    let pods = world.kubectl(&["get", "pods", "-A", "-l", "bulkhead.dev/cell", "-o", uids])?;
    Ok(pods.lines().map(str::to_owned).collect())
}

#[test]
fn an_uninstall_by_force_leaves_the_cells_running_and_the_next_installation_takes_them_up() {
    let (world, _turn) = World::enter();
    let before = pods_of_cells(world).expect("listed");
    assert!(!before.is_empty());
    world.install_bulkhead_with(&["uninstall.force=true"]).expect("upgraded");
    let uninstall = || world.helm(&["uninstall", "bulkhead", "-n", SYSTEM, "--wait", "--timeout", "60s"]);
    uninstall().expect("goes on although Cells exist");
    let left = world.kubectl(&["get", "deployments,statefulsets", "-n", SYSTEM, "-o", "name"]);
    assert_eq!(left.expect("listed"), "");
    assert_eq!(pods_of_cells(world).expect("listed"), before, "the cells run on");

    let values = [
        "uninstall.force=true",
        "extraKinds[0].group=apps",
        "extraKinds[0].version=v1",
        "extraKinds[0].kind=DaemonSet",
        "extraKinds[0].resource=daemonsets",
    ];
    world.install_bulkhead_with(&values).expect("installed again");
    eventually(Duration::from_secs(60), || world.all_serving(&["payments-a", "payments-b", "payments-c"]))
        .expect("taken up again");
    assert_eq!(pods_of_cells(world).expect("listed"), before, "and nothing of them was made anew");
    a_router_finds_the_table_of_the_pod_before_it(world);
    a_template_may_have_the_kinds_that_values_add(world);

    uninstall().expect("removed");
    world.install_bulkhead().expect("installed as it was");
    assert_eq!(pods_of_cells(world).expect("listed"), before);
}

fn a_router_finds_the_table_of_the_pod_before_it(world: &World) {
    let router = || -> Result<_> {
        let pod = running(world, SYSTEM, "bulkhead.dev/component=router")?.into_iter().next();
        let pod = pod.context("a router runs")?;
        let folder = format!("/proc/{}/root/var/lib/bulkhead", pod.processes()?[0]);
        let table = fs::read_to_string(format!("{folder}/table.json")).context("no table yet")?;
        ensure!(table.contains("payments-a"), "its table names no cell");
        Ok((pod, format!("{folder}/mark")))
    };
    let (first, mark) = eventually(Duration::from_secs(30), router).expect("it has a table on its volume");
    fs::write(mark, "of the first").expect("written beside it");
    world.kubectl(&["delete", "pod", "-n", SYSTEM, &first.name, "--timeout=90s"]).expect("deleted");
    world
        .kubectl(&["rollout", "status", "statefulset/bulkhead-router", "-n", SYSTEM, "--timeout=90s"])
        .expect("another takes its place");
    let (second, mark) = eventually(Duration::from_secs(30), router).expect("it has a table too");
    assert_eq!((&second.name, second.ip == first.ip), (&first.name, false), "another pod of that name");
    assert_eq!(fs::read_to_string(mark).expect("the same volume"), "of the first");
    for router in routers(world).expect("addresses") {
        assert_eq!(send(router, &Request::get("/").header("x-account", "1")).expect("answered").status, 200);
    }
}

fn a_template_may_have_the_kinds_that_values_add(world: &World) {
    world
        .apply(
            r#"
apiVersion: bulkhead.dev/v1alpha1
kind: CellTemplate
metadata: {name: on-every-node}
spec:
  objects:
  - apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: web}
    spec:
      selector: {matchLabels: {app: web}}
      template:
        metadata: {labels: {app: web}}
        spec:
          securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
          containers:
          - name: web
            image: localhost/bulkhead/sample:dev
            imagePullPolicy: IfNotPresent
            args: [workload, --name=web, "--cell=${cell.name}"]
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
  - apiVersion: v1
    kind: Service
    metadata: {name: web}
    spec: {selector: {app: web}, ports: [{port: 8080}]}
  services: [{name: web, port: 8080, readinessPath: /readyz}]
  entry: {service: web}
---
apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {name: everywhere}
spec: {template: on-every-node, deletionPolicy: Delete}
"#,
        )
        .expect("stored");
    let ready = world.kubectl(&["wait", "--for=condition=Ready", "cell/everywhere", "--timeout=90s"]);
    let pods = running(world, "cell-everywhere", "app=web");
    world.kubectl(&["delete", "cell", "everywhere", "--timeout=90s"]).expect("deleted");
    world.kubectl(&["delete", "celltemplate", "on-every-node"]).expect("cleaned up");
    ready.expect("Ready");
    assert_eq!(pods.expect("listed").len(), 2, "one on each node");
}
