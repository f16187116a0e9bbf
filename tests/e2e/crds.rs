//! The tables of objects that the API accepts and rejects, on the real API server. `crds/` runs them locally as well.

use std::fs;
use std::path::Path;

use bulkhead_tests::World;

fn documents(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/testdata").join(folder);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .expect("the tables are in the tree")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("readable")))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{} is empty", folder.display());
    found
}

#[test]
fn the_api_server_takes_every_object_of_the_accept_table() {
    let (world, _turn) = World::enter();
    for (path, text) in documents("accept") {
        if text.contains("\nold:") || text.starts_with("old:") {
            continue;
        }
        world
            .feed(&["apply", "--dry-run=server", "-f", "-"], &text)
            .unwrap_or_else(|error| panic!("{path}: {error:#}"));
    }
}

#[test]
fn the_api_server_refuses_every_object_of_the_reject_table_for_the_reason_given() {
    let (world, _turn) = World::enter();
    for (path, text) in documents("reject") {
        if text.contains("\nold:") || text.starts_with("old:") {
            continue;
        }
        let expected = text
            .lines()
            .find_map(|line| line.strip_prefix("# expect: "))
            .unwrap_or_else(|| panic!("{path} says no `# expect: `"));
        let refusal = world.feed(&["apply", "--dry-run=server", "-f", "-"], &text).expect_err(&path);
        assert!(format!("{refusal:#}").contains(expected), "{path}: expected {expected:?} in: {refusal:#}");
    }
}
