//! Cells as processes: those of the payment flow behind a cell-runtime, and those that call the issuer themselves.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};
use bulkhead_process::Port;

use super::namespace::Namespace;
use crate::member::Member;
use crate::process::{Launch, sibling};

/// The services before the destination and what each takes: 20 ms together.
const BEFORE: [&str; 4] = ["validate", "enrich", "transform", "choose-issuer"];
const DELAY_BEFORE: &str = "5ms";
/// The one after it.
const AFTER: &str = "check-answer";
/// What a cell takes before the destination, and again after it.
const DELAY: &str = "20ms";

/// A cell that calls the issuer itself, and where it takes requests.
pub(super) fn direct(name: &str, issuer: SocketAddr, folder: &Path) -> Result<(Member, SocketAddr)> {
    let port = free()?;
    let address = port.address;
    let launch = Launch::new(
        sibling("bulkhead-samples")?,
        [
            "direct-cell".to_owned(),
            format!("--listen={address}"),
            format!("--issuer={issuer}"),
            format!("--cell={name}"),
            format!("--delay={DELAY}"),
        ],
    );
    Ok((Member::start(name, vec![launch], vec![port], folder)?, address))
}

/// A cell whose orchestrator runs the whole flow, with the destination between its services; and where the orchestrator
/// takes transactions.
pub(super) fn flow(name: &str, folder: &Path, namespace: Option<&Namespace>) -> Result<(Member, SocketAddr)> {
    let ports = Port::free_pair().context("no free ports on loopback")?;
    let [admin, before, after] = [free()?, free()?, free()?];
    let ip = namespace.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), Namespace::address);
    let listen = SocketAddr::new(ip, ports[0].address.port());
    let config = folder.join(format!("{name}-cell.yaml"));
    fs::write(&config, config_yaml(name)).context("the cell's configuration cannot be written")?;
    let mut orchestrator = vec![
        format!("--config={}", config.display()),
        format!("--pod-name={name}"),
        format!("--listen={listen}"),
        format!("--admin-address={}", admin.address),
    ];
    orchestrator.extend(BEFORE.map(|service| format!("--service={service}={}/readyz", before.address)));
    orchestrator.push(format!("--service={AFTER}={}/readyz", after.address));
    let inside = namespace.map(Namespace::name);
    let launches = [
        service(name, "by-path", before.address, DELAY_BEFORE)?,
        service(name, AFTER, after.address, DELAY)?,
        Launch::new(sibling("bulkhead-cell-runtime")?, orchestrator),
    ];
    let launches = launches.map(|launch| launch.within(inside)).to_vec();
    let kept = ports.into_iter().chain([admin, before, after]).collect();
    Ok((Member::start(name, launches, kept, folder)?, listen))
}

fn service(cell: &str, role: &str, listen: SocketAddr, delay: &str) -> Result<Launch> {
    let flags = ["workload", "--role", role, "--cell", cell, "--name", role, "--delay", delay];
    let flags = flags.map(str::to_owned).into_iter().chain([format!("--listen={listen}")]);
    Ok(Launch::new(sibling("bulkhead-samples")?, flags))
}

fn config_yaml(cell: &str) -> String {
    let step = |service: &str| format!("- {{service: {service}, path: /{service}}}\n");
    let before: String = BEFORE.iter().map(|service| step(service)).collect();
    format!("cell: {cell}\ndestinations: [visa]\nsteps:\n{before}- {{destination: visa}}\n{}", step(AFTER))
}

fn free() -> Result<Port> {
    Port::free().context("no free port on loopback")
}
