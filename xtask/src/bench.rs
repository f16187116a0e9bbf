//! `cargo xtask bench`: starts a measurement on a cluster that is up. What is measured is in `tests/bench`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cluster::layout::ClusterName;
use crate::cluster::state::State;
use crate::cluster::tools::Tools;
use crate::command::described;
use crate::test::{cargo_command, environment, run_in_view};

/// Runs the bench of that name on that cluster, with the images that are loaded there, and gives its exit status, which
/// is part of what it says: 2 when the machine was too noisy to tell.
///
/// # Errors
/// When there is no such cluster, or the bench cannot be run to its end.
pub fn run(cluster: &ClusterName, name: &str, arguments: &[String]) -> Result<u8> {
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
    code(&mut bench)
}

fn code(bench: &mut Command) -> Result<u8> {
    let status = run_in_view(bench)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.with_context(|| format!("`{}` did not run to its end ({status})", described(bench)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::command;

    #[test]
    fn the_status_of_a_bench_is_passed_on() {
        for wanted in [0, 1, 2] {
            let mut bench = command("sh", ["-c", &format!("exit {wanted}")]);
            assert_eq!(code(&mut bench).unwrap(), wanted);
        }
    }

    #[test]
    fn a_bench_that_was_killed_is_an_error_that_names_it() {
        let failure = code(&mut command("sh", ["-c", "kill -9 $$"])).unwrap_err().to_string();
        assert!(failure.contains("sh -c") && failure.contains("signal: 9"), "{failure}");
    }
}
