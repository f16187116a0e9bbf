//! What is said of more than one crate: the reference pages of flags, metrics, dependencies and HTTP, and the arrows of
//! ARCHITECTURE.md. It has no code that ships, only tests that compare the committed pages, and write them under
//! `BLESS=1`. Pages of one crate are made by that crate.

#[cfg(test)]
mod arrows;
#[cfg(test)]
mod dependencies;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod http;
#[cfg(test)]
mod metrics;

/// Compares a committed page with what it should be, or writes it under `BLESS=1`.
#[cfg(test)]
fn check(page: &str, expected: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reference").join(page);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, expected).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == expected, "{} is stale: run BLESS=1 cargo test -p bulkhead-docs", path.display());
}

/// What cargo says of this workspace.
#[cfg(test)]
fn cargo(arguments: &[&str]) -> String {
    let output = std::process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo writes text")
}
