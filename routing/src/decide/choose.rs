//! Choosing group and cell of a rule by health, weights and the ramp.

use std::cmp::Ordering;

use bulkhead_protocol::Reason;
use smallvec::SmallVec;

use super::hash::score;
use super::{CellStates, CellView, Choice, Doubt, Key, Refusal};
use crate::health::ramp;
use crate::table::{CellIndex, Fence, GroupCell, Rule};

/// Cells whose ages differ by no more than this came up together, and ramp as one: else the older by a moment would
/// take everything at each step.
const TOGETHER_MS: u64 = 2_000;

/// The cell for that key. `tried` are those that this transaction was in already.
///
/// # Errors
/// `AllDrained`, `NoHealthyCell`, `OwnerUnavailable` or `OwnerMoving`, with the rule.
pub fn choose(
    rule: &Rule,
    key: Key,
    states: &impl CellStates,
    tried: &[CellIndex],
) -> Result<Choice, Refusal> {
    let scene = Scene::new(rule, states);
    if rule.owner {
        return scene.owner(key, tried);
    }
    let best = |group, warm| scene.look(group).best(key, tried, warm);
    let groups = 0..rule.groups.len();
    let looks = groups.clone().map(|group| scene.look(group));
    (looks.filter(Look::is_healthy).find_map(|look| look.best(key, tried, true)))
        .or_else(|| groups.clone().find_map(|group| best(group, true)))
        // Nothing but cells that are held down: better these than an error.
        .or_else(|| groups.clone().find_map(|group| best(group, false)))
        // The transaction was in every other: better those that are suspected than an error.
        .or_else(|| {
            let cells = scene.without_doubts()?;
            let best = |group, warm| cells.look(group).best(key, tried, warm);
            let warm = groups.clone().find_map(|group| best(group, true));
            warm.or_else(|| groups.clone().find_map(|group| best(group, false)))
        })
        .ok_or_else(|| scene.refusal(tried))
}

/// The share of each cell of the rule in parts per million, in the order of cells; what no cell takes is missing from the sum.
pub fn shares(rule: &Rule, states: &impl CellStates) -> Vec<(CellIndex, u32)> {
    Scene::new(rule, states).shares()
}

/// Percent of its weight that the rule's ramp gives each of its cells now, whatever its siblings get: 0 for one that evidence
/// keeps out here.
pub fn ramps(rule: &Rule, states: &impl CellStates) -> Vec<(CellIndex, u32)> {
    let scene = Scene::new(rule, states);
    let percent = |view: CellView| match view.doubt {
        Some(Doubt { age_ms: None, .. }) => 0,
        Some(_) | None => ramp(&rule.failback, view.ramp_age_ms),
    };
    let cells = scene.looks().flat_map(|look| look.cells);
    cells.filter_map(|(cell, _, view)| Some((cell.cell?, percent(view?)))).collect()
}

/// A cell of a group with its policy weight after shifts and, where it exists, its state.
pub(crate) type Named<'a> = (&'a GroupCell, u32, Option<CellView>);

/// A rule at one moment.
pub(crate) struct Scene<'a, S> {
    pub(crate) rule: &'a Rule,
    states: &'a S,
    shifted: Option<&'a [Vec<u32>]>,
    /// Whether doubts have a part: under `owner` they have none.
    pub(super) heeds_doubts: bool,
}

/// Health of one group, in policy weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupHealth {
    /// Of cells that are not drained.
    pub(crate) wanted: u64,
    /// Of these, of cells that are in and not held down.
    pub(crate) is_in: u64,
}

impl<'a, S: CellStates> Scene<'a, S> {
    pub(crate) fn new(rule: &'a Rule, states: &'a S) -> Self {
        let shifted = if rule.shifts.is_empty() { None } else { rule.shifted_weights(states.now_unix_ms()) };
        Self { rule, states, shifted, heeds_doubts: !rule.owner && states.any_doubt() }
    }

    /// The same, as if nothing were doubted. None where nothing is.
    fn without_doubts(&self) -> Option<Self> {
        self.heeds_doubts.then_some(Self { heeds_doubts: false, ..*self })
    }

    /// The group as this rule takes it.
    pub(crate) fn look(&self, group: usize) -> Look<'a> {
        let bound = self.bound(group);
        let cells: SmallVec<_> = self
            .named(group)
            .map(move |(cell, weight, view)| {
                let heeded = view.map(|view| match bound {
                    Some(bound) => self.heed(cell, weight, view, bound),
                    None => CellView { doubt: None, ..view },
                });
                (cell, weight, heeded)
            })
            .collect();
        let oldest = oldest(cells.iter().copied());
        Look { rule: self.rule, group, cells, oldest }
    }

    fn looks(&self) -> impl Iterator<Item = Look<'a>> + '_ {
        (0..self.rule.groups.len()).map(|group| self.look(group))
    }

    /// Each cell of the group as it is in itself.
    pub(crate) fn named(&self, group: usize) -> impl Iterator<Item = Named<'a>> + '_ {
        let shifted = self.shifted.and_then(|weights| weights.get(group));
        self.rule.groups[group].cells.iter().enumerate().map(move |(place, cell)| {
            let weight = shifted.and_then(|weights| weights.get(place)).copied().unwrap_or(cell.weight);
            (cell, weight, cell.cell.map(|index| self.states.state(index)))
        })
    }

    /// Policy weights alone choose, over every cell named, existing or not: health must never move a key.
    fn owner(&self, key: Key, tried: &[CellIndex]) -> Result<Choice, Refusal> {
        let cells = self.look(0).cells;
        let named = cells.into_iter().filter(|(_, weight, _)| *weight > 0);
        let scored = named.map(|(cell, weight, view)| {
            (score(key, cell.digest, u64::from(weight)), cell, (&cell.name, cell.cell, view))
        });
        let Some((name, index, view)) = least(scored) else { return Err(self.refusal(tried)) };
        self.check_fence(key, name)?;
        let why = match (index, view) {
            (Some(cell), Some(view)) if view.is_usable() && !tried.contains(&cell) => {
                return Ok(Choice { cell, group: 0 });
            }
            (Some(_), Some(view)) if view.is_drained() => "is drained",
            (Some(_), Some(view)) if view.is_in => "failed this transaction",
            (Some(_), _) => "is out",
            (None, _) => "does not exist",
        };
        let detail = format!("rule {}: cell {name} owns this key and {why}", self.rule.id);
        Err(Refusal::new(Reason::OwnerUnavailable, detail))
    }

    /// Whether no other router can give the key to another cell than this; see [`crate::table::History`].
    fn check_fence(&self, key: Key, owner: &str) -> Result<(), Refusal> {
        let id = &self.rule.id;
        let detail = match &self.rule.fence {
            Fence::Open => return Ok(()),
            Fence::Closed => format!(
                "rule {id}: who owned this key before cell {owner} is not known here; it is served once every router \
                 is known to have this generation of the policy (status.settledGeneration)"
            ),
            Fence::Former(generations) => {
                let mut former = generations.iter().filter_map(|cells| former_owner(cells, key));
                let Some(other) = former.find(|former| *former != owner) else { return Ok(()) };
                format!(
                    "rule {id}: this key moves from cell {other} to cell {owner}; it is served once every router is \
                     known to have this generation of the policy (status.settledGeneration)"
                )
            }
        };
        Err(Refusal::new(Reason::OwnerMoving, detail))
    }

    fn refusal(&self, tried: &[CellIndex]) -> Refusal {
        let id = &self.rule.id;
        let all = || self.looks().flat_map(|look| look.cells);
        let wanted = |(_, weight, view): Named<'_>| weight > 0 && view.is_some_and(|view| !view.is_drained());
        if all().all(|(_, _, view)| view.is_none()) {
            return Refusal::new(Reason::NoHealthyCell, format!("rule {id}: none of its cells exists"));
        }
        if !all().any(wanted) {
            let detail = format!("rule {id}: every cell has weight 0, is drained or is disabled");
            return Refusal::new(Reason::AllDrained, detail);
        }
        let detail = if tried.is_empty() {
            format!("rule {id}: every cell that is not drained is out")
        } else {
            format!("rule {id}: no cell is left after {} tried", tried.len())
        };
        Refusal::new(Reason::NoHealthyCell, detail)
    }

    fn shares(&self) -> Vec<(CellIndex, u32)> {
        let mut weights: Vec<(CellIndex, u64)> = Vec::new();
        let mut total = 0;
        if self.rule.owner {
            for (cell, weight, view) in self.look(0).cells {
                total += u64::from(weight);
                let usable = view.is_some_and(|view| view.is_usable());
                weights.extend(cell.cell.map(|index| (index, if usable { u64::from(weight) } else { 0 })));
            }
        } else {
            let looks: Vec<Look<'_>> = self.looks().collect();
            let serves = |look: &&Look<'_>, warm| look.weights(warm).next().is_some();
            let chosen = (looks.iter().find(|look| look.is_healthy()).map(|look| (look, true)))
                .or_else(|| looks.iter().find(|look| serves(look, true)).map(|look| (look, true)))
                .or_else(|| looks.iter().find(|look| serves(look, false)).map(|look| (look, false)));
            let all = self.rule.groups.iter().flat_map(|group| &group.cells);
            weights.extend(all.filter_map(|cell| cell.cell).map(|index| (index, 0)));
            for (_, index, weight) in chosen.into_iter().flat_map(|(look, warm)| look.weights(warm)) {
                total += weight;
                weights.push((index, weight));
            }
        }
        in_parts_per_million(weights, total)
    }
}

/// One group of a rule at one moment. Each of its cells is looked at once.
pub(crate) struct Look<'a> {
    rule: &'a Rule,
    group: usize,
    /// A doubt is left in a state only where it has a part.
    pub(crate) cells: SmallVec<[Named<'a>; 4]>,
    /// Age of the cell that has been in longest; the others ramp beside it.
    oldest: u64,
}

impl<'a> Look<'a> {
    /// Percent of its weight that the cell gets.
    pub(crate) fn ramp(&self, view: CellView) -> u32 {
        ramp_beside(self.rule, view, self.oldest)
    }

    pub(crate) fn health(&self) -> GroupHealth {
        let mut health = GroupHealth::default();
        for (_, weight, view) in &self.cells {
            let Some(view) = view.filter(|view| !view.is_drained()) else { continue };
            health.wanted += u64::from(*weight);
            if view.is_usable() && self.ramp(view) > 0 {
                health.is_in += u64::from(*weight);
            }
        }
        health
    }

    pub(crate) fn is_healthy(&self) -> bool {
        let GroupHealth { wanted, is_in } = self.health();
        let least = u64::from(self.rule.groups[self.group].min_healthy_percent);
        is_in > 0 && is_in * 100 >= least * wanted
    }

    /// Each usable cell with its weight in the rendezvous; with `warm`, after the ramp.
    pub(crate) fn weights(&self, warm: bool) -> impl Iterator<Item = (&'a GroupCell, CellIndex, u64)> + '_ {
        self.cells.iter().filter_map(move |(cell, weight, view)| {
            let view = view.filter(CellView::is_usable)?;
            let percent = if warm { self.ramp(view) } else { 100 };
            let product = u64::from(*weight) * u64::from(view.weight) * u64::from(percent);
            (product > 0).then_some((*cell, cell.cell?, product))
        })
    }

    fn best(&self, key: Key, tried: &[CellIndex], warm: bool) -> Option<Choice> {
        let candidates = self.weights(warm).filter(|(_, index, _)| !tried.contains(index));
        let scored = candidates.map(|(cell, index, weight)| (score(key, cell.digest, weight), cell, index));
        least(scored).map(|cell| Choice { cell, group: self.group })
    }
}

/// Age of the cell of these that has been in longest.
pub(super) fn oldest<'a>(cells: impl Iterator<Item = Named<'a>>) -> u64 {
    let usable = cells.filter(|(_, weight, _)| *weight > 0).filter_map(|(_, _, view)| view);
    usable.filter(CellView::is_usable).map(|view| view.ramp_age_ms).max().unwrap_or(0)
}

/// Percent of its weight that a cell gets beside one that has been in for so long.
pub(super) fn ramp_beside(rule: &Rule, view: CellView, oldest: u64) -> u32 {
    let age = if oldest - view.ramp_age_ms.min(oldest) <= TOGETHER_MS { oldest } else { view.ramp_age_ms };
    ramp(&rule.failback, age)
}

fn in_parts_per_million(mut weights: Vec<(CellIndex, u64)>, total: u64) -> Vec<(CellIndex, u32)> {
    weights.sort_unstable();
    // The largest of a cell's entries is the last.
    weights.reverse();
    weights.dedup_by_key(|(index, _)| *index);
    weights.reverse();
    let (mut sum, mut given) = (0_u64, 0_u64);
    let parts = weights.into_iter().map(|(index, weight)| {
        sum += weight;
        let upto = (u128::from(sum) * 1_000_000 / u128::from(total.max(1))) as u64;
        let part = upto - given;
        given = upto;
        (index, part as u32)
    });
    parts.collect()
}

/// The owner by weights that are no longer the rule's; none where all of them are 0.
fn former_owner(cells: &[GroupCell], key: Key) -> Option<&str> {
    let named = cells.iter().filter(|cell| cell.weight > 0);
    least(named.map(|cell| (score(key, cell.digest, u64::from(cell.weight)), cell, &*cell.name)))
}

/// The item with the least score; of equals, the one whose name sorts first.
fn least<'a, T>(scored: impl Iterator<Item = (f64, &'a GroupCell, T)>) -> Option<T> {
    let before = |a: &(f64, &GroupCell, T), b: &(f64, &GroupCell, T)| {
        a.0.total_cmp(&b.0).then_with(|| a.1.name.cmp(&b.1.name)) == Ordering::Less
    };
    scored.reduce(|best, next| if before(&next, &best) { next } else { best }).map(|(_, _, item)| item)
}
