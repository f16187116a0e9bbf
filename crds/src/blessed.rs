//! Committed files that are made from the types: tests compare them, and `BLESS=1` writes them anew.

use std::path::Path;

/// Compares a committed file with what it should be, or writes it under `BLESS=1`.
pub(crate) fn check(path: &Path, expected: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a file is in a folder"))
            .expect("the folder can be made");
        std::fs::write(path, expected).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == expected, "{} is stale: run BLESS=1 cargo test -p bulkhead-crds", path.display());
}
