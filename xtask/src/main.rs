//! The command line of the project's chores. What they do is in the library.

#![expect(clippy::print_stdout, reason = "a command line answers on its standard output")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xtask::cluster::layout::ClusterName;
use xtask::cluster::state::{Provider, State};
use xtask::cluster::{self, Wanted, down, outside, status, volumes};
use xtask::test::Wish;
use xtask::{bench, fuzz, images, progress, test};

/// Chores of the Bulkhead repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// A Kubernetes on this machine, without Docker.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Static programs, packed into images without Docker.
    Images(Images),
    /// Everything that has to pass before a change lands: format, lints, tests, and the tests on a real cluster.
    Test {
        /// Fail where the tests on a real cluster cannot run, instead of saying so.
        #[arg(long)]
        require_cluster: bool,
        #[command(flatten)]
        how: How,
    },
    /// What takes long: ten minutes of each fuzz target, and on a real cluster ten minutes at rest, half an hour without the
    /// API server.
    Soak {
        #[command(flatten)]
        how: How,
    },
    /// Inputs to fuzz targets until one breaks something, two targets at a time.
    Fuzz {
        /// For so long each.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only these targets, which are folders of `fuzz/seeds`.
        targets: Vec<String>,
    },
    /// A measurement; `cargo xtask bench NAME -- --help` tells what it takes.
    Bench {
        /// The cluster, for a bench that needs one: up, with its images loaded.
        #[arg(long, default_value = "dev")]
        cluster: ClusterName,
        /// The cargo profile of what runs on this machine: `release`, or `fast` while working on the code.
        #[arg(long, default_value = "release")]
        profile: String,
        /// `drain`, on a cluster: weight 0 under load, from the patch to the last new request; `propagation`, there too:
        /// from an applied policy to the last router that decides by it. On this machine alone: `drill`, a cell is killed
        /// in the middle of its work, behind Bulkhead and behind other proxies; `path`, what a request costs with restart
        /// and without; `proxy`, what it costs beside other proxies; `scale`, what it costs with many rules and cells;
        /// `overload`, what becomes of more than the router can do; `restart`, what one takes that is restarted; `memory`,
        /// more transactions than the router may hold; `instructions`, those of a decision, counted by valgrind; `ledger`,
        /// intents per second beside what the disk does.
        name: String,
        /// What the bench takes, such as --runs 20 or --json.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Cluster {
    /// Make the cluster, or start what is missing of it; prints what to put into the shell's environment.
    Up {
        #[command(flatten)]
        which: Which,
        /// Nodes, 1 to 20; 2 for a new cluster.
        #[arg(long)]
        nodes: Option<u8>,
        /// Who runs the nodes.
        #[arg(long, value_enum, default_value_t)]
        provider: Provider,
        /// Install missing packages without asking.
        #[arg(long)]
        yes: bool,
    },
    /// Remove the cluster and everything it made.
    Down(Which),
    /// How the cluster is; the exit status is 1 when something of it does not run.
    Status {
        #[command(flatten)]
        which: Which,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Where the cluster's kubeconfig is.
    Kubeconfig(Which),
    /// Load archives of images into every node.
    Load {
        #[command(flatten)]
        which: Which,
        /// Archives, as `cargo xtask images` makes them.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Stop a node as if it lost power.
    StopNode(OneNode),
    /// Start a stopped node again.
    StartNode(OneNode),
    /// Stop the API server.
    StopApiserver(Which),
    /// Start the API server again and wait until it is ready.
    StartApiserver(Which),
    /// Answer for the world outside the cluster, in the network namespace made for it.
    #[command(hide = true)]
    OutsideServer,
    /// Empty released volumes and offer them again.
    #[command(hide = true)]
    VolumeServer(Which),
}

/// How tests on a cluster run; the cluster is made for them and removed.
#[derive(Args)]
struct How {
    /// Install missing packages without asking.
    #[arg(long)]
    yes: bool,
    /// Leave the cluster up, for a look at what failed.
    #[arg(long)]
    keep: bool,
    /// Only the tests on the cluster whose names contain this, without the steps before them.
    #[arg(long)]
    only: Option<String>,
}

#[derive(Args)]
struct Which {
    /// The cluster's name.
    #[arg(long, default_value = "dev")]
    name: ClusterName,
}

#[derive(Args)]
struct OneNode {
    #[command(flatten)]
    which: Which,
    /// The node's number, counted from 1.
    node: u8,
}

#[derive(Args)]
struct Images {
    /// The cargo profile: `release`, or `fast` while working on the code.
    #[arg(long, default_value = "release")]
    profile: String,
    /// The images' tag.
    #[arg(long, default_value = "dev")]
    tag: String,
    /// Only this image: operator, router, cell-runtime or sample; may be given more than once.
    #[arg(long, value_name = "IMAGE")]
    only: Vec<String>,
    /// Load them into this cluster as well.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "dev")]
    load: Option<ClusterName>,
}

fn main() -> ExitCode {
    match run(Arguments::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode> {
    match chore {
        Chore::Cluster(chore) => cluster(chore),
        Chore::Images(chore) => build_images(&chore).map(|()| ExitCode::SUCCESS),
        Chore::Test { require_cluster, how: How { yes, keep, only } } => {
            test::run(&Wish { require_cluster, yes, keep, only }).map(|()| ExitCode::SUCCESS)
        }
        Chore::Soak { how: How { yes, keep, only } } => {
            test::soak(&Wish { require_cluster: true, yes, keep, only }).map(|()| ExitCode::SUCCESS)
        }
        Chore::Fuzz { seconds, targets } => fuzz::run(seconds, &targets).map(|()| ExitCode::SUCCESS),
        Chore::Bench { cluster, profile, name, arguments } => {
            bench::run(&cluster, &profile, &name, &arguments).map(ExitCode::from)
        }
    }
}

fn cluster(chore: Cluster) -> Result<ExitCode> {
    match chore {
        Cluster::Up { which, nodes, provider, yes } => {
            let state = cluster::up(&Wanted { name: which.name, nodes, provider, yes })?;
            println!("export KUBECONFIG={}", state.kubeconfig().display());
            if provider == Provider::Local {
                println!("export PATH={}:$PATH", state.path("bin").display());
            }
        }
        Cluster::Down(which) => {
            progress::step(&format!("removing cluster {}", which.name), || down::down(&which.name))?
        }
        Cluster::Status { which, json } => return show_status(&which.name, json),
        Cluster::Kubeconfig(which) => {
            let state = State::of(&which.name)?;
            state.existing()?;
            println!("{}", state.kubeconfig().display());
        }
        Cluster::Load { which, archives } => cluster::load(&which.name, &archives)?,
        Cluster::StopNode(one) => cluster::switch_node(&one.which.name, one.node, false)?,
        Cluster::StartNode(one) => cluster::switch_node(&one.which.name, one.node, true)?,
        Cluster::StopApiserver(which) => cluster::switch_api_server(&which.name, false)?,
        Cluster::StartApiserver(which) => cluster::switch_api_server(&which.name, true)?,
        Cluster::OutsideServer => outside::serve()?,
        Cluster::VolumeServer(which) => volumes::serve(&which.name)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show_status(name: &ClusterName, json: bool) -> Result<ExitCode> {
    let status = status::of(name)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", status.text());
    }
    Ok(if status.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn build_images(wanted: &Images) -> Result<()> {
    let built = images::build(&wanted.profile, &wanted.tag, &wanted.only)?;
    for image in &built {
        println!("{}  {}  {}", image.name, image.digest, image.archive.display());
    }
    if let Some(name) = &wanted.load {
        let archives: Vec<_> = built.into_iter().map(|image| image.archive).collect();
        cluster::load(name, &archives)?;
    }
    Ok(())
}
