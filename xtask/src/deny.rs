//! Licences, bans and sources of the dependencies, checked by cargo-deny as `deny.toml` says. Advisories are not: they
//! come from a database on the network, and change while the code does not.

use anyhow::Result;

use crate::command::{command, output};
use crate::{cargo_tool, progress};

const VERSION: &str = "0.20.2";

/// Checks every dependency of the workspace.
///
/// # Errors
/// Names the dependency and what is wrong with it.
pub fn check() -> Result<()> {
    let program = cargo_tool::ensure("cargo-deny", VERSION)?;
    progress::step("licences, bans and sources of dependencies", || {
        let arguments = ["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        output(&mut command(&program, arguments)).map(drop)
    })
}
