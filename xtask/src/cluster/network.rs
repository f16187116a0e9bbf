//! The wires of a cluster: one namespace with a bridge, and a cable from it to every node, to the control
//! plane, to the world outside and to the machine itself. Everything may be there already. Taking it away
//! is `down`'s.

use anyhow::{Context as _, Result};

use super::layout::{INTERNET, Layout, METADATA, Place};
use crate::command::{command, output, succeeds};

/// Makes what is missing of the cluster's wires.
///
/// # Errors
/// When a namespace, a cable or a route cannot be made.
pub fn ensure(layout: &Layout) -> Result<()> {
    let switch = layout.name.namespace(Place::Switch);
    ensure_namespace(&switch)?;
    if !has_link(&switch, "br0") {
        ip(&format!("-n {switch} link add br0 type bridge"))?;
    }
    ip(&format!("-n {switch} addr replace {}/24 dev br0", layout.address(Place::Switch)))?;
    ip(&format!("-n {switch} link set br0 up"))?;
    ensure_machine(layout, &switch)?;
    for place in layout.places() {
        let namespace = layout.name.namespace(place);
        ensure_namespace(&namespace)?;
        ensure_cable(layout, place)?;
        for route in routes(layout, place) {
            ip(&format!("-n {namespace} route replace {route}"))?;
        }
        if let Place::Node(_) = place {
            forward(&namespace)?;
        }
    }
    let outside = layout.name.namespace(Place::Outside);
    for address in [INTERNET, METADATA] {
        ip(&format!("-n {outside} addr replace {address}/32 dev lo"))?;
    }
    Ok(())
}

/// Pulls a node's cable, or plugs it in again. Its peers notice nothing but silence.
///
/// # Errors
/// When there is no such cable.
pub fn connect(layout: &Layout, node: u8, connected: bool) -> Result<()> {
    let switch = layout.name.namespace(Place::Switch);
    let state = if connected { "up" } else { "down" };
    ip(&format!("-n {switch} link set {} {state}", port(Place::Node(node))))
}

/// The routes of a place. There is no default route anywhere: nothing leaves the machine.
fn routes(layout: &Layout, place: Place) -> Vec<String> {
    let outside = layout.address(Place::Outside);
    let to_pods = layout
        .node_numbers()
        .filter(|number| place != Place::Node(*number))
        .map(|number| format!("{} via {}", layout.pods_of(number), layout.address(Place::Node(number))));
    let others = match place {
        // Without a route for Services the kernel refuses them before kube-proxy's rules see the packet.
        Place::Node(_) => vec![
            format!("{} dev eth0", layout.services()),
            format!("{INTERNET} via {outside}"),
            format!("{METADATA} via {outside}"),
        ],
        Place::Switch | Place::ControlPlane | Place::Outside => Vec::new(),
    };
    to_pods.chain(others).collect()
}

/// Gives the machine a leg in the cluster, with routes to pods and Services, so that kubectl, tests and
/// people reach them directly.
fn ensure_machine(layout: &Layout, switch: &str) -> Result<()> {
    let leg = layout.name.interface();
    if !succeeds(&mut command("ip", ["link", "show", &leg])) {
        ip(&format!("link add {leg} type veth peer name machine netns {switch}"))?;
    }
    ip(&format!("addr replace {}/24 dev {leg}", layout.machine()))?;
    ip(&format!("link set {leg} up"))?;
    ip(&format!("-n {switch} link set machine master br0 up"))?;
    for number in layout.node_numbers() {
        let node = layout.address(Place::Node(number));
        ip(&format!("route replace {} via {node} dev {leg}", layout.pods_of(number)))?;
    }
    ip(&format!("route replace {} via {} dev {leg}", layout.services(), layout.address(Place::Node(1))))
}

fn ensure_namespace(namespace: &str) -> Result<()> {
    if !std::path::Path::new("/run/netns").join(namespace).exists() {
        ip(&format!("netns add {namespace}"))?;
    }
    ip(&format!("-n {namespace} link set lo up"))
}

fn ensure_cable(layout: &Layout, place: Place) -> Result<()> {
    let (switch, namespace) = (layout.name.namespace(Place::Switch), layout.name.namespace(place));
    let port = port(place);
    if !has_link(&namespace, "eth0") {
        ip(&format!("link add {port} netns {switch} type veth peer name eth0 netns {namespace}"))?;
    }
    ip(&format!("-n {switch} link set {port} master br0 up"))?;
    ip(&format!("-n {namespace} addr replace {}/24 dev eth0", layout.address(place)))?;
    ip(&format!("-n {namespace} link set eth0 up"))
}

fn port(place: Place) -> String {
    match place {
        Place::Switch => "br0".to_owned(),
        Place::ControlPlane => "cp".to_owned(),
        Place::Outside => "outside".to_owned(),
        Place::Node(number) => format!("n{number}"),
    }
}

/// Lets a node pass packets on between its pods and the others, and shows bridged packets to the rules
/// that enforce policies.
fn forward(namespace: &str) -> Result<()> {
    let enter = format!("--net=/run/netns/{namespace}");
    // Written by a shell, because the program for it is not on every machine.
    let script = "for setting; do echo 1 > /proc/sys/net/$setting || exit 1; done";
    let settings = ["ipv4/ip_forward", "bridge/bridge-nf-call-iptables"];
    let words = [enter.as_str(), "sh", "-c", script, "sh"].into_iter().chain(settings);
    output(&mut command("nsenter", words))
        .map(drop)
        .context("a node cannot forward packets; the kernel needs the module br_netfilter")
}

fn has_link(namespace: &str, link: &str) -> bool {
    succeeds(&mut command("ip", ["-n", namespace, "link", "show", link]))
}

fn ip(words: &str) -> Result<()> {
    output(&mut command("ip", words.split_whitespace())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reaches_the_other_nodes_pods_and_the_outside_but_has_no_default_route() {
        let layout = Layout { name: "a".parse().unwrap(), index: 1, nodes: 2 };
        let got = routes(&layout, Place::Node(1));
        let expected = [
            "10.161.2.0/24 via 10.250.1.12",
            "10.193.0.0/16 dev eth0",
            "203.0.113.1 via 10.250.1.200",
            "169.254.169.254 via 10.250.1.200",
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn the_outside_can_answer_every_pod() {
        let layout = Layout { name: "a".parse().unwrap(), index: 0, nodes: 2 };
        let expected = ["10.160.1.0/24 via 10.250.0.11", "10.160.2.0/24 via 10.250.0.12"];
        assert_eq!(routes(&layout, Place::Outside), expected);
    }
}
