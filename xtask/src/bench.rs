//! `cargo xtask bench`: starts a measurement on a cluster that is up. What is measured is in `tests/bench`.

use anyhow::Result;

use crate::cluster::layout::ClusterName;
use crate::cluster::state::State;
use crate::cluster::tools::Tools;
use crate::test::{cargo_command, environment, status};

/// Runs the bench of that name on that cluster, with the images that are loaded there.
///
/// # Errors
/// When there is no such cluster, or the bench fails.
pub fn run(cluster: &ClusterName, name: &str, arguments: &[String]) -> Result<()> {
    let state = State::of(cluster)?;
    state.existing()?;
    let tools = Tools::ensure()?;
    let mut bench = cargo_command(&[
        "run",
        "--quiet",
        "--release",
        "--locked",
        "-p",
        "bulkhead-tests",
        "--features",
        "e2e",
    ]);
    bench.args(["--bin", "bench", "--", name]).args(arguments);
    bench.envs(environment(&cluster.to_string(), &tools, &state)?);
    status(&mut bench)
}
