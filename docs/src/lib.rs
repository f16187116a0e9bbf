//! Reference pages that are made from more than one crate: flags and metrics. It has no code that ships, only tests that
//! compare the committed pages, and write them under `BLESS=1`. Pages of one crate are made by that crate.

#[cfg(test)]
mod flags;
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
