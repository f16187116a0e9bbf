//! Helm takes away all that it brought but the CRDs, and those change under living Cells.

use std::fs;
use std::path::Path;

use bulkhead_tests::World;
use bulkhead_tests::world::SYSTEM;
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
    assert_eq!(ours, 5, "{crds}");

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
