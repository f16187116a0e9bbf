//! Pods as seen from the machine: on the local cluster their processes and addresses are reachable from here.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::eventually;
use crate::world::{SYSTEM, World};

/// A running pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub ip: String,
    pub node: String,
    uid: String,
}

/// Running pods with that label, in the order of their names.
///
/// # Errors
/// When kubectl fails.
pub fn running(world: &World, namespace: &str, selector: &str) -> Result<Vec<Pod>> {
    let list = world.json(&["get", "pods", "-n", namespace, "-l", selector])?;
    let mut pods: Vec<_> = list
        .pointer("/items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none())
        .filter(|pod| pod.pointer("/status/phase").and_then(Value::as_str) == Some("Running"))
        .map(|pod| {
            let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            Pod {
                namespace: text("/metadata/namespace"),
                name: text("/metadata/name"),
                ip: text("/status/podIP"),
                node: text("/spec/nodeName"),
                uid: text("/metadata/uid"),
            }
        })
        .filter(|pod| !pod.ip.is_empty())
        .collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pods)
}

/// The orchestrators of a cell.
///
/// # Errors
/// When there is none.
pub fn orchestrators(world: &World, cell: &str) -> Result<Vec<Pod>> {
    let pods = running(world, &format!("cell-{cell}"), "bulkhead.dev/component=cell-runtime")?;
    ensure!(!pods.is_empty(), "{cell} has no running cell-runtime");
    Ok(pods)
}

/// The workload pods of a cell.
///
/// # Errors
/// When there is none.
pub fn workload(world: &World, cell: &str) -> Result<Vec<Pod>> {
    let pods = running(world, &format!("cell-{cell}"), "bulkhead.dev/component=workload")?;
    ensure!(!pods.is_empty(), "{cell} has no running workload pod");
    Ok(pods)
}

/// Addresses of the routers' listener.
///
/// # Errors
/// When there is none.
pub fn routers(world: &World) -> Result<Vec<SocketAddr>> {
    let pods = running(world, SYSTEM, "bulkhead.dev/component=router")?;
    ensure!(!pods.is_empty(), "no router pod runs");
    pods.iter().map(|pod| pod.at(8080)).collect()
}

/// Where the Service takes connections from inside the cluster.
///
/// # Errors
/// When there is no such Service.
pub fn service(world: &World, namespace: &str, name: &str, port: u16) -> Result<SocketAddr> {
    let service = world.json(&["get", "service", "-n", namespace, name])?;
    let ip = service.pointer("/spec/clusterIP").and_then(Value::as_str).context("it has no address")?;
    Ok(SocketAddr::new(ip.parse()?, port))
}

impl Pod {
    /// Where a port of it is.
    ///
    /// # Errors
    /// When its address is none.
    pub fn at(&self, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.ip.parse().context("a pod's address is no address")?, port))
    }

    /// Ids of this pod's processes on the machine, the pause process left out: they lie in a cgroup named for the pod.
    ///
    /// # Errors
    /// When there is none.
    pub fn processes(&self) -> Result<Vec<Pid>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("/proc cannot be read")? {
            let Ok(entry) = entry else { continue };
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let cgroups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let of_pod = cgroups.contains(&self.uid) || cgroups.contains(&self.uid.replace('-', "_"));
            if of_pod && !command.is_empty() && !command.contains("pause") {
                found.push(Pid::from_raw(id));
            }
        }
        ensure!(!found.is_empty(), "no process of pod {}/{} runs on this machine", self.namespace, self.name);
        Ok(found)
    }

    /// Sends a signal to every process of the pod.
    ///
    /// # Errors
    /// When there is none, or it cannot be signalled.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        for process in self.processes()? {
            kill(process, signal)
                .with_context(|| format!("{signal} to process {process} of pod {}", self.name))?;
        }
        Ok(())
    }
}

/// Stopped pods, continued when this goes out of scope, also after a failed assertion.
pub struct Stopped(Vec<Pod>);

impl Stopped {
    /// SIGSTOP to all of them.
    ///
    /// # Errors
    /// When one cannot be stopped; those stopped before are continued.
    pub fn new(pods: Vec<Pod>) -> Result<Self> {
        let stopped = Self(pods);
        for pod in &stopped.0 {
            pod.signal(Signal::SIGSTOP)?;
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pod in &self.0 {
            let _ = pod.signal(Signal::SIGCONT);
        }
    }
}

/// A cell whose services say that they are not ready, until this goes out of scope.
pub struct Unready<'a> {
    world: &'a World,
    pods: Vec<Pod>,
}

impl<'a> Unready<'a> {
    /// Every workload pod of the cell says so from now on.
    ///
    /// # Errors
    /// When the cell has none, or one does not take the order.
    pub fn new(world: &'a World, cell: &str) -> Result<Self> {
        let unready = Self { world, pods: workload(world, cell)? };
        for pod in &unready.pods {
            set_ready(world, pod, false)?;
        }
        Ok(unready)
    }
}

impl Drop for Unready<'_> {
    fn drop(&mut self) {
        for pod in &self.pods {
            let put_back = eventually(Duration::from_secs(30), || set_ready(self.world, pod, true));
            if let Err(error) = put_back {
                eprintln!("pod {} stays unready: {error:#}", pod.name);
            }
        }
    }
}

fn set_ready(world: &World, pod: &Pod, ready: bool) -> Result<()> {
    control(world, pod, &format!("ready?value={ready}"))
}

/// A cell whose services take that long for each request, until this goes out of scope.
pub struct Slow<'a>(&'a World, Vec<Pod>);

impl<'a> Slow<'a> {
    /// Every workload pod of the cell takes that long from now on.
    ///
    /// # Errors
    /// When the cell has none, or one does not take the order.
    pub fn new(world: &'a World, cell: &str, delay: Duration) -> Result<Self> {
        let slow = Self(world, workload(world, cell)?);
        for pod in &slow.1 {
            control(world, pod, &format!("delay?ms={}", delay.as_millis()))?;
        }
        Ok(slow)
    }
}

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        for pod in &self.1 {
            let put_back = eventually(Duration::from_secs(30), || control(self.0, pod, "delay?ms=0"));
            if let Err(error) = put_back {
                eprintln!("pod {} stays slow: {error:#}", pod.name);
            }
        }
    }
}

/// The walls keep this machine out of a cell, so the pod is asked from inside.
fn control(world: &World, pod: &Pod, order: &str) -> Result<()> {
    let order = format!("http://127.0.0.1:8080/control/{order}");
    let inside = ["exec", "-n", &pod.namespace, &pod.name, "--"];
    let tell = ["/bulkhead-samples", "probe", "http", "--method", "POST", &order];
    world.kubectl(&[&inside[..], &tell[..]].concat()).map(drop)
}
