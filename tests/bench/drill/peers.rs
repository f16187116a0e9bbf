//! What the drill tells each peer: two cells, and two ports, without and with retries of what may have been processed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::peers::Peer;
use crate::process::Launch;

/// What its configuration is filled in with.
pub(super) struct Places {
    /// The ports without and with retries of what may have been processed.
    pub(super) plain: u16,
    pub(super) retrying: u16,
    pub(super) cells: [SocketAddr; 2],
}

/// Writes its configuration into `folder`.
///
/// # Errors
/// When that cannot be written.
pub(super) fn launch(peer: Peer, program: PathBuf, folder: &Path, places: &Places) -> Result<Launch> {
    let [a, b] = places.cells;
    let places = [
        ("@FOLDER@", folder.to_string_lossy().into_owned()),
        ("@PLAIN@", places.plain.to_string()),
        ("@RETRYING@", places.retrying.to_string()),
        ("@CELL-A@", a.to_string()),
        ("@CELL-B@", b.to_string()),
        ("@PORT-A@", a.port().to_string()),
        ("@PORT-B@", b.port().to_string()),
    ];
    peer.launch(program, folder, files(peer), &places)
}

fn files(peer: Peer) -> &'static [(&'static str, &'static str)] {
    match peer {
        Peer::Haproxy => &[("haproxy.cfg", include_str!("../peers/haproxy.cfg"))],
        Peer::Nginx => &[("nginx.conf", include_str!("../peers/nginx.conf"))],
        Peer::Envoy => &[("envoy.yaml", include_str!("../peers/envoy.yaml"))],
        Peer::Traefik => &[
            ("traefik.yaml", include_str!("../peers/traefik.yaml")),
            ("traefik-routes.yaml", include_str!("../peers/traefik-routes.yaml")),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_configuration_leaves_no_place_open() {
        let cells = ["127.0.0.1:9001", "127.0.0.1:9002"].map(|cell| cell.parse().expect("an address"));
        let places = Places { plain: 8001, retrying: 8002, cells };
        for peer in Peer::ALL {
            let folder = tempfile::tempdir().expect("a folder");
            launch(peer, "program".into(), folder.path(), &places).expect("is written");
            let text: String = files(peer)
                .iter()
                .map(|(name, _)| fs::read_to_string(folder.path().join(name)).expect("is there"))
                .collect();
            for port in ["8001", "8002", "9001", "9002"] {
                assert!(text.contains(port), "{}: {port}", peer.name());
            }
            let open = text.replace("\"@type\"", "");
            assert!(!open.contains('@'), "{}: {text}", peer.name());
        }
    }
}
