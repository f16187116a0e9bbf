//! The objects that a fresh cluster gets: its nodes with their places, volumes, and DNS. Whether they work
//! is asked in `ready`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::layout::{INTERNET, Layout, node_name};
use super::state::State;
use super::tools::Tools;
use crate::command::{command, output_with};

const DNS: &str = include_str!("manifests/coredns.yaml");

/// Volumes that each node offers.
const VOLUMES: u8 = 12;

/// Applies the objects; those that are there already stay as they are.
///
/// # Errors
/// When the API server refuses one.
pub fn apply(state: &State, layout: &Layout, tools: &Tools) -> Result<()> {
    let mut items: Vec<Value> = layout.node_numbers().map(|number| node(layout, number)).collect();
    items.push(storage_class());
    for number in layout.node_numbers() {
        for volume in 1..=VOLUMES {
            let folder = state.path(format!("{}/volumes/{volume:02}", node_name(number)));
            writable(&folder)?;
            items.push(persistent_volume(number, volume, &folder));
        }
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let dns = DNS
        .replace("{{digest}}", &digest(DNS))
        .replace("{{internet}}", &INTERNET.to_string())
        .replace("{{dns}}", &layout.dns_service().to_string())
        .replace("{{image}}", &tools.coredns()?.name);
    for manifest in [list, dns] {
        let mut kubectl = command(
            tools.program("kubectl")?,
            ["apply", "--server-side", "--force-conflicts", "--field-manager=bulkhead-cluster", "-f", "-"],
        );
        output_with(kubectl.env("KUBECONFIG", state.kubeconfig()), &manifest)
            .context("the cluster's own objects cannot be applied")?;
    }
    Ok(())
}

/// The zone of a node: a, b, c, … of the region.
pub fn zone(number: u8) -> String {
    format!("local-1{}", char::from(b'a' + (number - 1) % 26))
}

fn node(layout: &Layout, number: u8) -> Value {
    let range = layout.pods_of(number);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "labels": {
                "topology.kubernetes.io/region": "local-1",
                "topology.kubernetes.io/zone": zone(number),
            },
        },
        "spec": {"podCIDR": range, "podCIDRs": [range]},
    })
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
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

/// A folder of a node. It is emptied and offered again when its claim is deleted.
fn persistent_volume(number: u8, volume: u8, folder: &Path) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name(number)]});
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": format!("{}-{volume:02}", node_name(number))},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Recycle",
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
    fn nodes_are_spread_over_zones_of_one_region() {
        let layout = Layout { name: "a".parse().unwrap(), index: 0, nodes: 2 };
        let labels = |number| node(&layout, number)["metadata"]["labels"].clone();
        assert_eq!(labels(1)["topology.kubernetes.io/region"], "local-1");
        assert_eq!(labels(1)["topology.kubernetes.io/zone"], "local-1a");
        assert_eq!(labels(2)["topology.kubernetes.io/zone"], "local-1b");
    }

    #[test]
    fn no_placeholder_is_left_in_the_manifest_of_dns() {
        let known = ["{{digest}}", "{{internet}}", "{{dns}}", "{{image}}"];
        let left = known.iter().fold(DNS.to_owned(), |text, placeholder| text.replace(placeholder, ""));
        assert!(!left.contains("{{"), "{left}");
    }
}
