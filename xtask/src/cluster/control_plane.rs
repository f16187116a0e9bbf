//! What runs in the control plane's namespace: etcd, the API server, the controllers and the scheduler,
//! with their flags and files. Starting them is `processes`'.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};

use super::layout::{Layout, Place};
use super::processes::{Process, Processes};
use super::state::{State, write};
use super::tools::Tools;
use crate::clock;
use crate::command::{command, succeeds};

/// The name of the API server among the processes.
pub const API_SERVER: &str = "apiserver";

/// What the API server writes down: who asked what, once, when it is answered. Left out is what the
/// cluster itself does all the time, so that the log tells what Bulkhead and its users do.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [\"/healthz*\", \"/livez*\", \"/readyz*\", /version, \"/openapi/*\", \"/api*\"]
- level: None
  userGroups: [system:nodes]
- level: None
  users:
  - system:apiserver
  - system:kube-controller-manager
  - system:kube-scheduler
  - system:kube-proxy
  - kube-router
  - volumes
  - system:serviceaccount:kube-system:coredns
- level: None
  userGroups: [\"system:serviceaccounts:kube-system\"]
  verbs: [get, list, watch]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
  namespaces: [kube-system, kube-node-lease]
- level: Metadata
";

/// Writes the files of the control plane and starts what does not run.
///
/// # Errors
/// When a process cannot be started.
pub fn ensure(state: &State, layout: &Layout, tools: &Tools, processes: &Processes) -> Result<()> {
    write(&state.path("audit-policy.yaml"), AUDIT_POLICY)?;
    for process in [
        etcd(state, layout),
        api_server(state, layout, tools)?,
        controllers(state, layout, tools)?,
        scheduler(state, layout, tools)?,
    ] {
        processes.ensure(&process)?;
    }
    Ok(())
}

/// Waits until the API server answers that it is ready.
///
/// # Errors
/// When it does not within `limit`, with what the fallen processes said last.
pub fn wait(state: &State, tools: &Tools, processes: &Processes, limit: Duration) -> Result<()> {
    let kubectl = tools.program("kubectl")?;
    let kubeconfig = state.kubeconfig();
    let ready = || {
        let mut ask = command(&kubectl, ["get", "--raw", "/readyz", "--request-timeout=2s"]);
        succeeds(ask.env("KUBECONFIG", &kubeconfig))
    };
    match clock::until(limit, || Ok(ready().then_some(())))? {
        Some(()) => Ok(()),
        None => bail!(
            "the API server is not ready after {} s. {}",
            limit.as_secs(),
            processes.fallen().join("; ")
        ),
    }
}

fn process(layout: &Layout, name: &str, program: String, arguments: Vec<String>) -> Process {
    Process {
        name: name.to_owned(),
        namespace: layout.name.namespace(Place::ControlPlane),
        command: std::iter::once(program).chain(arguments).collect(),
        environment: BTreeMap::new(),
    }
}

fn etcd(state: &State, layout: &Layout) -> Process {
    let flags = vec![
        format!("--data-dir={}", state.text("etcd")),
        "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
        "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--logger=zap".to_owned(),
        // The cluster is thrown away with the machine; waiting for the disk would only slow the tests.
        "--unsafe-no-fsync".to_owned(),
    ];
    process(layout, "etcd", "etcd".to_owned(), flags)
}

fn api_server(state: &State, layout: &Layout, tools: &Tools) -> Result<Process> {
    let cert = |file: &str| state.text(format!("certs/{file}"));
    let flags = vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--service-cluster-ip-range={}", layout.services()),
        "--secure-port=6443".to_owned(),
        format!("--advertise-address={}", layout.address(Place::ControlPlane)),
        format!("--tls-cert-file={}", cert("apiserver.crt")),
        format!("--tls-private-key-file={}", cert("apiserver.key")),
        format!("--client-ca-file={}", cert("ca.crt")),
        format!("--kubelet-certificate-authority={}", cert("ca.crt")),
        format!("--kubelet-client-certificate={}", cert("apiserver-kubelet.crt")),
        format!("--kubelet-client-key={}", cert("apiserver-kubelet.key")),
        // Nodes' names are in no DNS that the API server could ask.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--service-account-key-file={}", cert("service-accounts.pub")),
        format!("--service-account-signing-key-file={}", cert("service-accounts.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        // It is on no node, so it reaches webhooks by their pods' addresses.
        "--enable-aggregator-routing=true".to_owned(),
        format!("--cert-dir={}", state.text("apiserver")),
        format!("--audit-policy-file={}", state.text("audit-policy.yaml")),
        format!("--audit-log-path={}", state.text("log/audit.log")),
        "--audit-log-maxsize=200".to_owned(),
        "--audit-log-maxbackup=1".to_owned(),
    ];
    Ok(process(layout, API_SERVER, tools.command("kube-apiserver")?, flags))
}

fn controllers(state: &State, layout: &Layout, tools: &Tools) -> Result<Process> {
    let flags = vec![
        format!("--kubeconfig={}", state.text("controller-manager.kubeconfig")),
        format!("--service-account-private-key-file={}", state.text("certs/service-accounts.key")),
        format!("--root-ca-file={}", state.text("certs/ca.crt")),
        "--use-service-account-credentials=true".to_owned(),
        "--allocate-node-cidrs=false".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--cert-dir={}", state.text("controller-manager")),
        // With nodes reporting every 2 s, a dead one shows within a quarter of a minute.
        "--node-monitor-grace-period=12s".to_owned(),
        "--node-monitor-period=2s".to_owned(),
    ];
    Ok(process(layout, "controller-manager", tools.command("kube-controller-manager")?, flags))
}

fn scheduler(state: &State, layout: &Layout, tools: &Tools) -> Result<Process> {
    let flags = vec![
        format!("--kubeconfig={}", state.text("scheduler.kubeconfig")),
        "--leader-elect=false".to_owned(),
        format!("--cert-dir={}", state.text("scheduler")),
    ];
    Ok(process(layout, "scheduler", tools.command("kube-scheduler")?, flags))
}
