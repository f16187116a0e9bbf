//! The same cluster by kind, for machines that have Docker. What kind does not do, stopping parts by hand,
//! is left to the local provider.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::layout::ClusterName;
use super::state::{Record, State};
use crate::command::{command, find, output, succeeds};
use crate::progress;

/// Makes the cluster unless kind knows it.
///
/// # Errors
/// When kind fails.
pub fn up(state: &State, record: &Record) -> Result<()> {
    let name = record.layout.name.to_string();
    let known = output(&mut command("kind", ["get", "clusters"]))?;
    if !known.lines().any(|line| line == name) {
        let configuration = configuration();
        let mut create =
            command("kind", ["create", "cluster", "--name", &name, "--wait", "120s", "--config"]);
        create.arg(configuration).arg("--kubeconfig").arg(state.kubeconfig());
        progress::step("kind create cluster", || output(&mut create).map(drop))?;
    }
    Ok(())
}

/// Deletes the cluster.
///
/// # Errors
/// When kind fails.
pub fn down(name: &ClusterName) -> Result<()> {
    check()?;
    output(&mut command("kind", ["delete", "cluster", "--name", &name.to_string()])).map(drop)
}

/// Loads archives of images into every node.
///
/// # Errors
/// When kind fails.
pub fn load(name: &ClusterName, archives: &[PathBuf]) -> Result<()> {
    check()?;
    for archive in archives {
        output(&mut load_command(name, archive))?;
    }
    Ok(())
}

/// Whether the API server behind a kubeconfig is ready.
pub fn answers(kubeconfig: &Path) -> bool {
    let mut ask = command("kubectl", ["get", "--raw", "/readyz", "--request-timeout=2s"]);
    succeeds(ask.env("KUBECONFIG", kubeconfig))
}

fn load_command(name: &ClusterName, archive: &Path) -> std::process::Command {
    let mut load = command("kind", ["load", "image-archive"]);
    load.arg(archive).args(["--name", &name.to_string()]);
    load
}

/// Whether kind can be used here.
///
/// # Errors
/// Names what is missing.
pub fn check() -> Result<()> {
    check_tools(&|program| find(program).is_some())
}

fn check_tools(present: &dyn Fn(&str) -> bool) -> Result<()> {
    let missing: Vec<_> =
        ["docker", "kind", "kubectl"].into_iter().filter(|program| !present(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "the provider `kind` needs {} in PATH; install it, or use `--provider local`, which needs neither \
         Docker nor kind",
        missing.join(" and ")
    )
}

fn configuration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kind-config.yaml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_the_way_out() {
        let failure = check_tools(&|program| program == "docker").unwrap_err().to_string();
        assert!(failure.contains("kind and kubectl"), "{failure}");
        assert!(failure.contains("--provider local"), "{failure}");
        assert!(check_tools(&|_| true).is_ok());
    }

    #[test]
    fn archives_are_loaded_into_the_named_cluster() {
        let load = load_command(&"dev".parse().unwrap(), Path::new("a.tar"));
        assert_eq!(crate::command::described(&load), "kind load image-archive a.tar --name dev");
    }

    #[test]
    fn the_configuration_is_in_the_repository() {
        assert!(configuration().is_file());
    }
}
