//! A router as a process that reads a folder of YAML, which a bench may edit while it runs. What is in the YAML is each
//! bench's own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bulkhead_process::Port;

use crate::member::Member;
use crate::process::{Launch, sibling};

/// One that was started.
pub(crate) struct Router<const N: usize> {
    pub(crate) member: Member,
    /// Where each of its listeners takes requests.
    pub(crate) listeners: [SocketAddr; N],
    /// Where it tells what it does.
    pub(crate) admin: SocketAddr,
}

/// Starts one with its files in `folder`. `more` are further flags; without a core of its own it runs on all.
pub(crate) fn start<const N: usize>(
    name: &str,
    folder: &Path,
    listeners: [&str; N],
    more: &[&str],
    core: Option<usize>,
) -> Result<Router<N>> {
    let mut ports = Vec::with_capacity(N + 1);
    for _ in 0..=N {
        ports.push(Port::free().context("no free port on loopback")?);
    }
    // Every port but the admin server's, which is the last.
    let addresses: [SocketAddr; N] = std::array::from_fn(|listener| ports[listener].address);
    let admin = ports[N].address;
    let ledger = ledger(name, folder);
    fs::create_dir_all(&ledger).with_context(|| format!("{} cannot be made", ledger.display()))?;
    let mut flags = vec![
        "--router=main".to_owned(),
        format!("--source={}", objects(folder).display()),
        format!("--pod-name={name}"),
        format!("--listen-ip={}", Ipv4Addr::LOCALHOST),
        format!("--admin-address={}", admin),
        format!("--ledger-dir={}", ledger.display()),
    ];
    flags.extend(more.iter().map(|flag| (*flag).to_owned()));
    let listening = listeners.iter().zip(addresses);
    flags.extend(listening.map(|(listener, address)| format!("--listen-port={listener}={}", address.port())));
    let launch = Launch::new(sibling("bulkhead-router")?, flags).on_core(core);
    Ok(Router { member: Member::start(name, vec![launch], ports, folder)?, listeners: addresses, admin })
}

/// Writes an object that routers serve, or a changed one in its place: beside and renamed, so that no router reads half a
/// file.
pub(crate) fn write(folder: &Path, name: &str, yaml: &str) -> Result<()> {
    fs::create_dir_all(objects(folder)).context("the folder of objects cannot be made")?;
    let (path, draft) = (objects(folder).join(format!("{name}.yaml")), folder.join("draft"));
    fs::write(&draft, yaml)?;
    fs::rename(&draft, &path).with_context(|| format!("{} cannot be written", path.display()))
}

/// Where the router of that name keeps its ledger.
pub(crate) fn ledger(name: &str, folder: &Path) -> PathBuf {
    folder.join(format!("{name}-ledger"))
}

fn objects(folder: &Path) -> PathBuf {
    folder.join("objects")
}
