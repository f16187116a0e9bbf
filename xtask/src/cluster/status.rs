//! Says how a cluster is: its parts, their processes, and whether it answers. It changes nothing.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::layout::{ClusterName, Place, node_name};
use super::processes::Processes;
use super::state::{Provider, State};
use super::{addons, kind};
use crate::command::{command, succeeds};

/// How a cluster is.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Its name.
    pub name: ClusterName,
    /// Whether the API server answers and nothing has fallen.
    pub healthy: bool,
    /// Where its kubeconfig is.
    pub kubeconfig: std::path::PathBuf,
    /// Its nodes.
    pub nodes: Vec<NodeStatus>,
    /// Its processes; `None` for one that has ended.
    pub processes: Vec<(String, Option<i32>)>,
}

/// Where a node is.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its name in Kubernetes.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its address.
    pub address: std::net::Ipv4Addr,
    /// Its pods' addresses.
    pub pods: String,
    /// Its network namespace.
    pub namespace: String,
}

/// Looks at a cluster.
///
/// # Errors
/// When there is no such cluster.
pub fn of(name: &ClusterName) -> Result<Status> {
    let state = State::of(name)?;
    let record = state.existing()?;
    let kubeconfig = state.kubeconfig();
    if record.provider == Provider::Kind {
        let healthy = kind::answers(&kubeconfig);
        return Ok(Status {
            name: name.clone(),
            healthy,
            kubeconfig,
            nodes: Vec::new(),
            processes: Vec::new(),
        });
    }
    let known = Processes::of(&state);
    let names = known.names().into_iter();
    let processes: Vec<_> = names
        .map(|name| {
            let pid = known.running(&name).map(|one| one.pid);
            (name, pid)
        })
        .collect();
    let layout = &record.layout;
    let nodes = layout.node_numbers().map(|number| NodeStatus {
        name: node_name(number),
        zone: addons::zone(number),
        address: layout.address(Place::Node(number)),
        pods: layout.pods_of(number),
        namespace: name.namespace(Place::Node(number)),
    });
    let mut ask = command(state.path("bin/kubectl"), ["get", "--raw", "/readyz", "--request-timeout=2s"]);
    let answers = succeeds(ask.env("KUBECONFIG", &kubeconfig));
    let healthy = answers && !processes.is_empty() && processes.iter().all(|(_, pid)| pid.is_some());
    Ok(Status { name: name.clone(), healthy, kubeconfig, nodes: nodes.collect(), processes })
}

impl Status {
    /// As people read it.
    pub fn text(&self) -> String {
        let word = if self.healthy { "healthy" } else { "not healthy" };
        let mut text = format!("cluster {} is {word}\nkubeconfig {}\n", self.name, self.kubeconfig.display());
        for node in &self.nodes {
            let NodeStatus { name, zone, address, pods, namespace } = node;
            let _ = writeln!(
                text,
                "node {name}  zone {zone}  address {address}  pods {pods}  namespace {namespace}"
            );
        }
        for (name, pid) in &self.processes {
            let pid = pid.map_or_else(|| "ended".to_owned(), |pid| format!("pid {pid}"));
            let _ = writeln!(text, "process {name}  {pid}");
        }
        text
    }
}
