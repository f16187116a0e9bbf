//! `cargo xtask bench`: starts a measurement, on a cluster that is up or on this machine alone. What is measured is in
//! `tests/bench`, and for the ledger in `ledger/examples/bench`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cluster::layout::ClusterName;
use crate::cluster::state::{State, cache};
use crate::cluster::tools::Tools;
use crate::command::described;
use crate::progress;
use crate::test::{cargo_command, environment, run_in_view, status};

/// Benches that need no cluster, and the packages whose programs they start.
const LOCAL: [(&str, &[&str]); 9] = [
    ("drill", &["bulkhead-router", "bulkhead-cell-runtime", "bulkhead-samples", "bulkhead"]),
    ("path", &["bulkhead-router"]),
    ("proxy", &["bulkhead-router"]),
    ("memory", &["bulkhead-router"]),
    ("overload", &["bulkhead-router"]),
    ("restart", &["bulkhead-router"]),
    ("scale", &["bulkhead-router"]),
    ("instructions", &[]),
    (LEDGER, &[]),
];
/// An example of its crate, since it puts a clock beneath the ledger.
const LEDGER: &str = "ledger";

/// Runs the bench of that name, and gives its exit status, which is part of what it says: 2 when the machine was too noisy
/// to tell, or 1 when what can be counted exactly is not as it was. One that needs a cluster uses that one, with the images
/// that are loaded there.
///
/// # Errors
/// When there is no such cluster, or the bench cannot be run to its end.
pub fn run(cluster: &ClusterName, profile: &str, name: &str, arguments: &[String]) -> Result<u8> {
    let mut bench = cargo_command(&["run", "--quiet", "--locked", "--profile", profile]);
    bench.args(program(name)).args(arguments);
    let asks = ["--help", "-h"].iter().any(|help| arguments.iter().any(|argument| argument == help));
    match LOCAL.iter().find(|(local, _)| *local == name) {
        // A question is answered by the bench alone.
        _ if asks => {}
        Some((_, packages)) => {
            build(profile, packages)?;
            bench.env("BULKHEAD_CACHE", cache()?);
        }
        None => {
            let state = State::of(cluster)?;
            state.existing()?;
            bench.envs(environment(&cluster.to_string(), &Tools::ensure()?, &state)?);
        }
    }
    code(&mut bench)
}

/// What cargo runs for the bench of that name, up to the bench's own arguments.
fn program(name: &str) -> Vec<&str> {
    match name {
        LEDGER => vec!["-p", "bulkhead-ledger", "--example", "bench", "--"],
        _ => vec!["-p", "bulkhead-tests", "--bin", "bench", "--", name],
    }
}

/// Builds the programs into the folder of the bench's own, where it looks for them.
fn build(profile: &str, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        // Without a package, cargo would build some that it chooses itself.
        return Ok(());
    }
    let mut build = cargo_command(&["build", "--locked", "--profile", profile, "--bins"]);
    build.args(packages.iter().flat_map(|package| ["-p", package]));
    progress::step("building the programs", || status(&mut build))
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
