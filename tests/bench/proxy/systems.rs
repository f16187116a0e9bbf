//! Whoever is measured: a router of ours and the peers, each a process on the one core, before the same two cells with
//! weights 70 and 30.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bulkhead_process::{Monotonic, Port};
use nix::unistd::Pid;
use tokio::time::{Duration, sleep};

use super::clients::Load;
use super::rig::Rig;
use super::shape::{FIELDS, Over};
use super::tls;
use crate::lab::wire::Request;
use crate::lab::{cell_yaml, kernel, ready};
use crate::member::Member;
use crate::peers::Peer;
use crate::process::Launch;
use crate::router;

/// How long whoever is ready is left alone before its memory is read.
const SETTLE: Duration = Duration::from_millis(500);
/// How long everybody may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
const LISTENER: &str = "http";

/// All names, as the command line takes them. The first is what ours is compared with.
pub(super) const PEERS: [(&str, Peer); 5] = [
    (HAPROXY, Peer::Haproxy),
    (HAPROXY_TCP, Peer::Haproxy),
    (NGINX, Peer::Nginx),
    (ENVOY, Peer::Envoy),
    (TRAEFIK, Peer::Traefik),
];
pub(super) const OURS: &str = "bulkhead";
pub(super) const HAPROXY: &str = "haproxy";
pub(super) const ENVOY: &str = "envoy";
const HAPROXY_TCP: &str = "haproxy-tcp";
const NGINX: &str = "nginx";
const TRAEFIK: &str = "traefik";
/// In the place of a list: nobody.
const NONE: &str = "none";

/// A proxy that takes requests.
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) over: Over,
    pub(super) address: SocketAddr,
    pub(super) pid: Pid,
    /// Bytes in memory before any load.
    pub(super) idle: u64,
    /// Dies with this.
    member: Member,
}

/// Where the cells are, and where whoever is measured runs.
pub(super) struct Place<'p> {
    /// Those that speak no TLS, and those that do.
    pub(super) cells: [SocketAddr; 2],
    pub(super) tls_cells: [SocketAddr; 2],
    pub(super) core: usize,
    pub(super) cache: &'p Path,
    /// For files.
    pub(super) folder: &'p Path,
}

/// Those that a list on the command line names.
///
/// # Errors
/// When there is none of a name, with all that there are.
pub(super) fn peers(names: &[String]) -> Result<Vec<(&'static str, Peer)>> {
    if matches!(names, [none] if none == NONE) {
        return Ok(Vec::new());
    }
    let known = || PEERS.map(|(name, _)| name).join(", ");
    let named = |name: &String| {
        let peer = PEERS.into_iter().find(|(known, _)| known == name);
        peer.with_context(|| format!("there is no peer {name:?}; there are {}", known()))
    };
    names.iter().map(named).collect()
}

impl Place<'_> {
    /// For the files of one.
    fn folder(&self, name: &str, over: Over) -> Result<PathBuf> {
        let folder = self.folder.join(format!("{name}-{over:?}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        Ok(folder)
    }

    fn cells(&self, over: Over) -> [SocketAddr; 2] {
        if over == Over::MutualTls { self.tls_cells } else { self.cells }
    }
}

impl System {
    /// Our router, with one thread and with all that it does for a rule that restarts transactions.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn ours(over: Over, place: &Place<'_>) -> Result<Self> {
        let [a, b] = place.cells(over);
        let folder = place.folder(OURS, over)?;
        router::write(&folder, "a", &cell_yaml("a", a))?;
        router::write(&folder, "b", &cell_yaml("b", b))?;
        router::write(&folder, "router", &router_yaml(over))?;
        router::write(&folder, "policy", POLICY)?;
        let tls = format!("--tls-dir={}", place.folder.join(tls::SECRETS).display());
        let more = ["--threads=1", &tls];
        let router::Router { member, listeners: [address], .. } =
            router::start(OURS, &folder, [LISTENER], &more, Some(place.core))?;
        Self::started(OURS, over, member, address)
    }

    /// A peer, installed if it is not there.
    ///
    /// # Errors
    /// When it cannot be had or started.
    pub(super) fn peer(name: &'static str, peer: Peer, over: Over, place: &Place<'_>) -> Result<Self> {
        let program = peer.program(place.cache)?;
        let folder = place.folder(name, over)?;
        let port = Port::free().context("no free port on loopback")?;
        let address = port.address;
        let told = tls::told(name, over, place.folder);
        let launch = launch(name, peer, program, &folder, address, place.cells(over), &told)?;
        let launch = launch.on_core(Some(place.core));
        Self::started(name, over, Member::start(name, vec![launch], vec![port], &folder)?, address)
    }

    fn started(name: &'static str, over: Over, member: Member, address: SocketAddr) -> Result<Self> {
        Ok(Self { name, over, address, pid: member.pid()?, idle: 0, member })
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// When it ended, or does not answer in time.
    pub(super) async fn ready(mut self, rig: &Rig, load: Load) -> Result<Self> {
        if self.over == Over::Tls {
            self.answers(rig, load).await?;
        } else {
            ready(&mut self.member, self.address, &Request::get("/").with(FIELDS)).await?;
        }
        sleep(SETTLE).await;
        self.idle = kernel::resident(self.pid)?;
        Ok(self)
    }

    /// The same over TLS, which only the rig speaks.
    async fn answers(&mut self, rig: &Rig, load: Load) -> Result<()> {
        let clock = Monotonic::start();
        loop {
            self.member.lives()?;
            match rig.measure(load.clone(), self.pid, SETTLE).await {
                Ok(_) => return Ok(()),
                Err(error) if clock.elapsed() > PATIENCE => {
                    return Err(error.context(format!("{} is not ready after {PATIENCE:?}", self.name)));
                }
                Err(_) => sleep(SETTLE).await,
            }
        }
    }
}

fn launch(
    name: &str,
    peer: Peer,
    program: PathBuf,
    folder: &Path,
    address: SocketAddr,
    [a, b]: [SocketAddr; 2],
    told: &[(&'static str, String)],
) -> Result<Launch> {
    let mut places = vec![
        ("@FOLDER@", folder.to_string_lossy().into_owned()),
        ("@PORT@", address.port().to_string()),
        ("@CELL-A@", a.to_string()),
        ("@CELL-B@", b.to_string()),
        ("@PORT-A@", a.port().to_string()),
        ("@PORT-B@", b.port().to_string()),
    ];
    places.extend_from_slice(told);
    peer.launch(program, folder, files(name), &places)
}

fn files(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        HAPROXY => &[("proxy-haproxy.cfg", include_str!("../peers/proxy-haproxy.cfg"))],
        HAPROXY_TCP => &[("proxy-haproxy-tcp.cfg", include_str!("../peers/proxy-haproxy-tcp.cfg"))],
        NGINX => &[("proxy-nginx.conf", include_str!("../peers/proxy-nginx.conf"))],
        ENVOY => &[("proxy-envoy.yaml", include_str!("../peers/proxy-envoy.yaml"))],
        TRAEFIK => &[
            ("proxy-traefik.yaml", include_str!("../peers/proxy-traefik.yaml")),
            ("proxy-traefik-routes.yaml", include_str!("../peers/proxy-traefik-routes.yaml")),
        ],
        _ => &[],
    }
}

fn router_yaml(over: Over) -> String {
    let (front, back) = match over {
        Over::Plain => (String::new(), String::new()),
        Over::Tls => (
            format!(", tls: {{certificates: [{{secret: {}}}], minVersion: \"1.3\"}}", tls::SECRET),
            String::new(),
        ),
        Over::MutualTls => {
            (String::new(), format!("  cellTls: {{caSecret: {0}, certificateSecret: {0}}}\n", tls::SECRET))
        }
    };
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  listeners: [{{name: http, port: 8080{front}}}]
{back}"
    )
}

const POLICY: &str = "\
apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: payments, namespace: default}
spec:
  parentRefs: [{router: main, listener: http}]
  rules:
  - name: partners
    matches: [{all: [{header: x-partner, prefix: p}]}]
    key: {header: x-transaction-id}
    groups:
    - cells: [{name: a, weight: 70}, {name: b, weight: 30}]
    restart: {policy: UntilPointOfNoReturn}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_what_there_is_or_are_refused_with_it() {
        let peers = |text: &str| peers(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(peers("haproxy-tcp").expect("is there"), [PEERS[1]]);
        assert_eq!(peers("none").expect("is a word"), []);
        assert!(peers("squid").expect_err("is refused").to_string().contains("haproxy-tcp"));
    }

    #[test]
    fn a_configuration_leaves_no_place_open() {
        let [front, a, b] = ["127.0.0.1:8001", "127.0.0.1:9001", "127.0.0.1:9002"]
            .map(|address| address.parse().expect("an address"));
        for (name, peer) in PEERS {
            let folder = tempfile::tempdir().expect("a folder");
            let told = tls::told(name, Over::Plain, folder.path());
            launch(name, peer, "program".into(), folder.path(), front, [a, b], &told).expect("is written");
            let written =
                files(name).iter().map(|(file, _)| std::fs::read_to_string(folder.path().join(file)));
            let text: String = written.map(|text| text.expect("is there")).collect();
            for port in ["8001", "9001", "9002"] {
                assert!(text.contains(port), "{name}: {port}");
            }
            assert!(!text.replace("\"@type\"", "").contains('@'), "{name}: {text}");
        }
    }
}
