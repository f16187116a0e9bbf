//! Programs that cargo builds from packages, each once into the cache, by version.

use std::path::PathBuf;

use anyhow::Result;

use crate::cluster::state::cache;
use crate::command::output;
use crate::progress;
use crate::test::cargo_command;

/// The program of that package, built if it is not there.
///
/// # Errors
/// When it cannot be built.
pub fn ensure(package: &str, version: &str) -> Result<PathBuf> {
    let folder = cache()?.join("tools").join(format!("{package}-{version}"));
    let program = folder.join("bin").join(package);
    if !program.is_file() {
        progress::step(&format!("building {package} (once; kept in {})", folder.display()), || {
            // They run for seconds, so that they need not be fast.
            let version = format!("{package}@{version}");
            let mut install = cargo_command(&["install", &version, "--locked", "--debug", "--root"]);
            install.arg(&folder).env("CARGO_PROFILE_DEV_DEBUG", "0");
            output(&mut install).map(drop)
        })?;
    }
    Ok(program)
}
