//! The tables of objects that the API accepts and rejects, on the real API server. `crds/` runs them locally as well.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bulkhead_tests::world::OPERATOR;
use bulkhead_tests::{World, eventually};
use serde_json::Value;

/// Every object of the tables has this name.
const NAME: &str = "sample";

struct Row {
    path: String,
    /// What the refusal must say; none in the table of what is accepted.
    expected: Option<String>,
    /// What is stored before, where the row is an edit.
    old: Option<String>,
    new: String,
}

fn rows(folder: &str) -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/testdata").join(folder);
    let mut found: Vec<_> = fs::read_dir(&folder)
        .expect("the tables are in the tree")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| row(&path))
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "{} has only {} rows", folder.display(), found.len());
    found
}

fn row(path: &Path) -> Row {
    let text = fs::read_to_string(path).expect("readable");
    let expected = text.lines().find_map(|line| line.strip_prefix("# expect: ")).map(str::to_owned);
    let document: Value = serde_yaml::from_str(&text).expect("YAML");
    let part = |name: &str| document.get(name).map(Value::to_string);
    Row { path: path.display().to_string(), expected, old: part("old"), new: part("new").unwrap_or(text) }
}

/// What the API server says to the row, without storing it.
fn ask(world: &World, row: &Row) -> Result<String> {
    let dry = ["--dry-run=server", "--validate=strict", "-f", "-"];
    // Shifts without an end are the operator's alone.
    let create: &[&str] =
        if row.new.contains("owner: Operator") { &["create", "--as", OPERATOR] } else { &["create"] };
    match &row.old {
        None => world.feed(&[create, dry.as_slice()].concat(), &row.new),
        Some(old) => {
            world.feed(&["create", "-f", "-"], old)?;
            // The operator may write status between kubectl's read and its write, which the API answers with a conflict.
            let said = eventually(Duration::from_secs(10), || {
                match world.feed(&[&["replace"], dry.as_slice()].concat(), &row.new) {
                    Err(error) if format!("{error:#}").contains("the object has been modified") => Err(error),
                    said => Ok(said),
                }
            })?;
            world.feed(&["delete", "--timeout=120s", "-f", "-"], old)?;
            said
        }
    }
}

/// The edits are of stored objects, for which the operator may have made a namespace meanwhile.
fn clean_up(world: &World) {
    let namespace = format!("cell-{NAME}");
    world
        .kubectl(&["delete", "namespace", &namespace, "--ignore-not-found", "--timeout=120s"])
        .expect("deleted");
    eventually(Duration::from_secs(10), || world.kubectl(&["get", "cells"]).map(drop))
        .expect("the API answers");
}

#[test]
fn the_api_server_takes_every_object_of_the_accept_table() {
    let (world, _turn) = World::enter();
    for row in rows("accept") {
        let said = ask(world, &row).unwrap_or_else(|error| panic!("{}: {error:#}", row.path));
        assert!(!said.contains("Warning"), "{}: {said}", row.path);
    }
    clean_up(world);
}

#[test]
fn the_api_server_refuses_every_object_of_the_reject_table_for_the_reason_given() {
    let (world, _turn) = World::enter();
    for row in rows("reject") {
        let expected = row.expected.as_deref().unwrap_or_else(|| panic!("{} says no `# expect: `", row.path));
        let refusal = ask(world, &row).expect_err(&row.path);
        assert!(
            format!("{refusal:#}").contains(expected),
            "{}: expected {expected:?} in: {refusal:#}",
            row.path
        );
    }
    clean_up(world);
}
