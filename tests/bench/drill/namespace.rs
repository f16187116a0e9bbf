//! A network namespace in which one cell lives, so that the packets to and from it can be dropped without a word. Needs
//! root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Whose third byte is the drill's own; of the networks that no host outside uses (RFC 2544).
const NETWORK: [u8; 3] = [198, 18, 213];

/// Removed when dropped, and the link with it.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Whether this process may make one.
    pub(crate) fn possible() -> Result<()> {
        ensure!(nix::unistd::geteuid().is_root(), "a network namespace needs root");
        for program in ["ip", "nft"] {
            run(&[program, "-V"]).with_context(|| format!("a network namespace needs {program}"))?;
        }
        Ok(())
    }

    /// One with a link to here.
    pub(crate) fn make() -> Result<Self> {
        let number = std::process::id();
        let namespace = Self { name: format!("bulkhead-drill-{number}") };
        let (name, link) = (namespace.name.as_str(), format!("bhd{number}"));
        let [near, far] = [1, 2].map(|host| format!("{}/30", address(host)));
        run(&["ip", "netns", "add", name])?;
        run(&["ip", "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        run(&["ip", "address", "add", &near, "dev", &link])?;
        run(&["ip", "link", "set", &link, "up"])?;
        for inside in [
            &["ip", "address", "add", &far, "dev", "eth0"][..],
            &["ip", "link", "set", "eth0", "up"],
            &["ip", "link", "set", "lo", "up"],
            &["nft", "add", "table", "inet", "drill"],
        ] {
            namespace.inside(inside)?;
        }
        Ok(namespace)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where what lives inside is reached.
    pub(crate) fn address(&self) -> IpAddr {
        address(2)
    }

    /// From now on nothing goes in or out.
    pub(crate) fn drop_packets(&self) -> Result<()> {
        for (chain, device) in [("input", "iifname"), ("output", "oifname")] {
            let hook = format!("{{ type filter hook {chain} priority 0; }}");
            self.inside(&["nft", "add", "chain", "inet", "drill", chain, &hook])?;
            self.inside(&["nft", "add", "rule", "inet", "drill", chain, device, "eth0", "drop"])?;
        }
        Ok(())
    }

    pub(crate) fn pass_packets(&self) -> Result<()> {
        self.inside(&["nft", "flush", "table", "inet", "drill"])
    }

    fn inside(&self, words: &[&str]) -> Result<()> {
        run(&[&["ip", "netns", "exec", &self.name], words].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = run(&["ip", "netns", "delete", &self.name]) {
            eprintln!("the network namespace {} is left: {error:#}", self.name);
        }
    }
}

fn address(host: u8) -> IpAddr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, host).into()
}

fn run(words: &[&str]) -> Result<()> {
    let line = words.join(" ");
    let (program, arguments) = words.split_first().context("no program")?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed ({}): {}", output.status, said.trim());
    Ok(())
}
