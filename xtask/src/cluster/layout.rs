//! Names and addresses of a cluster, all of them computed from its name, its index and its number of
//! nodes, so that two clusters on one machine never meet. Nothing is made here.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Clusters that fit beside each other on one machine.
pub const MAX_CLUSTERS: u8 = 32;
/// Nodes that a cluster may have.
pub const MAX_NODES: u8 = 20;
/// An address of the documentation range that stands for the internet.
pub const INTERNET: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// Where clouds answer with credentials of the machine.
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// A cluster's name: 1 to 20 of `a-z`, `0-9` and `-`, beginning with a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterName(String);

/// A cluster's place among the others on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Chooses every network name and namespace.
    pub name: ClusterName,
    /// Chooses every address; below [`MAX_CLUSTERS`].
    pub index: u8,
    /// 1 to [`MAX_NODES`].
    pub nodes: u8,
}

/// What has a network namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The bridge that joins all others.
    Switch,
    /// etcd, the API server, the scheduler and the controllers, so that every node may be stopped.
    ControlPlane,
    /// The world that no cell may reach.
    Outside,
    /// A node, counted from 1.
    Node(u8),
}

impl Layout {
    /// The nodes' numbers.
    pub fn node_numbers(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.nodes
    }

    /// Everything that hangs on the switch.
    pub fn places(&self) -> Vec<Place> {
        [Place::ControlPlane, Place::Outside]
            .into_iter()
            .chain(self.node_numbers().map(Place::Node))
            .collect()
    }

    /// The address on the cluster's own network.
    pub fn address(&self, place: Place) -> Ipv4Addr {
        let last = match place {
            Place::Switch => 1,
            Place::ControlPlane => 10,
            Place::Node(number) => 10 + number,
            Place::Outside => 200,
        };
        Ipv4Addr::new(10, 250, self.index, last)
    }

    /// The machine's own leg in the cluster's network.
    pub fn machine(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 250, self.index, 2)
    }

    /// The network of the nodes.
    pub fn network(&self) -> String {
        format!("10.250.{}.0/24", self.index)
    }

    /// All pods' addresses.
    pub fn pods(&self) -> String {
        format!("10.{}.0.0/16", 160 + self.index)
    }

    /// The addresses of one node's pods.
    pub fn pods_of(&self, node: u8) -> String {
        format!("10.{}.{node}.0/24", 160 + self.index)
    }

    /// The Services' addresses.
    pub fn services(&self) -> String {
        format!("10.{}.0.0/16", 192 + self.index)
    }

    /// The address of the Service `default/kubernetes`: always the first of the range.
    pub fn api_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 192 + self.index, 0, 1)
    }

    /// The address of the cluster's DNS.
    pub fn dns_service(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 192 + self.index, 0, 10)
    }

    /// Where clients find the API server.
    pub fn api_url(&self) -> String {
        format!("https://{}:6443", self.address(Place::ControlPlane))
    }
}

impl ClusterName {
    /// The network namespace of a place; also the name of a node's control group and container network.
    pub fn namespace(&self, place: Place) -> String {
        match place {
            Place::Switch => format!("bk-{self}-sw"),
            Place::ControlPlane => format!("bk-{self}-cp"),
            Place::Outside => format!("bk-{self}-outside"),
            Place::Node(number) => format!("bk-{self}-n{number}"),
        }
    }

    /// Whether a namespace is this cluster's. The whole rest is compared, since `a-n1` is a name as well.
    pub fn owns_namespace(&self, namespace: &str) -> bool {
        let rest = namespace.strip_prefix("bk-").and_then(|rest| rest.strip_prefix(self.0.as_str()));
        match rest.and_then(|rest| rest.strip_prefix('-')) {
            Some("sw" | "cp" | "outside") => true,
            Some(rest) => is_node(rest),
            None => false,
        }
    }

    /// Whether a file that the container network plugins leave behind is this cluster's.
    pub fn owns_network_result(&self, file: &str) -> bool {
        // NETWORK-CONTAINER-INTERFACE, where the container is 64 hexadecimal digits.
        let mut parts = file.rsplitn(3, '-');
        let (Some(_interface), Some(container), Some(network)) = (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        container.len() == 64 && self.owns_namespace(network)
    }

    /// The machine's interface towards the cluster. Interfaces have at most 15 characters, so it is a hash
    /// of the name, which `down` can compute when nothing else is left.
    pub fn interface(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        let short: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
        format!("bk-{short}")
    }
}

/// A node's name, as Kubernetes and the command line know it.
pub fn node_name(number: u8) -> String {
    format!("n{number}")
}

fn is_node(text: &str) -> bool {
    text.strip_prefix('n').is_some_and(|digits| digits.parse::<u8>().is_ok_and(|n| n.to_string() == digits))
}

impl FromStr for ClusterName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let letters = text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if letters && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.len() <= 20 {
            return Ok(Self(text.to_owned()));
        }
        bail!(
            "the cluster name {text:?} must be 1 to 20 of a-z, 0-9 and '-', and begin with a letter, because \
             network namespaces are named after it"
        )
    }
}

impl TryFrom<String> for ClusterName {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ClusterName> for String {
    fn from(name: ClusterName) -> Self {
        name.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClusterName {
        text.parse().unwrap()
    }

    #[test]
    fn names_that_would_break_a_namespace_are_refused() {
        let check =
            |text: &str, good: bool| assert_eq!(text.parse::<ClusterName>().is_ok(), good, "{text:?}");
        check("dev", true);
        check("a-2", true);
        check("", false);
        check("2a", false);
        check("Dev", false);
        check("a/b", false);
        check("a23456789012345678901", false);
    }

    #[test]
    fn a_cluster_owns_its_namespaces_and_no_others() {
        let check = |cluster: &str, namespace: &str, expected: bool| {
            assert_eq!(name(cluster).owns_namespace(namespace), expected, "{cluster} {namespace}");
        };
        check("a", "bk-a-n1", true);
        check("a", "bk-a-sw", true);
        check("a", "bk-a-outside", true);
        check("a", "bk-a-n1-n1", false);
        check("a-n1", "bk-a-n1-n1", true);
        check("a", "bk-ab-n1", false);
        check("a", "bk-a-n01", false);
        check("a", "cni-a-n1", false);
    }

    #[test]
    fn every_namespace_it_names_is_one_it_owns() {
        let layout = Layout { name: name("dev"), index: 0, nodes: 3 };
        for place in layout.places().into_iter().chain([Place::Switch]) {
            let namespace = layout.name.namespace(place);
            assert!(layout.name.owns_namespace(&namespace), "{namespace}");
        }
    }

    #[test]
    fn results_of_network_plugins_are_told_apart() {
        let container = "0a".repeat(32);
        let check = |cluster: &str, file: &str, expected: bool| {
            assert_eq!(name(cluster).owns_network_result(file), expected, "{cluster} {file}");
        };
        check("a", &format!("bk-a-n1-{container}-eth0"), true);
        check("a", &format!("bk-a-n1-n1-{container}-eth0"), false);
        check("a", "bk-a-n1-eth0", false);
        check("a", &format!("podman-{container}-eth0"), false);
    }

    #[test]
    fn interfaces_fit_the_kernels_limit() {
        assert!(name("a2345678901234567890").interface().len() <= 15);
        assert_ne!(name("a").interface(), name("b").interface());
    }

    #[test]
    fn ranges_of_two_clusters_do_not_overlap() {
        let mut second_octets = Vec::new();
        for index in 0..MAX_CLUSTERS {
            let layout = Layout { name: name("a"), index, nodes: MAX_NODES };
            second_octets.extend([layout.pods(), layout.services()]);
            assert!(layout.network().starts_with("10.250."));
        }
        second_octets.sort();
        second_octets.dedup();
        assert_eq!(second_octets.len(), usize::from(MAX_CLUSTERS) * 2);
    }
}
