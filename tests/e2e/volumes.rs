//! What a cell stored outlives the cell, for as long as its owner says so.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::pods::running;
use bulkhead_tests::{World, eventually};

const NAMESPACE: &str = "cell-ledger";

/// A StatefulSet with a volume of its own for each pod, and one that the template names.
const TEMPLATE: &str = r#"
apiVersion: bulkhead.dev/v1alpha1
kind: CellTemplate
metadata: {name: ledger}
spec:
  objects:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: archive}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Mi}}
  - apiVersion: apps/v1
    kind: StatefulSet
    metadata: {name: ledger}
    spec:
      serviceName: ledger
      replicas: 1
      selector: {matchLabels: {app: ledger}}
      template:
        metadata: {labels: {app: ledger}}
        spec:
          securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
          containers:
          - name: ledger
            image: localhost/bulkhead/sample:dev
            imagePullPolicy: IfNotPresent
            args: [workload, --name=ledger, "--cell=${cell.name}"]
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
            volumeMounts:
            - {name: data, mountPath: /data}
            - {name: archive, mountPath: /archive}
          volumes:
          - {name: archive, persistentVolumeClaim: {claimName: archive}}
      volumeClaimTemplates:
      - metadata: {name: data}
        spec:
          accessModes: [ReadWriteOnce]
          resources: {requests: {storage: 1Mi}}
  - apiVersion: v1
    kind: Service
    metadata: {name: ledger}
    spec:
      selector: {app: ledger}
      ports: [{port: 8080}]
  services: [{name: ledger, port: 8080, readinessPath: /readyz}]
  entry: {service: ledger}
"#;

fn cell(policy: &str) -> String {
    format!(
        r#"{{"apiVersion":"bulkhead.dev/v1alpha1","kind":"Cell","metadata":{{"name":"ledger"}},"spec":{{"template":"ledger","deletionPolicy":"{policy}"}}}}"#
    )
}

/// A file on each volume, as the pod sees it.
fn files(world: &World) -> Result<[PathBuf; 2]> {
    let pods = running(world, NAMESPACE, "app=ledger")?;
    let [pod] = &pods[..] else { anyhow::bail!("{} pods run", pods.len()) };
    let process = pod.processes()?[0];
    Ok(["data", "archive"].map(|volume| format!("/proc/{process}/root/{volume}/entry").into()))
}

fn claims(world: &World) -> Result<String> {
    let uids =
        r#"jsonpath={range .items[*]}{.metadata.name}{" "}{.metadata.uid}{" "}{.spec.volumeName}{"\n"}{end}"#;
    world.kubectl(&["get", "persistentvolumeclaims", "-n", NAMESPACE, "-o", uids])
}

#[test]
fn a_retained_cell_keeps_what_it_stored_and_the_next_of_its_name_has_it_again() {
    let (world, _turn) = World::enter();
    let ready = || world.kubectl(&["wait", "--for=condition=Ready", "cell/ledger", "--timeout=90s"]);
    let delete = || world.kubectl(&["delete", "cell", "ledger", "--timeout=90s"]);
    world.apply(TEMPLATE).expect("stored");
    world.apply(&cell("Retain")).expect("stored");
    ready().expect("Ready");
    let before = claims(world).expect("listed");
    assert_eq!(before.lines().count(), 2, "{before}");
    for file in files(world).expect("the pod runs") {
        fs::write(file, "100 EUR").expect("written");
    }
    delete().expect("deleted");
    // Pods that have ended hold nobody up, and are listed a moment longer.
    eventually(Duration::from_secs(30), || {
        let left = world.kubectl(&["get", "statefulsets,pods,services", "-n", NAMESPACE, "-o", "name"])?;
        anyhow::ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .expect("the workload is gone");
    assert_eq!(claims(world).expect("listed"), before, "the volumes are not");

    let uid = world.json(&["get", "namespace", NAMESPACE]).expect("retained")["metadata"]["uid"].clone();
    let adopt = format!(r#""name":"ledger","annotations":{{"bulkhead.dev/adopt-namespace-uid":{uid}}}"#);
    world.apply(&cell("Delete").replace(r#""name":"ledger""#, &adopt)).expect("stored");
    ready().expect("Ready");
    assert_eq!(claims(world).expect("listed"), before);
    for file in files(world).expect("the pod runs") {
        assert_eq!(fs::read_to_string(&file).expect("is there"), "100 EUR", "{}", file.display());
    }

    delete().expect("deleted");
    eventually(Duration::from_secs(60), || {
        let left = world.kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"])?;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })
    .expect("and with deletionPolicy Delete all of it goes");
    world.kubectl(&["delete", "celltemplate", "ledger"]).expect("cleaned up");
}
