//! Planning the index: which condition parts the rules of a node, and which are checked one by one.

use std::collections::{BTreeMap, HashMap};

use super::{Arm, Branch, Check, NONE, Node};
use crate::condition::{Condition, Source, Test};
use crate::table::ranges::Ranges;

/// Up to this many rules are checked one by one.
const FEW: usize = 4;

/// Gives each source its place.
#[derive(Default)]
pub(super) struct Sources {
    pub(super) list: Vec<Source>,
    places: HashMap<Source, u32>,
}

impl Sources {
    pub(super) fn checks(&mut self, conditions: Vec<Condition>) -> Vec<Check> {
        let check = |Condition { source, test }| {
            let source = *self.places.entry(source).or_insert_with_key(|source| {
                self.list.push(source.clone());
                self.list.len() as u32 - 1
            });
            Check { source, test }
        };
        conditions.into_iter().map(check).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Head,
    Body,
}

/// An arm on its way down the tree.
#[derive(Clone, Copy)]
struct Item {
    arm: u32,
    /// Conditions of the part that lie behind, as bits.
    used: u32,
    /// Whether it may still branch to each value of a list (`in`). Once on its way only: lists would multiply.
    may_list: bool,
}

impl Item {
    fn new(arm: u32) -> Self {
        Self { arm, used: 0, may_list: true }
    }
}

/// Plans the tree.
pub(super) struct Planner<'a> {
    arms: &'a [Arm],
    /// How many arms of the listener share a condition.
    shared: HashMap<(Part, &'a Check), u32>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(arms: &'a [Arm]) -> Self {
        let mut shared = HashMap::new();
        for arm in arms {
            for (part, checks) in [(Part::Head, &arm.head), (Part::Body, &arm.body)] {
                for check in checks {
                    *shared.entry((part, check)).or_insert(0) += 1;
                }
            }
        }
        Self { arms, shared }
    }

    pub(super) fn tree(&self) -> Node {
        self.node((0..self.arms.len() as u32).map(Item::new).collect(), Part::Head)
    }

    fn checks(&self, item: Item, part: Part) -> &'a [Check] {
        let arm = &self.arms[item.arm as usize];
        match part {
            Part::Head => &arm.head,
            Part::Body => &arm.body,
        }
    }

    fn node(&self, items: Vec<Item>, part: Part) -> Node {
        let first = items.iter().map(|item| item.arm).min().unwrap_or(NONE);
        let mut node = Node { first, ..Node::default() };
        if items.len() <= FEW {
            node.arms = items.into_iter().map(|item| item.arm).collect();
            node.arms.sort_unstable();
            return node;
        }
        let mut body = Vec::new();
        let mut parted: HashMap<&'a Check, Vec<Item>> = HashMap::new();
        for item in items {
            match self.rarest(item, part) {
                Some((place, check)) => {
                    parted.entry(check).or_default().push(Item { used: item.used | 1 << place, ..item });
                }
                None if part == Part::Head && self.is_spent(item, part) && self.has_body(item) => {
                    body.push(Item { used: 0, ..item });
                }
                None => node.arms.push(item.arm),
            }
        }
        node.arms.sort_unstable();
        if !body.is_empty() {
            node.body = Some(Box::new(self.node(body, Part::Body)));
        }
        node.branches = self.branches(parted, part);
        node
    }

    fn is_spent(&self, item: Item, part: Part) -> bool {
        item.used.count_ones() as usize == self.checks(item, part).len()
    }

    fn has_body(&self, item: Item) -> bool {
        !self.arms[item.arm as usize].body.is_empty()
    }

    /// The condition that fewest arms share, of those that lie ahead; of equals, the one that says most.
    fn rarest(&self, item: Item, part: Part) -> Option<(usize, &'a Check)> {
        let ahead = self.checks(item, part).iter().enumerate().filter(|(place, check)| {
            item.used & (1 << place) == 0 && (item.may_list || !matches!(check.test, Test::In(_)))
        });
        ahead.min_by_key(|(_, check)| {
            let shared = self.shared.get(&(part, *check)).copied().unwrap_or(0);
            (shared, vagueness(&check.test))
        })
    }

    fn branches(&self, parted: HashMap<&'a Check, Vec<Item>>, part: Part) -> Vec<Branch> {
        // Lists first fall apart into their values, which other arms may name alone.
        let mut exact: HashMap<(u32, &'a [u8]), Vec<Item>> = HashMap::new();
        let mut rest = Vec::new();
        for (check, items) in parted {
            match &check.test {
                Test::Exact(value) => exact.entry((check.source, value)).or_default().extend(items),
                Test::In(values) => {
                    for value in values {
                        let listed = items.iter().map(|item| Item { may_list: false, ..*item });
                        exact.entry((check.source, value)).or_default().extend(listed);
                    }
                }
                Test::Range(..) | Test::Prefix(_) | Test::Suffix(_) => rest.push((check, items)),
            }
        }
        let mut branches: BTreeMap<u32, Branch> = BTreeMap::new();
        let mut ranges: BTreeMap<u32, Vec<(u128, u128, Node)>> = BTreeMap::new();
        for ((source, value), items) in exact {
            let node = self.node(items, part);
            branches.entry(source).or_default().exact.insert(value.into(), node);
        }
        for (check, items) in rest {
            let node = self.node(items, part);
            let branch = branches.entry(check.source).or_default();
            match &check.test {
                Test::Prefix(value) => {
                    branch.prefixes.entry(value.len()).or_default().insert(value.as_slice().into(), node);
                }
                Test::Suffix(value) => {
                    branch.suffixes.entry(value.len()).or_default().insert(value.as_slice().into(), node);
                }
                Test::Range(from, to) => ranges.entry(check.source).or_default().push((*from, *to, node)),
                Test::Exact(_) | Test::In(_) => {}
            }
        }
        for (source, ranges) in ranges {
            branches.entry(source).or_default().ranges = Ranges::new(ranges);
        }
        branches.into_iter().map(|(source, branch)| Branch { source, ..branch }).collect()
    }
}

/// Less is better: equality before ranges, long texts before short ones, lists last.
fn vagueness(test: &Test) -> (u8, usize) {
    match test {
        Test::Exact(_) => (0, 0),
        Test::Range(..) => (1, 0),
        Test::Prefix(value) | Test::Suffix(value) => (2, usize::MAX - value.len()),
        Test::In(values) => (3, values.len()),
    }
}
