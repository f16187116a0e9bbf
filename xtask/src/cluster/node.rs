//! What makes a node: containerd, kubelet, kube-proxy and kube-router with their files, the images it
//! holds, and how to stop one as if it lost power. Its wires are `network`'s.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};

use super::layout::{Layout, Place, node_name};
use super::processes::{Process, Processes};
use super::state::{State, write};
use super::tools::{ClusterImage, Tools};
use super::{cgroups, network};
use crate::clock;
use crate::command::{command, find, output, succeeds};

/// The kinds of process that a node has, in the order in which they start.
const KINDS: [&str; 4] = ["containerd", "kubelet", "kube-proxy", "kube-router"];

/// Where kubelet says that it is healthy; it opens this once containerd has taken it.
const KUBELET_HEALTH: u16 = 10_248;

/// One node of one cluster.
pub struct Node<'a> {
    state: &'a State,
    layout: &'a Layout,
    number: u8,
}

impl<'a> Node<'a> {
    /// The node of that number.
    pub fn new(state: &'a State, layout: &'a Layout, number: u8) -> Self {
        Self { state, layout, number }
    }

    /// The node's folder, in which everything of it lives.
    fn path(&self, inside: &str) -> String {
        self.state.text(format!("{}/{inside}", self.name()))
    }

    fn name(&self) -> String {
        node_name(self.number)
    }

    fn namespace(&self) -> String {
        self.layout.name.namespace(Place::Node(self.number))
    }

    /// Starts containerd, and waits until it takes commands.
    ///
    /// # Errors
    /// When it does not within half a minute.
    pub fn ensure_containerd(&self, processes: &Processes, pause: &ClusterImage) -> Result<()> {
        let configuration = self.path("containerd.toml");
        write(Path::new(&configuration), &self.containerd_toml(&pause.name)?)?;
        write(Path::new(&self.path("net.d/10-bulkhead.conflist")), &self.network_json())?;
        let words = ["containerd".to_owned(), "--config".to_owned(), configuration];
        processes.ensure(&self.process("containerd", words.to_vec()))?;
        self.wait_for_containerd(processes)
    }

    fn wait_for_containerd(&self, processes: &Processes) -> Result<()> {
        let answers = || succeeds(&mut self.ctr(["version"]));
        match clock::until(Duration::from_secs(30), || Ok(answers().then_some(())))? {
            Some(()) => Ok(()),
            None => bail!("containerd of {} does not answer. {}", self.name(), processes.fallen().join("; ")),
        }
    }

    /// Waits until kubelet listens, and starts it again where it has ended: containerd takes commands a moment before it
    /// takes those of kubelet, which ends when it is refused.
    fn keep_kubelet_up(&self, processes: &Processes) -> Result<()> {
        let namespace = format!("--net=/run/netns/{}", self.namespace());
        let listener = format!("sport = :{KUBELET_HEALTH}");
        let up = clock::until(Duration::from_secs(30), || {
            processes.start(&self.process_name("kubelet"))?;
            let listeners = output(&mut command("nsenter", [&namespace, "ss", "-Hltn", &listener]))?;
            Ok((!listeners.is_empty()).then_some(()))
        })?;
        match up {
            Some(()) => Ok(()),
            None => bail!("kubelet of {} does not stay. {}", self.name(), processes.fallen().join("; ")),
        }
    }

    /// Starts what makes it a node of Kubernetes.
    ///
    /// # Errors
    /// When a process cannot be started or does not stay.
    pub fn ensure_kubernetes(&self, processes: &Processes, tools: &Tools) -> Result<()> {
        cgroups::ensure(&self.namespace())?;
        write(Path::new(&self.path("kubelet.yaml")), &self.kubelet_yaml())?;
        write(Path::new(&self.path("kube-proxy.yaml")), &self.proxy_yaml())?;
        let node = self.name();
        let kubelet = vec![
            tools.command("kubelet")?,
            format!("--config={}", self.path("kubelet.yaml")),
            format!("--kubeconfig={}", self.state.text(format!("{node}.kubeconfig"))),
            format!("--hostname-override={node}"),
            format!("--node-ip={}", self.layout.address(Place::Node(self.number))),
            format!("--root-dir={}", self.path("kubelet")),
            format!("--cert-dir={}", self.path("kubelet-certs")),
        ];
        processes.ensure(&self.process("kubelet", kubelet))?;
        self.keep_kubelet_up(processes)?;
        let proxy = vec![tools.command("kube-proxy")?, format!("--config={}", self.path("kube-proxy.yaml"))];
        processes.ensure(&self.process("kube-proxy", proxy))
    }

    /// Starts what enforces policies. The node must have its address in its status, or it ends at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ensure_policies(&self, processes: &Processes, tools: &Tools) -> Result<()> {
        let words = vec![
            tools.command("kube-router")?,
            "--run-firewall=true".to_owned(),
            "--run-router=false".to_owned(),
            "--run-service-proxy=false".to_owned(),
            "--run-loadbalancer=false".to_owned(),
            format!("--kubeconfig={}", self.state.text("kube-router.kubeconfig")),
            format!("--hostname-override={}", self.name()),
            format!("--service-cluster-ip-range={}", self.layout.services()),
            "--enable-ipv6=false".to_owned(),
            "--iptables-sync-period=60s".to_owned(),
            "--health-port=0".to_owned(),
        ];
        processes.ensure(&self.process("kube-router", words))
    }

    /// Imports the image unless the node has it.
    ///
    /// # Errors
    /// When containerd refuses it.
    pub fn ensure_image(&self, image: &ClusterImage) -> Result<()> {
        let known = output(&mut self.ctr(["images", "ls", "-q"]))?;
        if known.lines().any(|name| name == image.name) { Ok(()) } else { self.import(&image.archive) }
    }

    /// Imports an archive; an image of the same name is replaced for containers made from now on.
    ///
    /// # Errors
    /// When containerd refuses it.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let snapshotter = self.snapshotter()?;
        let mut import = self.ctr(["images", "import", "--snapshotter", snapshotter]);
        output(import.arg(archive))
            .map(drop)
            .with_context(|| format!("node {} does not take {}", self.name(), archive.display()))
    }

    /// Stops it as if it lost power: its cable first, so that its peers see silence and no reset, then
    /// everything that ran on it.
    ///
    /// # Errors
    /// When a process outlives that.
    pub fn stop(&self, processes: &Processes) -> Result<()> {
        network::connect(self.layout, self.number, false)?;
        for kind in KINDS.into_iter().rev() {
            processes.kill(&self.process_name(kind))?;
        }
        cgroups::end(&[self.namespace()])?;
        let socket = self.path("containerd.sock");
        let shims = processes.marked().into_iter().filter(|one| serves(one.pid, &socket)).collect::<Vec<_>>();
        super::processes::end(&shims)
    }

    /// Starts a stopped node again.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(&self, processes: &Processes) -> Result<()> {
        network::connect(self.layout, self.number, true)?;
        let [containerd, others @ ..] = KINDS;
        processes.start(&self.process_name(containerd))?;
        self.wait_for_containerd(processes)?;
        for kind in others {
            processes.start(&self.process_name(kind))?;
        }
        self.keep_kubelet_up(processes)
    }

    fn process_name(&self, kind: &str) -> String {
        format!("{kind}-{}", self.name())
    }

    fn process(&self, kind: &str, command: Vec<String>) -> Process {
        // Policies are enforced with the older iptables, which every kernel that runs this has; the links
        // in this folder choose it here without a change to the machine.
        let path = format!(
            "{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
            self.state.text("sbin")
        );
        Process {
            name: self.process_name(kind),
            namespace: self.namespace(),
            command,
            environment: BTreeMap::from([("PATH".to_owned(), path)]),
        }
    }

    fn ctr<const N: usize>(&self, words: [&str; N]) -> std::process::Command {
        let mut ctr = command("ctr", ["--address", &self.path("containerd.sock"), "--namespace", "k8s.io"]);
        ctr.args(words);
        ctr
    }

    /// Layers of an overlay cannot lie on an overlay, as inside another container.
    fn snapshotter(&self) -> Result<&'static str> {
        let kind =
            statfs(self.state.folder()).context("cannot tell the file system of the cluster's folder")?;
        Ok(if kind.filesystem_type() == OVERLAYFS_SUPER_MAGIC { "native" } else { "overlayfs" })
    }

    fn containerd_toml(&self, pause: &str) -> Result<String> {
        let (path, snapshotter) = (|inside: &str| self.path(inside), self.snapshotter()?);
        Ok(format!(
            r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # A machine may lack the privilege to protect processes from the kernel's memory killer.
  restrict_oom_score_adj = true
  disable_apparmor = true
  # Pods' namespaces then lie in this folder as well, where `down` finds them.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{net}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    Root = "{runc}"
"#,
            root = path("containerd/root"),
            state = path("containerd/state"),
            socket = path("containerd.sock"),
            opt = path("containerd/opt"),
            net = path("net.d"),
            runc = path("runc"),
        ))
    }

    fn network_json(&self) -> String {
        let plugins = serde_json::json!([
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.path("addresses"),
                    "ranges": [[{"subnet": self.layout.pods_of(self.number)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]);
        serde_json::json!({"cniVersion": "0.4.0", "name": self.namespace(), "plugins": plugins}).to_string()
    }

    fn kubelet_yaml(&self) -> String {
        let (state, node) = (self.state, self.name());
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{group}
failSwapOn: false
podLogsDir: {logs}
clusterDNS: [{dns}]
clusterDomain: cluster.local
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {ca}}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {certificate}
tlsPrivateKeyFile: {key}
containerRuntimeEndpoint: unix://{socket}
# Images come from no registry: what is thrown away is gone.
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 100Mi, nodefs.available: 1Mi, nodefs.inodesFree: 1%, imagefs.available: 1Mi}}
maxPods: 200
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
",
            group = self.namespace(),
            logs = self.path("pod-logs"),
            dns = self.layout.dns_service(),
            ca = state.text("certs/ca.crt"),
            certificate = state.text(format!("certs/{node}.crt")),
            key = state.text(format!("certs/{node}.key")),
            socket = self.path("containerd.sock"),
        )
    }

    fn proxy_yaml(&self) -> String {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {kubeconfig}}}
hostnameOverride: {node}
clusterCIDR: {pods}
conntrack: {{maxPerCore: 0}}
",
            kubeconfig = self.state.text("kube-proxy.kubeconfig"),
            node = self.name(),
            pods = self.layout.pods(),
        )
    }
}

/// Makes the folder of links that choose iptables for the nodes' processes.
///
/// # Errors
/// When a link cannot be made.
pub fn ensure_links(state: &State) -> Result<()> {
    let folder = state.path("sbin");
    fs::create_dir_all(&folder)?;
    for (family, words) in [("iptables", "iptables-legacy"), ("ip6tables", "ip6tables-legacy")] {
        for ending in ["", "-save", "-restore"] {
            let target = find(&format!("{words}{ending}"))
                .with_context(|| format!("{words}{ending} is missing: it is in the package iptables"))?;
            super::link(&target, &folder.join(format!("{family}{ending}")))?;
        }
    }
    Ok(())
}

/// Whether a process is a container's shim that serves the containerd of that socket.
fn serves(pid: i32, socket: &str) -> bool {
    let line = fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == socket.as_bytes())
}
