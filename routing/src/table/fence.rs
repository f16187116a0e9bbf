//! The fence of `owner` rules: while an edit of the weights is on its way, a key that it moves is refused, so that no two
//! routers ever have two cells work for one key. What a router remembers for that is here, purely; who watches policies,
//! and who settles a generation, is not.
//!
//! **What is kept.** Of each policy with `owner` rules, the owners by every generation from some first one on without a
//! gap ([`History`]), and the newest generation that is *settled* (`status.settledGeneration`): each router that is not
//! gone had a table of it or of a newer one, and nothing under way that an older one had sent to an owner.
//!
//! **The rule.** A router whose table has generation c serves a key only if a settled generation P is among those that it
//! remembers and all generations from P to c give the key to the same cell. Else it answers 503, `OwnerMoving`.
//!
//! **Why that is enough.** Let routers r and s serve a key by generations c <= d, and let s hold P for settled. If P <= c,
//! then c is among the generations that s found to agree, so both mean the same cell. If P > c, then r had c in force after
//! P was settled, which the meaning of settled excludes. It takes neither clocks nor the same moment on both; and
//! generations that a router did not see are a gap, from which nothing is concluded until a newer one is settled.
//!
//! **What it leaves open.** Settled leaves out routers that are gone: ended, or silent for longer than the Router's
//! `drainTimeout`. A router that is cut off from the operator and the API server alike, or stopped, for longer than that, and
//! still reached by clients, may serve former owners until it has caught up. A router that starts asks the API server for
//! whole lists, or serves the table of its disk, which may be older than what others have settled since: from disk it
//! refuses the keys of all `owner` rules. The promise is about the keys of one rule (policy and name): which requests a rule
//! matches, other rules, and an API server that went back to a backup are outside it. A Cell that comes, goes or is drained
//! moves no key. Without an operator nobody settles anything: processes that read the same folder are not fenced from
//! each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_crds::RoutingPolicy;
use bulkhead_crds::policy::{CellWeight, RoutingPolicySpec, Source};
use serde::{Deserialize, Serialize};

use super::{GroupCell, RuleId, Table, draft};

/// Unsettled edits of one policy that are remembered; beyond, all keys wait for the last of them.
const MOST_ERAS: usize = 16;

/// Who owned what, as far as some router may still go by it, by `NAMESPACE/NAME` of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct History(BTreeMap<String, Lineage>);

/// Consecutive generations of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Lineage {
    uid: String,
    /// The newest.
    generation: i64,
    settled: Option<i64>,
    /// Oldest first, at least one. Generations without an edit of owners are of the era before.
    eras: Vec<Era>,
}

/// The `owner` rules by name, from that generation on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Era {
    since: i64,
    rules: BTreeMap<String, Owners>,
}

/// What gives each key of a rule to a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Owners {
    key: Option<Source>,
    cells: Vec<CellWeight>,
}

/// What an `owner` rule asks before it serves a key.
#[derive(Clone, Debug, Default)]
pub(crate) enum Fence {
    #[default]
    Open,
    /// The cells by each former generation that counts: all must give the key to the same one.
    Former(Vec<Vec<GroupCell>>),
    /// It is not known who owned which key.
    Closed,
}

impl History {
    /// Takes a policy as it is told now. Whether anything changed.
    pub fn take(&mut self, policy: &RoutingPolicy) -> bool {
        let name = name_of(policy);
        let rules = owners(&policy.spec);
        if rules.is_empty() {
            return self.0.remove(&name).is_some();
        }
        let before = self.0.get(&name);
        let next = Lineage::next(before, policy, &rules);
        let changed = before != Some(&next);
        if changed {
            self.0.insert(name, next);
        }
        changed
    }

    /// Takes a whole list of policies: what is not in it is gone. Whether anything changed.
    pub fn replace(&mut self, policies: &[RoutingPolicy]) -> bool {
        let before = self.0.len();
        let names: Vec<String> = policies.iter().map(name_of).collect();
        self.0.retain(|name, _| names.contains(name));
        let gone = before != self.0.len();
        policies.iter().fold(gone, |changed, policy| self.take(policy) | changed)
    }

    /// A policy is gone.
    pub fn forget(&mut self, namespace: &str, name: &str) -> bool {
        self.0.remove(&format!("{namespace}/{name}")).is_some()
    }

    /// Adds what was remembered before a restart, where it joins what was told since without a gap. Whether anything
    /// changed.
    pub fn recall(&mut self, remembered: Self) -> bool {
        let mut changed = false;
        for (name, earlier) in remembered.0 {
            match self.0.get_mut(&name) {
                Some(lineage) => changed |= lineage.follow(earlier),
                None => {
                    self.0.insert(name, earlier);
                    changed = true;
                }
            }
        }
        changed
    }

    fn fence(&self, id: &RuleId, table: &Table) -> Fence {
        let (policy, rule) = id.parts();
        self.0.get(policy).map_or(Fence::Closed, |lineage| lineage.fence(rule, table))
    }
}

impl Lineage {
    fn next(before: Option<&Self>, policy: &RoutingPolicy, rules: &BTreeMap<String, Owners>) -> Self {
        let meta = &policy.metadata;
        let uid = meta.uid.clone().unwrap_or_default();
        let generation = meta.generation.unwrap_or_default();
        let settled = policy.status.as_ref().and_then(|status| status.settled_generation);
        let new = || Era { since: generation, rules: rules.clone() };
        let mut lineage = match before.filter(|before| before.uid == uid) {
            Some(before) if before.generation == generation => before.clone(),
            Some(before) if before.generation + 1 == generation => {
                let mut lineage = before.clone();
                if lineage.eras.last().is_none_or(|last| last.rules != *rules) {
                    lineage.eras.push(new());
                }
                lineage
            }
            _ => Self { uid, generation, settled: None, eras: vec![new()] },
        };
        lineage.generation = generation;
        lineage.settled = lineage.settled.max(settled);
        lineage.prune();
        if lineage.eras.len() > MOST_ERAS {
            lineage.eras = vec![new()];
        }
        lineage
    }

    /// Forgets eras that ended before what is settled.
    fn prune(&mut self) {
        let Some(settled) = self.settled else { return };
        let ended = self.eras.iter().skip(1).take_while(|next| next.since <= settled).count();
        self.eras.drain(..ended);
    }

    fn follow(&mut self, earlier: Self) -> bool {
        let Some(first) = self.eras.first().map(|era| era.since) else { return false };
        let joins = earlier.uid == self.uid && (first - 1..=self.generation).contains(&earlier.generation);
        if !joins {
            return false;
        }
        let before = self.clone();
        self.settled = self.settled.max(earlier.settled);
        let mut eras: Vec<Era> = earlier.eras.into_iter().filter(|era| era.since < first).collect();
        if eras.last().is_some_and(|last| self.eras.first().is_some_and(|first| first.rules == last.rules)) {
            self.eras.remove(0);
        }
        eras.append(&mut self.eras);
        self.eras = eras;
        self.prune();
        *self != before
    }

    fn fence(&self, rule: &str, table: &Table) -> Fence {
        let Some((now, former)) = self.eras.split_last() else { return Fence::Closed };
        let first = former.first().unwrap_or(now).since;
        let (Some(owners), true) =
            (now.rules.get(rule), self.settled.is_some_and(|settled| settled >= first))
        else {
            return Fence::Closed;
        };
        let mut cells = Vec::new();
        for era in former {
            match era.rules.get(rule) {
                Some(before) if before.key == owners.key => {
                    if before.cells != owners.cells {
                        cells.push(draft::read_cells(&before.cells, table, &mut Vec::new(), &mut Vec::new()));
                    }
                }
                // Another kind of key, or no owner at all: where a request went then does not follow from its key.
                _ => return Fence::Closed,
            }
        }
        if cells.is_empty() { Fence::Open } else { Fence::Former(cells) }
    }
}

impl Table {
    /// Has its `owner` rules refuse the keys that some other router may give to another cell. A table is not fenced by
    /// itself: whoever explains or checks one decides for nobody.
    pub fn fence(&mut self, history: &History) {
        let fences = self
            .rules
            .iter()
            .map(|rule| if rule.owner { history.fence(&rule.id, self) } else { Fence::Open });
        let fences: Vec<Fence> = fences.collect();
        for (rule, fence) in self.rules.iter_mut().zip(fences) {
            if rule.owner {
                Arc::make_mut(rule).fence = fence;
            }
        }
    }
}

fn name_of(policy: &RoutingPolicy) -> String {
    let meta = &policy.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The `owner` rules of a policy. Of two with one name the first serves.
fn owners(spec: &RoutingPolicySpec) -> BTreeMap<String, Owners> {
    let mut owners = BTreeMap::new();
    for rule in spec.rules.iter().filter(|rule| rule.owner) {
        let cells = rule.groups.first().map(|group| group.cells.clone()).unwrap_or_default();
        owners.entry(rule.name.clone()).or_insert(Owners { key: rule.key.clone(), cells });
    }
    owners
}
