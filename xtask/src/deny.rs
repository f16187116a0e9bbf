//! Licences, bans and sources of the dependencies, checked by cargo-deny as `deny.toml` says. Advisories are not: they
//! come from a database on the network, and change while the code does not.

use std::path::PathBuf;

use anyhow::Result;

use crate::cluster::state::cache;
use crate::command::{command, output};
use crate::progress;
use crate::test::cargo_command;

const VERSION: &str = "0.20.2";

/// Checks every dependency of the workspace.
///
/// # Errors
/// Names the dependency and what is wrong with it.
pub fn check() -> Result<()> {
    let program = ensure()?;
    progress::step("licences, bans and sources of dependencies", || {
        let arguments = ["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        output(&mut command(&program, arguments)).map(drop)
    })
}

/// Builds cargo-deny once, into the cache.
fn ensure() -> Result<PathBuf> {
    let folder = cache()?.join("tools").join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        progress::step(&format!("building cargo-deny (once; kept in {})", folder.display()), || {
            // It runs for seconds, so that it need not be fast.
            let version = format!("cargo-deny@{VERSION}");
            let mut install = cargo_command(&["install", &version, "--locked", "--debug", "--root"]);
            install.arg(&folder).env("CARGO_PROFILE_DEV_DEBUG", "0");
            output(&mut install).map(drop)
        })?;
    }
    Ok(program)
}
