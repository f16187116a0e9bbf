//! What the routers serve: so many rules over so many cells, each rule with a partner of its own. Pure, but for the writing.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use crate::lab::cell_yaml;
use crate::proxy::shape::DIGITS;
use crate::router;

pub(super) const LISTENER: &str = "http";
/// The field that says whose rule a request is for.
pub(super) const FIELD: &str = "x-partner";
/// What the first rule takes.
pub(super) const FIRST: &str = "x-partner: p000000000000\r\n";
/// A policy holds 128 at most.
const RULES_A_POLICY: usize = 100;

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rules: usize,
    pub(super) cells: usize,
}

impl Size {
    pub(super) fn text(self) -> String {
        format!("{} rules, {} cells", self.rules, self.cells)
    }
}

/// Writes all of it, over the first of these cells.
///
/// # Errors
/// What the file system says.
pub(super) fn write(folder: &Path, size: Size, endpoints: &[SocketAddr]) -> Result<()> {
    let cells = endpoints.iter().take(size.cells).enumerate();
    let cells: Vec<_> = cells.map(|(cell, endpoint)| cell_yaml(&name(cell), *endpoint)).collect();
    router::write(folder, "cells", &cells.join("---\n"))?;
    router::write(folder, "router", ROUTER)?;
    for policy in 0..size.rules.div_ceil(RULES_A_POLICY) {
        router::write(folder, &format!("policy-{policy:03}"), &policy_yaml(size, policy, None))?;
    }
    Ok(())
}

/// Changes one policy, which also takes requests with the idempotency key of that number from now on, and none of another.
///
/// # Errors
/// What the file system says.
pub(super) fn edit(folder: &Path, size: Size, number: u64) -> Result<()> {
    router::write(folder, "policy-000", &policy_yaml(size, 0, Some(number)))
}

pub(super) fn name(cell: usize) -> String {
    format!("cell-{cell:03}")
}

const ROUTER: &str = "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {name: main}
spec:
  listeners: [{name: http, port: 8080}]
";

fn policy_yaml(size: Size, policy: usize, edited: Option<u64>) -> String {
    let mut text = format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: partners-{policy:03}, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: {LISTENER}}}]
  rules:
"
    );
    let first = policy * RULES_A_POLICY;
    for rule in first..size.rules.min(first + RULES_A_POLICY) {
        let matches = format!("{{header: {FIELD}, exact: p{rule:0DIGITS$}}}");
        text += &rule_yaml(&format!("partner-{rule}"), &matches, size, rule);
    }
    if let Some(number) = edited {
        let matches = format!("{{header: idempotency-key, exact: bench-{number:020}}}");
        text += &rule_yaml("edited", &matches, size, 0);
    }
    text
}

/// In two cells, as [`crate::proxy`]'s.
fn rule_yaml(rule: &str, matches: &str, size: Size, place: usize) -> String {
    let [a, b] = [place, place + 1].map(|cell| name(cell % size.cells));
    format!(
        "  - name: {rule}
    matches: [{{all: [{matches}]}}]
    key: {{header: x-transaction-id}}
    groups: [{{cells: [{{name: {a}, weight: 70}}, {{name: {b}, weight: 30}}]}}]
    restart: {{policy: UntilPointOfNoReturn}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_in_some_policy_and_an_edit_adds_one() {
        let size = Size { rules: 250, cells: 10 };
        let rules = |policy, edited| policy_yaml(size, policy, edited).matches("- name: ").count();
        assert_eq!([rules(0, None), rules(1, None), rules(2, None), rules(0, Some(7))], [100, 100, 50, 101]);
        let edited = policy_yaml(size, 0, Some(7));
        assert!(edited.contains("exact: bench-00000000000000000007}"), "{edited}");
        let last = policy_yaml(size, 2, None);
        assert!(last.contains("exact: p000000000249}") && last.contains("cell-009"), "{last}");
        assert!(last.contains("{name: cell-000, weight: 30}"), "the cells begin again: {last}");
    }
}
