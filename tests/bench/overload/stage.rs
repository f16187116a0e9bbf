//! Cells and the proxies before them, on a core of their own. All of it is gone when this is dropped.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::{Monotonic, Port};
use nix::unistd::Pid;

use super::clients::{CELLS, Load, Pace};
use super::rig::{Nobody, Rig};
use super::sockets::listening;
use crate::lab::health::health;
use crate::lab::serving::Serving;
use crate::member::Member;
use crate::peers::Peer;
use crate::proxy::PROXY_CORE;
use crate::proxy::shape::Template;

use crate::router;

/// How long everything may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether it is.
const LOOK: Duration = Duration::from_millis(200);
/// Two that have a half of the requests each, and one for those who do not read.
const NAMES: [&str; CELLS + 1] = ["a", "b", "long"];
/// The place of the one with the long answer, and how long that is: longer than what kernels hold.
const LONG: usize = CELLS;
const LONG_ANSWER: usize = 16 * 1024 * 1024;
/// Whose requests that one gets.
pub(super) const LONG_PARTNER: &str = "q";
const LISTENER: &str = "http";
/// The same with fewer requests under way than connections.
const NARROW: &str = "narrow";
pub(super) const NARROW_IN_FLIGHT: u32 = 256;
pub(super) const OURS: &str = "bulkhead";
pub(super) const HAPROXY: &str = "haproxy";
const HAPROXY_FILE: (&str, &str) = ("overload-haproxy.cfg", include_str!("../peers/overload-haproxy.cfg"));

/// Of the router, how long a head may take, how long a body, and how long an answer may be left unread.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a cell may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);

/// What is not the same in all rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Requests under way in one cell.
    pub(super) in_cell: Option<u32>,
    /// How long a connection may be quiet, or leave its answer where it is.
    pub(super) idle: Duration,
}

impl Limits {
    /// As nobody reaches them.
    pub(super) const WIDE: Self = Self { in_cell: None, idle: Duration::from_secs(60) };
}

pub(super) struct Stage {
    pub(super) rig: Rig,
    /// Ours first.
    pub(super) systems: Vec<System>,
    _health: Serving,
    _ports: Vec<[Port; 2]>,
}

/// A proxy that takes requests.
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    /// Where it takes no more than [`NARROW_IN_FLIGHT`] requests at once and refuses the others, if it can.
    pub(super) narrow: Option<SocketAddr>,
    pub(super) pid: Pid,
    /// Dies with this.
    member: Member,
}

impl System {
    /// Half of the requests to each cell.
    pub(super) fn load(&self, pace: Pace) -> Load {
        Load { to: self.address, template: Template::of_rules("x-partner", CELLS as u64), pace }
    }
}

impl Stage {
    /// Starts them with their files in `folder`, and waits until requests are answered.
    ///
    /// # Errors
    /// When something cannot be started or is not ready in time.
    pub(super) fn set(limits: Limits, peer: bool, cache: &Path, folder: &Path) -> Result<Self> {
        let (mut ports, mut cells, mut for_health) = (Vec::new(), Vec::new(), Vec::new());
        for name in NAMES {
            let pair = Port::free_pair().context("no free ports on loopback")?;
            cells.push(listening(pair[0].address)?);
            for_health.push((listening(pair[1].address)?, name.to_owned()));
            ports.push(pair);
        }
        let addresses: [SocketAddr; NAMES.len()] = std::array::from_fn(|cell| ports[cell][0].address);
        let mut rig = Rig::new(cells)?;
        rig.backend.answer_with(LONG, LONG_ANSWER);
        let health = Serving::start("health", for_health, health)?;
        let mut systems = vec![ours(limits, addresses, folder)?];
        if peer {
            systems.push(haproxy(limits, addresses, cache, folder)?);
        }
        let mut stage = Self { rig, systems, _health: health, _ports: ports };
        for system in 0..stage.systems.len() {
            stage.ready(system)?;
        }
        Ok(stage)
    }

    fn ready(&mut self, system: usize) -> Result<()> {
        let (clock, system) = (Monotonic::start(), &mut self.systems[system]);
        loop {
            system.member.lives()?;
            // Until it listens nobody takes connections.
            let window = self.rig.measure(&system.load(Pace::Closed(1)), system.pid, LOOK, |_| {});
            let why = match window {
                Ok(window) if window.goodput() > 0.0 && window.failed() == 0 && window.refused() == 0.0 => {
                    return Ok(());
                }
                Ok(window) => format!("{window:?}"),
                Err(error) => format!("{error:#}"),
            };
            ensure!(
                clock.elapsed() < PATIENCE,
                "{} is not ready after {PATIENCE:?}; what came of the last requests: {why}",
                system.name
            );
            // The cells are looked after meanwhile.
            let mut nobody = self.rig.clients(system.load(Pace::Closed(0)));
            self.rig.turns(&mut nobody, &mut Nobody, LOOK, |_| false)?;
        }
    }
}

/// Our router, with one thread and with all that it does for a rule that restarts transactions.
fn ours(limits: Limits, cells: [SocketAddr; NAMES.len()], folder: &Path) -> Result<System> {
    let folder = folder.join(OURS);
    for (name, address) in NAMES.iter().zip(cells) {
        router::write(&folder, name, &cell_yaml(name, address, limits.in_cell))?;
    }
    router::write(&folder, "router", &router_yaml(limits.idle))?;
    router::write(&folder, "policy", &policy())?;
    let router::Router { member, listeners: [address, narrow], .. } =
        router::start(OURS, &folder, [LISTENER, NARROW], &["--threads=1"], Some(PROXY_CORE))?;
    Ok(System { name: OURS, address, narrow: Some(narrow), pid: member.pid()?, member })
}

/// HAProxy with the same limits, as far as it has them.
fn haproxy(limits: Limits, cells: [SocketAddr; NAMES.len()], cache: &Path, folder: &Path) -> Result<System> {
    let program = Peer::Haproxy.program(cache)?;
    let folder = folder.join(HAPROXY);
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let port = Port::free().context("no free port on loopback")?;
    let address = port.address;
    let most = limits.in_cell.map_or_else(String::new, |most| format!(" maxconn {most}"));
    let mut places = vec![
        ("@PORT@", address.port().to_string()),
        ("@MOST@", most),
        ("@HEADER@", HEADER_TIMEOUT.as_secs().to_string()),
        ("@IDLE@", limits.idle.as_secs().to_string()),
        ("@DEADLINE@", DEADLINE.as_secs().to_string()),
    ];
    places
        .extend(["@CELL-A@", "@CELL-B@", "@CELL-LONG@"].into_iter().zip(cells.map(|cell| cell.to_string())));
    let launch = Peer::Haproxy.launch(program, &folder, &[HAPROXY_FILE], &places)?;
    let member = Member::start(HAPROXY, vec![launch.on_core(Some(PROXY_CORE))], vec![port], &folder)?;
    Ok(System { name: HAPROXY, address, narrow: None, pid: member.pid()?, member })
}

fn cell_yaml(name: &str, endpoint: SocketAddr, in_flight: Option<u32>) -> String {
    let capacity = in_flight.map_or_else(String::new, |most| format!("capacity: {{inFlight: {most}}}, "));
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {{name: {name}}}
spec: {{weight: 100, {capacity}endpoints: [\"{endpoint}\"]}}
"
    )
}

fn router_yaml(idle: Duration) -> String {
    let [header, body, idle] = [HEADER_TIMEOUT, BODY_TIMEOUT, idle].map(|time| time.as_secs());
    let timeouts = format!("headerTimeout: {header}s, bodyTimeout: {body}s, idleTimeout: {idle}s");
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {{name: main}}
spec:
  listeners:
  - {{name: {LISTENER}, port: 8080, limits: {{{timeouts}}}}}
  - {{name: {NARROW}, port: 8081, limits: {{inFlight: {NARROW_IN_FLIGHT}, {timeouts}}}}}
"
    )
}

fn policy() -> String {
    let rules = [("p000000000000", NAMES[0]), ("p000000000001", NAMES[1]), (LONG_PARTNER, NAMES[LONG])];
    let rules = rules.map(|(partner, cell)| {
        let deadline = DEADLINE.as_secs();
        format!(
            "  - name: {cell}
    matches: [{{all: [{{header: x-partner, exact: {partner}}}]}}]
    key: {{header: x-partner}}
    groups:
    - cells: [{{name: {cell}, weight: 100}}]
    restart: {{policy: UntilPointOfNoReturn, deadline: {deadline}s}}
"
        )
    });
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: payments, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: {LISTENER}}}, {{router: main, listener: {NARROW}}}]
  rules:
{}",
        rules.concat()
    )
}
