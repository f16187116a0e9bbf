//! Volumes for StatefulSets: folders of the machine, a fixed number for each node, offered again once their
//! claim is deleted. Kubernetes itself does not empty such volumes reliably, so a small process does.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::layout::{ClusterName, Layout, Place, node_name};
use super::processes::{Process, Processes};
use super::state::State;
use crate::clock;
use crate::command::{command, output};

/// Volumes that each node offers.
const EACH: u8 = 12;

/// The storage class and its volumes, whose folders are made here.
///
/// # Errors
/// When a folder cannot be made.
pub fn objects(state: &State, layout: &Layout) -> Result<Vec<Value>> {
    let mut objects = vec![storage_class()];
    for number in layout.node_numbers() {
        for volume in 1..=EACH {
            let folder = state.path(format!("{}/volumes/{volume:02}", node_name(number)));
            writable(&folder)?;
            objects.push(persistent_volume(number, volume, &folder));
        }
    }
    Ok(objects)
}

/// Starts the process that empties released volumes, unless it runs.
///
/// # Errors
/// When it cannot be started.
pub fn ensure(layout: &Layout, program: &Path, processes: &Processes) -> Result<()> {
    let words = ["cluster", "volume-server", "--name"].map(str::to_owned);
    let command = std::iter::once(program.to_string_lossy().into_owned()).chain(words);
    processes.ensure(&Process {
        name: "volumes".to_owned(),
        namespace: layout.name.namespace(Place::ControlPlane),
        command: command.chain([layout.name.to_string()]).collect(),
        environment: std::collections::BTreeMap::new(),
    })
}

/// Empties volumes and offers them again, until the process ends. It outlives outages of the API server.
///
/// # Errors
/// When there is no such cluster.
pub fn serve(name: &ClusterName) -> Result<()> {
    let state = State::of(name)?;
    state.existing()?;
    loop {
        if let Err(error) = follow(&state) {
            eprintln!("volumes are not followed for now: {error:#}");
        }
        clock::rest(Duration::from_secs(1));
    }
}

/// Follows the volumes' phases for as long as the API server tells them.
fn follow(state: &State) -> Result<()> {
    let line = r#"jsonpath={.metadata.name} {.status.phase} {.spec.hostPath.path}{"\n"}"#;
    let mut watch = kubectl(state)
        .args(["get", "persistentvolumes", "--watch", "--output", line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start kubectl")?;
    for line in BufReader::new(watch.stdout.take().context("its output is a pipe")?).lines() {
        if let Some((volume, folder)) = released(&line?, state.folder())
            && let Err(error) = offer_again(state, volume, &folder)
        {
            eprintln!("volume {volume} is not offered again: {error:#}");
        }
    }
    watch.wait()?;
    Ok(())
}

/// The volume and folder of a line that tells of a released one. Folders that are not this cluster's are
/// never touched, whatever a volume says.
fn released<'a>(line: &'a str, cluster: &Path) -> Option<(&'a str, PathBuf)> {
    let (volume, rest) = line.split_once(' ')?;
    let folder = PathBuf::from(rest.strip_prefix("Released ")?);
    let inside = folder.strip_prefix(cluster).ok()?.to_str()?;
    let known =
        matches!(inside.split('/').collect::<Vec<_>>().as_slice(), [_, "volumes", last] if *last != "..");
    known.then_some((volume, folder))
}

fn offer_again(state: &State, volume: &str, folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    let patch = r#"[{"op": "remove", "path": "/spec/claimRef"}]"#;
    let mut release = kubectl(state);
    output(release.args(["patch", "persistentvolume", volume, "--type=json", "--patch", patch])).map(drop)
}

fn kubectl(state: &State) -> Command {
    let mut kubectl = command(state.path("bin/kubectl"), ["--kubeconfig"]);
    kubectl.arg(state.path("volumes.kubeconfig"));
    kubectl
}

fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        // A volume is of one node, so it can only be chosen together with the pod's node.
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn persistent_volume(number: u8, volume: u8, folder: &Path) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name(number)]});
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": format!("{}-{volume:02}", node_name(number))},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "standard",
            "hostPath": {"path": folder, "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    })
}

/// Volumes of this kind do not change their owner for a pod, so everybody may write.
fn writable(folder: &Path) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777))
    };
    attempt().with_context(|| format!("cannot make the volume {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_released_folders_of_this_cluster_are_emptied() {
        let check = |line: &str, expected: Option<&str>| {
            let found = released(line, Path::new("/c/dev")).map(|(volume, _)| volume);
            assert_eq!(found, expected, "{line}");
        };
        check("n1-01 Released /c/dev/n1/volumes/01", Some("n1-01"));
        check("n1-01 Bound /c/dev/n1/volumes/01", None);
        check("n1-01 Released /c/dev2/n1/volumes/01", None);
        check("n1-01 Released /c/dev/certs", None);
        check("n1-01 Released /c/dev/n1/volumes/..", None);
        check("mine Released /home", None);
        check("other Released ", None);
    }
}
