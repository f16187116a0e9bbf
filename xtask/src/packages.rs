//! What the machine must have before a local cluster can run: packages of Debian or Ubuntu, and root.
//! The tools that are built from Go modules are `cluster::tools`'.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::{Result, bail};

use crate::command::{self, command, output};
use crate::progress;

/// A package, and a file or program that is there when it is installed.
const NEEDED: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("etcd-server", "etcd"),
    ("iptables", "iptables-legacy"),
    ("ipset", "ipset"),
    ("conntrack", "conntrack"),
    ("nftables", "nft"),
    ("iproute2", "ip"),
];

/// The packages that this machine lacks, in a fixed order.
pub fn missing() -> Vec<&'static str> {
    NEEDED.into_iter().filter(|(_, sign)| !present(sign)).map(|(package, _)| package).collect()
}

/// Makes sure that a local cluster can run here: installs what is missing, without asking when `yes` or
/// `CI=true` says so, after asking on a terminal, and otherwise not at all.
///
/// # Errors
/// Names the missing privilege or packages, with the command that installs them.
pub fn ensure(yes: bool) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "a local cluster needs root, because it makes network namespaces and mounts: run it again with \
             `sudo --preserve-env=PATH,HOME`, or use `--provider kind` where Docker is installed"
        );
    }
    if command::find("go").is_none() {
        bail!("a local cluster is built with Go, and there is no `go` in PATH: install Go 1.26 or later");
    }
    if !command::succeeds(&mut command("unshare", ["--net", "--mount", "true"])) {
        bail!(
            "root may not make network namespaces and mounts here, as in a container without privileges: run it on \
             a machine of its own, or use `--provider kind` where Docker is installed"
        );
    }
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing, yes)?;
    match self::missing().as_slice() {
        [] => Ok(()),
        left => bail!("still missing after the installation: {}", left.join(" ")),
    }
}

/// Makes sure that there is a pip, in the way of [`ensure`].
///
/// # Errors
/// Names the package and the command that installs it.
pub fn ensure_pip(yes: bool) -> Result<()> {
    let is_there = || command::succeeds(&mut command("python3", ["-m", "pip", "--version"]));
    if is_there() {
        return Ok(());
    }
    install(&["python3-pip"], yes)?;
    if is_there() { Ok(()) } else { bail!("python3 has no pip after the installation of python3-pip") }
}

fn install(missing: &[&str], yes: bool) -> Result<()> {
    let remedy = format!("apt-get install {}", missing.join(" "));
    if command::find("apt-get").is_none() {
        bail!("packages are missing: {} (names as in Debian); install them and try again", missing.join(" "));
    }
    if !(yes || in_ci() || agreed(&remedy)) {
        bail!("packages are missing; run `{remedy}`, or pass --yes to have it done");
    }
    progress::step(&remedy, || {
        let apt = |arguments: &[&str]| {
            let mut apt = command("apt-get", arguments);
            output(apt.env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
        };
        apt(&["update", "-q"])?;
        apt(&[&["install", "-y", "-q", "--no-install-recommends"], missing].concat())
    })
}

fn present(sign: &str) -> bool {
    if sign.starts_with('/') { Path::new(sign).exists() } else { command::find(sign).is_some() }
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn agreed(remedy: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    eprint!("More packages are needed. Run `{remedy}` now? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("y")
}
