//! Whoever is measured: a router of ours and the peers, each a process on the one core, before the same two cells with
//! weights 70 and 30.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bulkhead_process::Port;
use nix::unistd::Pid;
use tokio::time::{Duration, sleep};

use super::shape::FIELDS;
use crate::lab::wire::Request;
use crate::lab::{cell_yaml, kernel, ready};
use crate::member::Member;
use crate::peers::Peer;
use crate::router;

/// How long whoever is ready is left alone before its memory is read.
const SETTLE: Duration = Duration::from_millis(500);
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
    pub(super) address: SocketAddr,
    pub(super) pid: Pid,
    /// Bytes in memory before any load.
    pub(super) idle: u64,
    /// Dies with this.
    _member: Member,
}

/// Where the cells are, and where whoever is measured runs.
pub(super) struct Place<'p> {
    pub(super) cells: [SocketAddr; 2],
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

impl System {
    /// Our router, with one thread and with all that it does for a rule that restarts transactions.
    ///
    /// # Errors
    /// When it cannot be started, or does not answer in time.
    pub(super) async fn ours(place: &Place<'_>) -> Result<Self> {
        let Place { cells: [a, b], core, folder, .. } = place;
        router::write(folder, "a", &cell_yaml("a", *a))?;
        router::write(folder, "b", &cell_yaml("b", *b))?;
        router::write(folder, "router", ROUTER)?;
        router::write(folder, "policy", POLICY)?;
        let (member, [address]) = router::start(OURS, folder, [LISTENER], Some(1), Some(*core))?;
        Self::ready(OURS, member, address).await
    }

    /// A peer, installed if it is not there.
    ///
    /// # Errors
    /// When it cannot be had or started, or does not answer in time.
    pub(super) async fn peer(name: &'static str, peer: Peer, place: &Place<'_>) -> Result<Self> {
        let program = peer.program(place.cache)?;
        let folder = place.folder.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        let port = Port::free().context("no free port on loopback")?;
        let address = port.address;
        let launch = launch(name, peer, program, &folder, address, place.cells)?.on_core(Some(place.core));
        Self::ready(name, Member::start(name, vec![launch], vec![port], &folder)?, address).await
    }

    async fn ready(name: &'static str, mut member: Member, address: SocketAddr) -> Result<Self> {
        ready(&mut member, address, &Request::get("/").with(FIELDS)).await?;
        sleep(SETTLE).await;
        let pid = member.pid()?;
        Ok(Self { name, address, pid, idle: kernel::resident(pid)?, _member: member })
    }
}

fn launch(
    name: &str,
    peer: Peer,
    program: PathBuf,
    folder: &Path,
    address: SocketAddr,
    [a, b]: [SocketAddr; 2],
) -> Result<crate::process::Launch> {
    let places = [
        ("@FOLDER@", folder.to_string_lossy().into_owned()),
        ("@PORT@", address.port().to_string()),
        ("@CELL-A@", a.to_string()),
        ("@CELL-B@", b.to_string()),
        ("@PORT-A@", a.port().to_string()),
        ("@PORT-B@", b.port().to_string()),
    ];
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

const ROUTER: &str = "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {name: main}
spec:
  listeners: [{name: http, port: 8080}]
";

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
            launch(name, peer, "program".into(), folder.path(), front, [a, b]).expect("is written");
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
