//! `cargo xtask test`: everything that has to pass before a change lands, from formatting to the tests on a real
//! cluster, with all the set-up that they need. What is tested is in the crates and in `tests/`.

use std::ffi::OsString;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::cluster::layout::ClusterName;
use crate::cluster::state::{Provider, State, cache};
use crate::cluster::tools::Tools;
use crate::cluster::{self, Wanted, down};
use crate::command::{command, described};
use crate::{deny, fuzz, images, packages, progress};

/// For how long each fuzz target runs.
const FUZZ_SECONDS: u64 = 60;
const SOAK_FUZZ_SECONDS: u64 = 600;

/// What `cargo xtask test` is asked for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Fail where the tests on a real cluster cannot run, instead of saying so.
    pub require_cluster: bool,
    /// Install missing packages without asking.
    pub yes: bool,
    /// Leave the cluster up, for a look at what failed.
    pub keep: bool,
    /// Only the tests on the cluster whose names contain this, without the earlier steps.
    pub only: Option<String>,
}

/// Runs every step in turn and stops at the first that fails.
///
/// # Errors
/// Names the step.
pub fn run(wish: &Wish) -> Result<()> {
    if wish.only.is_none() {
        cargo("formatting", &["fmt", "--all", "--check"])?;
        cargo(
            "lints",
            &["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"],
        )?;
        deny::check()?;
        cargo("unit, property and in-process tests", &["test", "--workspace", "--locked"])?;
        http2(wish)?;
        peers(wish.yes)?;
        fuzz::run(FUZZ_SECONDS, &[])?;
    }
    match packages::ensure(wish.yes) {
        Ok(()) => {
            // Their cluster is made and removed here; a person's own is called otherwise.
            let suite = Suite { cluster: "test", feature: "bulkhead-tests/e2e", only: wish.only.as_deref() };
            suite.run(wish)
        }
        Err(reason) if wish.require_cluster => {
            Err(reason.context("the tests on a real cluster cannot run here"))
        }
        Err(reason) => {
            progress::note("");
            progress::note("*** The tests on a real cluster did NOT run:");
            progress::note(&format!("*** {reason:#}"));
            progress::note("*** Everything else passed. Pass --require-cluster to make this an error.");
            Ok(())
        }
    }
}

/// Holds a router to HTTP/2 by a program of others, which is built with Go.
fn http2(wish: &Wish) -> Result<()> {
    let h2spec = match Tools::h2spec() {
        Ok(h2spec) => h2spec,
        Err(reason) if wish.require_cluster => return Err(reason),
        Err(reason) => {
            progress::note(&format!("*** HTTP/2 was NOT held to h2spec: {reason:#}"));
            return Ok(());
        }
    };
    // The whole workspace, so that dependencies keep the features with which the step before built them.
    let arguments =
        ["test", "--locked", "--workspace", "--features", "bulkhead-router/h2spec", "--test", "it"];
    let mut tests = cargo_command(&arguments);
    tests.args(["--", "http2::spec"]).env("BULKHEAD_H2SPEC", h2spec);
    progress::step("HTTP/2 by h2spec", || status(&mut tests))
}

/// The tests beside other programs that speak HTTP, which pip keeps in the cache.
fn peers(yes: bool) -> Result<()> {
    packages::ensure_pip(yes)?;
    // The whole workspace, so that dependencies keep the features with which the earlier step built them.
    let mut tests = cargo_command(&["test", "--locked", "--workspace", "--features", "bulkhead-tests/peers"]);
    tests.args(["--test", "peers"]).env("BULKHEAD_CACHE", cache()?);
    progress::step("tests beside HAProxy and nginx", || status(&mut tests))
}

/// Runs what takes minutes to hours: fuzz targets, and tests on a cluster of their own, see `tests/e2e/soak.rs`.
///
/// # Errors
/// When the cluster cannot run here, or a target or test fails.
pub fn soak(wish: &Wish) -> Result<()> {
    if wish.only.is_none() {
        fuzz::run(SOAK_FUZZ_SECONDS, &[])?;
    }
    packages::ensure(wish.yes)?;
    let only = wish.only.as_deref().unwrap_or("soak::");
    Suite { cluster: "soak", feature: "bulkhead-tests/soak", only: Some(only) }.run(wish)
}

/// Tests on a real cluster that is made for them.
struct Suite<'a> {
    cluster: &'static str,
    feature: &'static str,
    only: Option<&'a str>,
}

impl Suite<'_> {
    fn run(&self, wish: &Wish) -> Result<()> {
        let name: ClusterName = self.cluster.parse()?;
        let tools = Tools::ensure()?;
        let built = images::build("fast", "dev", &[])?;
        let archives: Vec<_> = built.into_iter().map(|image| image.archive).collect();
        // Left over from a run that was killed; its state would not be what the tests begin from.
        down::down(&name)?;
        let wanted = Wanted { name: name.clone(), nodes: Some(2), provider: Provider::Local, yes: wish.yes };
        let outcome = cluster::up(&wanted).and_then(|state| {
            cluster::load(&name, &archives)?;
            self.test(&tools, &state)
        });
        if wish.keep {
            progress::note(&format!(
                "the cluster is still up; remove it with `cargo xtask cluster down --name {name}`"
            ));
            return outcome;
        }
        let removed = progress::step("removing the cluster", || down::down(&name));
        outcome.and(removed)
    }

    fn test(&self, tools: &Tools, state: &State) -> Result<()> {
        // The whole workspace, so that dependencies keep the features with which the earlier step built them.
        let mut arguments = vec!["test", "--locked", "--workspace", "--features", self.feature];
        arguments.extend(["--test", "e2e", "--", "--test-threads", "1"]);
        arguments.extend(self.only);
        let mut tests = cargo_command(&arguments);
        tests.envs(environment(self.cluster, tools, state)?);
        progress::step("tests on a real cluster", || status(&mut tests))
    }
}

/// What `bulkhead-tests` needs to know of a cluster.
pub(crate) fn environment(
    cluster: &str,
    tools: &Tools,
    state: &State,
) -> Result<[(&'static str, OsString); 6]> {
    let this = std::env::current_exe().context("the path of this program cannot be told")?;
    Ok([
        ("KUBECONFIG", state.kubeconfig().into()),
        ("BULKHEAD_AUDIT_LOG", state.path("log/audit.log").into()),
        ("BULKHEAD_CLUSTER", cluster.into()),
        ("BULKHEAD_KUBECTL", tools.program("kubectl")?.into()),
        ("BULKHEAD_HELM", tools.program("helm")?.into()),
        ("BULKHEAD_XTASK", this.into()),
    ])
}

fn cargo(what: &str, arguments: &[&str]) -> Result<()> {
    progress::step(what, || status(&mut cargo_command(arguments)))
}

pub(crate) fn cargo_command(arguments: &[&str]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or("cargo".into()), arguments)
}

/// Runs it with its output where the person sees it.
pub(crate) fn status(command: &mut Command) -> Result<()> {
    let status = run_in_view(command)?;
    if !status.success() {
        bail!("`{}` failed ({status})", described(command));
    }
    Ok(())
}

/// Runs it with its output where the person sees it, and leaves it to the caller what its status means.
pub(crate) fn run_in_view(command: &mut Command) -> Result<ExitStatus> {
    command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{}`", described(command)))
}
