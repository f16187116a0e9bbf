//! A local Kubernetes made of processes and network namespaces: `up` makes or repairs it, `down` removes
//! it, and between them tests stop and start its parts.

pub mod addons;
pub mod certs;
pub mod cgroups;
pub mod control_plane;
pub mod down;
pub mod kind;
pub mod layout;
pub mod network;
pub mod node;
pub mod outside;
pub mod processes;
pub mod ready;
pub mod state;
pub mod status;
pub mod tools;
pub mod volumes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{clock, packages, progress};
use layout::{ClusterName, Layout};
use node::Node;
use processes::Processes;
use state::{Provider, Record, State};
use tools::Tools;

/// What `up` is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The cluster's name.
    pub name: ClusterName,
    /// How many nodes; 2 for a new cluster when absent.
    pub nodes: Option<u8>,
    /// Who runs it.
    pub provider: Provider,
    /// Install missing packages without asking.
    pub yes: bool,
}

/// Makes the cluster, or starts what is missing of it, and waits until it works.
///
/// # Errors
/// Names what is missing on this machine, or which part does not come up.
pub fn up(wanted: &Wanted) -> Result<State> {
    let state = State::of(&wanted.name)?;
    if wanted.provider == Provider::Kind {
        kind::check()?;
        if wanted.nodes.is_some() {
            bail!(
                "--nodes is for the provider `local`; with kind, kind-config.yaml says which nodes there are"
            );
        }
        let record = state.claim(wanted.provider, None)?;
        kind::up(&state, &record)?;
        return Ok(state);
    }
    packages::ensure(wanted.yes)?;
    let tools = Tools::ensure()?;
    let begin = clock::now();
    let record = state.claim(wanted.provider, wanted.nodes)?;
    let _lock = state::lock(&state.path(".lock"))?;
    raise(&state, &record.layout, &tools)?;
    let took = progress::elapsed(begin.elapsed());
    progress::note(&format!("cluster {} is ready, with DNS, after {took}", wanted.name));
    Ok(state)
}

fn raise(state: &State, layout: &Layout, tools: &Tools) -> Result<()> {
    let processes = Processes::of(state);
    load_modules();
    let own = link_programs(state, tools)?;
    network::ensure(layout)?;
    certs::ensure(state, layout)?;
    outside::ensure(layout, &own, &processes)?;
    control_plane::ensure(state, layout, tools, &processes)?;
    on_every_node(layout, |number| {
        let (node, pause) = (Node::new(state, layout, number), tools.pause()?);
        node.ensure_containerd(&processes, &pause)?;
        node.ensure_image(&pause)?;
        node.ensure_image(&tools.coredns()?)
    })?;
    progress::step("waiting for the API server", || {
        control_plane::wait(state, tools, &processes, Duration::from_secs(120))
    })?;
    addons::apply(state, layout, tools)?;
    volumes::ensure(layout, &own, &processes)?;
    for number in layout.node_numbers() {
        Node::new(state, layout, number).ensure_kubernetes(&processes, tools)?;
    }
    progress::step("waiting for nodes and DNS", || {
        let limit = Duration::from_secs(120);
        ready::wait_for_nodes(state, tools, limit)?;
        for number in layout.node_numbers() {
            Node::new(state, layout, number).ensure_policies(&processes, tools)?;
        }
        ready::wait_for_names(state, layout, tools, limit)
    })
}

/// Imports archives of images into every node.
///
/// # Errors
/// When there is no such cluster or a node refuses an archive.
pub fn load(name: &ClusterName, archives: &[PathBuf]) -> Result<()> {
    let state = State::of(name)?;
    let record = state.existing()?;
    let many = if archives.len() == 1 { "image" } else { "images" };
    progress::step(&format!("loading {} {many} into cluster {name}", archives.len()), || {
        match record.provider {
            Provider::Kind => kind::load(name, archives),
            Provider::Local => on_every_node(&record.layout, |number| {
                let node = Node::new(&state, &record.layout, number);
                archives.iter().try_for_each(|archive| node.import(archive))
            }),
        }
    })
}

/// Stops a node as if it lost power, or starts it again.
///
/// # Errors
/// When there is no such node.
pub fn switch_node(name: &ClusterName, number: u8, on: bool) -> Result<()> {
    let (state, record) = local(name)?;
    if !record.layout.node_numbers().any(|known| known == number) {
        bail!("cluster {name} has the nodes 1 to {}, not {number}", record.layout.nodes);
    }
    let (node, processes) = (Node::new(&state, &record.layout, number), Processes::of(&state));
    if on { node.start(&processes) } else { node.stop(&processes) }
}

/// Stops the API server, or starts it again with the same command line and waits until it is ready.
///
/// # Errors
/// When it does not stop or does not come back.
pub fn switch_api_server(name: &ClusterName, on: bool) -> Result<()> {
    let (state, _) = local(name)?;
    let processes = Processes::of(&state);
    if !on {
        return processes.stop(control_plane::API_SERVER, Duration::from_secs(5));
    }
    processes.start(control_plane::API_SERVER)?;
    control_plane::wait(&state, &Tools::ensure()?, &processes, Duration::from_secs(60))
}

/// The network namespace of a place in the cluster, to run a program there.
///
/// # Errors
/// When there is no such cluster, or it is not a local one.
pub fn namespace(name: &ClusterName, place: layout::Place) -> Result<PathBuf> {
    local(name)?;
    Ok(Path::new("/run/netns").join(name.namespace(place)))
}

fn local(name: &ClusterName) -> Result<(State, Record)> {
    let state = State::of(name)?;
    let record = state.existing()?;
    if record.provider != Provider::Local {
        bail!("cluster {name} is run by kind; this works with the provider `local` only");
    }
    Ok((state, record))
}

fn on_every_node(layout: &Layout, work: impl Fn(u8) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = layout.node_numbers().map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("the work on a node panicked"),
        })
    })
}

/// Fills the folder that a person puts in front of `PATH`, and the one for the cluster's own processes.
/// Gives the path of a copy of this program, which a build cannot take away while the cluster is up.
fn link_programs(state: &State, tools: &Tools) -> Result<PathBuf> {
    std::fs::create_dir_all(state.path("bin"))?;
    for program in ["kubectl", "helm"] {
        link(&tools.program(program)?, &state.path("bin").join(program))?;
    }
    node::ensure_links(state)?;
    let (this, own) = (std::env::current_exe()?, state.path("sbin/xtask"));
    let partial = own.with_extension("partial");
    std::fs::copy(&this, &partial).with_context(|| format!("cannot copy {}", this.display()))?;
    std::fs::rename(&partial, &own)?;
    Ok(own)
}

fn link(target: &Path, at: &Path) -> Result<()> {
    if std::fs::read_link(at).is_ok_and(|known| known == target) {
        return Ok(());
    }
    let _ = std::fs::remove_file(at);
    std::os::unix::fs::symlink(target, at).with_context(|| format!("cannot link {}", at.display()))
}

/// Asks for kernel modules that a machine may not have loaded yet. Where they are built in, or loading is
/// not allowed, this does nothing, and what then does not work says so itself.
fn load_modules() {
    use crate::command::{command, succeeds};
    for module in
        ["overlay", "br_netfilter", "nf_conntrack", "ip_tables", "iptable_filter", "ip_set", "nf_tables"]
    {
        succeeds(&mut command("modprobe", ["-q", module]));
    }
}
