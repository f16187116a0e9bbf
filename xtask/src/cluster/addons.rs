//! The objects that a fresh cluster gets: its nodes with their places, and DNS; the volumes are `volumes`'s.
//! Whether they work is asked in `ready`.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::layout::{INTERNET, Layout, node_name};
use super::state::State;
use super::tools::Tools;
use super::volumes;
use crate::command::{command, output_with};

const DNS: &str = include_str!("manifests/coredns.yaml");

/// Applies the objects; those that are there already stay as they are.
///
/// # Errors
/// When the API server refuses one.
pub fn apply(state: &State, layout: &Layout, tools: &Tools) -> Result<()> {
    let mut items: Vec<Value> = layout.node_numbers().map(|number| node(layout, number)).collect();
    items.extend(volumes::objects(state, layout)?);
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
