//! The index of a listener's rules: it prunes by the conditions of which there are most values, so that a request meets
//! a handful of rules, however many there are. What is left is checked whole; the index only ever saves work.
//!
//! It is a tree. A node parts its rules by one condition each, the one that fewest rules of the listener share: equality
//! by hash map, prefixes and suffixes by a hash map for each length, ranges by an interval tree. Conditions on the head
//! come before those on the body, so that a body is read only where a rule whose head matches needs it.

mod plan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::ranges::Ranges;
use crate::condition::{Condition, Source, Test, number};
use crate::json::Pointers;
use plan::{Planner, Sources};

/// No rule.
pub(crate) const NONE: u32 = u32::MAX;

/// One alternative of a rule's `matches`, in the order in which the listener tries them.
#[derive(Debug)]
pub(crate) struct Arm {
    /// Place in the table.
    pub(crate) rule: u32,
    head: Vec<Check>,
    body: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Check {
    /// Place among the index's sources: those of the head, or pointers.
    source: u32,
    test: Test,
}

/// Values of sources, by their place.
pub(crate) type Values<'r> = [Option<Cow<'r, [u8]>>];

#[derive(Debug, Default)]
pub(crate) struct Index {
    arms: Vec<Arm>,
    /// Sources in the head; their values are read once for each request.
    pub(crate) head: Vec<Source>,
    pub(crate) pointers: Pointers,
    root: Node,
}

#[derive(Debug)]
struct Node {
    /// The first arm below.
    first: u32,
    /// Checked one by one, in order.
    arms: Vec<u32>,
    branches: Vec<Branch>,
    /// Arms of which only conditions on the body are left.
    body: Option<Box<Node>>,
}

/// The arms of a node that look at one source.
#[derive(Debug, Default)]
struct Branch {
    source: u32,
    exact: HashMap<Box<[u8]>, Node>,
    /// By length.
    prefixes: BTreeMap<usize, HashMap<Box<[u8]>, Node>>,
    suffixes: BTreeMap<usize, HashMap<Box<[u8]>, Node>>,
    ranges: Ranges<Node>,
}

/// What the head of a request leaves open.
#[derive(Debug)]
pub(crate) struct Open<'i> {
    /// The first arm that needs no more than the head, or [`NONE`].
    pub(crate) best: u32,
    arms: Vec<u32>,
    nodes: Vec<&'i Node>,
}

impl Open<'_> {
    /// Whether an arm before the best depends on the body.
    pub(crate) fn needs_body(&self) -> bool {
        self.arms.iter().any(|arm| *arm < self.best) || self.nodes.iter().any(|node| node.first < self.best)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self { first: NONE, arms: Vec::new(), branches: Vec::new(), body: None }
    }
}

impl Index {
    /// Indexes alternatives, each with the place of its rule, in the order in which they are tried.
    pub(crate) fn new(alternatives: Vec<(u32, Vec<Condition>)>) -> Self {
        let (mut head, mut pointers) = (Sources::default(), Sources::default());
        let arms: Vec<Arm> = alternatives
            .into_iter()
            .map(|(rule, conditions)| {
                let (body, first) = conditions.into_iter().partition(|condition| condition.source.is_body());
                Arm { rule, head: head.checks(first), body: pointers.checks(body) }
            })
            .collect();
        let pointers = pointers.list.iter().filter_map(|source| match source {
            Source::Pointer(pointer) => Some(pointer.as_str()),
            Source::Method | Source::Path | Source::Host | Source::Header(_) | Source::Query(_) => None,
        });
        let pointers = Pointers::new(pointers);
        let root = Planner::new(&arms).tree();
        Self { arms, head: head.list, pointers, root }
    }

    pub(crate) fn arm(&self, arm: u32) -> Option<&Arm> {
        self.arms.get(arm as usize)
    }

    /// What the head decides, and what it leaves open.
    pub(crate) fn by_head(&self, values: &Values<'_>) -> Open<'_> {
        let mut open = Open { best: NONE, arms: Vec::new(), nodes: Vec::new() };
        self.walk_head(&self.root, values, &mut open);
        open
    }

    fn walk_head<'i>(&'i self, node: &'i Node, values: &Values<'_>, open: &mut Open<'i>) {
        if node.first >= open.best {
            return;
        }
        for arm in &node.arms {
            if *arm >= open.best {
                break;
            }
            let Some(checks) = self.arm(*arm) else { continue };
            if !hold(&checks.head, values) {
                continue;
            }
            if checks.body.is_empty() {
                open.best = *arm;
            } else {
                open.arms.push(*arm);
            }
        }
        open.nodes.extend(node.body.as_deref());
        for branch in &node.branches {
            branch.visit(values, &mut |node| self.walk_head(node, values, open));
        }
    }

    /// The first arm that matches, or [`NONE`].
    pub(crate) fn by_body(&self, open: &Open<'_>, values: &Values<'_>) -> u32 {
        let mut best = open.best;
        for arm in &open.arms {
            self.try_body(*arm, values, &mut best);
        }
        for node in &open.nodes {
            self.walk_body(node, values, &mut best);
        }
        best
    }

    fn walk_body(&self, node: &Node, values: &Values<'_>, best: &mut u32) {
        if node.first >= *best {
            return;
        }
        for arm in &node.arms {
            self.try_body(*arm, values, best);
        }
        for branch in &node.branches {
            branch.visit(values, &mut |node| self.walk_body(node, values, best));
        }
    }

    fn try_body(&self, arm: u32, values: &Values<'_>, best: &mut u32) {
        if arm < *best && self.arm(arm).is_some_and(|checks| hold(&checks.body, values)) {
            *best = arm;
        }
    }
}

fn hold(checks: &[Check], values: &Values<'_>) -> bool {
    #[cfg(test)]
    tests::CHECKED.with(|count| count.set(count.get() + 1));
    checks.iter().all(|check| check.test.holds(values[check.source as usize].as_deref()))
}

impl Branch {
    fn visit<'i>(&'i self, values: &Values<'_>, then: &mut impl FnMut(&'i Node)) {
        let Some(value) = values[self.source as usize].as_deref() else { return };
        if let Some(node) = self.exact.get(value) {
            then(node);
        }
        for (length, prefixes) in self.prefixes.range(..=value.len()) {
            if let Some(node) = prefixes.get(&value[..*length]) {
                then(node);
            }
        }
        for (length, suffixes) in self.suffixes.range(..=value.len()) {
            if let Some(node) = suffixes.get(&value[value.len() - length..]) {
                then(node);
            }
        }
        if let Some(number) = number(value).filter(|_| !self.ranges.is_empty()) {
            self.ranges.visit(number, then);
        }
    }
}
