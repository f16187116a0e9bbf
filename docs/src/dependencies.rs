//! `reference/dependencies.md`: the crates that the router's program is made of, so that a change that brings another
//! shows it in its review.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const OPENING: &str = "\
<!-- Made from Cargo.lock; `BLESS=1 cargo test -p bulkhead-docs` refreshes it. -->

# Dependencies

What runs in the router's program on Linux, which is every transaction's way, and who needs it. Macros and build scripts are left out:
they run on the machine that builds. `cargo tree -p bulkhead-router -e normal,no-proc-macro -i CRATE` says where a crate comes from.
";

/// Crates with those that need them.
type Needed<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

#[test]
fn the_reference_names_every_crate_of_the_router() {
    let tree = crate::cargo(&[
        "tree",
        "--locked",
        "--package=bulkhead-router",
        "--edges=normal,no-proc-macro",
        "--target=x86_64-unknown-linux-musl",
        "--prefix=depth",
    ]);
    let needed = needed(&tree);
    let mut page = OPENING.to_owned();
    let ours = needed.keys().filter(|name| is_ours(name)).count();
    writeln!(page, "\n{ours} crates are ours, {} are others'.", needed.len() - ours)
        .and_then(|()| table(&mut page, &needed))
        .expect("a String takes all text");
    crate::check("dependencies.md", &page);
}

fn table(page: &mut String, needed: &Needed<'_>) -> std::fmt::Result {
    writeln!(page, "\n| crate | needed by |\n|---|---|")?;
    for (name, by) in needed.iter().filter(|(name, _)| !is_ours(name)) {
        let by: Vec<_> = by.iter().map(|name| format!("`{name}`")).collect();
        writeln!(page, "| `{name}` | {} |", by.join(", "))?;
    }
    Ok(())
}

fn is_ours(name: &str) -> bool {
    name.starts_with("bulkhead-")
}

/// Each crate with those that need it. Versions are Cargo.lock's to tell.
fn needed(tree: &str) -> Needed<'_> {
    let mut needed = Needed::new();
    let mut path: Vec<&str> = Vec::new();
    for line in tree.lines() {
        let digits = line.find(|c: char| !c.is_ascii_digit()).expect("a name follows the depth");
        let depth: usize = line[..digits].parse().expect("the depth is a number");
        let name = line[digits..].split(' ').next().expect("a line has a name");
        path.truncate(depth);
        needed.entry(name).or_default().extend(path.last());
        path.push(name);
    }
    needed
}

#[test]
fn who_needs_a_crate_is_read_from_the_tree() {
    let needed = needed("0a v1.0.0 (/a)\n1b v1.0.0\n2c v0.2.0\n1c v0.1.0\n2d v1.0.0\n1d v1.0.0 (*)\n");
    let by = |name| needed[name].iter().copied().collect::<Vec<_>>().join(" ");
    assert_eq!(["a", "b", "c", "d"].map(by), ["", "a", "a b", "a c"]);
}
