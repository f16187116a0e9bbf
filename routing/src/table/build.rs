//! Making a table from whole lists of objects. Nothing here fails: an object that is wrong gets a verdict and the
//! rest is served.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bulkhead_crds::cell::CellState;
use bulkhead_crds::policy::ParentRef;
use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};

use super::destination;
use super::draft::{self, Draft};
use super::index::Index;
use super::verdict::Complaints;
use super::{
    CellIndex, DestinationVerdict, Kin, Outcome, ParentVerdict, RuleId, ShiftVerdict, Table, TableCell,
    TableListener,
};
use super::{shift, siblings};
use crate::condition::Condition;

/// Whole lists, as they are at one moment, in any order.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// The Router whose listeners the table is for. Policies attached to others are left alone.
    pub router: &'a Router,
    pub cells: Vec<&'a Cell>,
    pub policies: Vec<&'a RoutingPolicy>,
    pub shifts: Vec<&'a TrafficShift>,
    pub destinations: Vec<&'a Destination>,
}

/// A table, and what became of each object on the way.
#[derive(Debug, Default)]
pub struct Build {
    pub table: Table,
    /// One for each reference of a policy to this Router, by namespace, name and reference.
    pub verdicts: Vec<ParentVerdict>,
    pub shifts: Vec<ShiftVerdict>,
    pub destinations: Vec<DestinationVerdict>,
}

/// Builds the table. The same lists give the same table in whatever order they come.
pub fn build(inputs: &Inputs<'_>) -> Build {
    let mut table = Table {
        router: inputs.router.metadata.name.clone().unwrap_or_default(),
        cell_tls: inputs.router.spec.cell_tls.clone(),
        listeners: inputs.router.spec.listeners.iter().map(listener).collect(),
        evidence: inputs.router.spec.evidence,
        ..Table::default()
    };
    let destinations = destination::add(&mut table, &inputs.destinations);
    add_cells(&mut table, &inputs.cells);
    let alternatives = vec![Vec::new(); table.listeners.len()];
    let mut builder = Builder { table, alternatives, taken: HashMap::new(), verdicts: Vec::new() };
    for policy in in_order(&inputs.policies) {
        builder.add_policy(inputs.router, policy);
    }
    let Builder { mut table, alternatives, taken, mut verdicts } = builder;
    drop(taken);
    verdicts.sort_by(|a, b| (&a.namespace, &a.name, &a.parent).cmp(&(&b.namespace, &b.name, &b.parent)));
    for (listener, alternatives) in table.listeners.iter_mut().zip(alternatives) {
        let owned = |(rule, conditions)| (rule, Arc::unwrap_or_clone(conditions));
        listener.index = Arc::new(Index::new(alternatives.into_iter().map(owned).collect()));
    }
    siblings::relate(&mut table);
    let shifts = shift::apply(&mut table, &inputs.policies, &inputs.shifts);
    Build { table, verdicts, shifts, destinations }
}

fn listener(spec: &bulkhead_crds::Listener) -> TableListener {
    TableListener {
        name: spec.name.clone(),
        port: spec.port,
        explain: spec.explain,
        tls: spec.tls.clone(),
        proxy_protocol: spec.proxy_protocol.clone(),
        forwarded: spec.forwarded.clone(),
        idempotency: spec.idempotency.clone(),
        limits: spec.limits.clone(),
        index: Arc::default(),
        buffer_limit: 0,
    }
}

fn add_cells(table: &mut Table, cells: &[&Cell]) {
    let mut sorted = cells.to_vec();
    sorted.sort_by_key(|cell| cell.name());
    sorted.dedup_by_key(|cell| cell.name());
    for cell in sorted {
        let deleted = cell.metadata.deletion_timestamp.is_some();
        let state = match cell.spec.state {
            CellState::Active if deleted => CellState::Drained,
            state => state,
        };
        let name: Arc<str> = cell.name().into();
        let mut destinations = cell.spec.destinations.clone();
        destinations.sort();
        table.cell_places.insert(Arc::clone(&name), CellIndex(table.cells.len() as u32));
        table.cells.push(TableCell {
            name,
            spec_weight: cell.spec.weight.min(100),
            state,
            capacity: cell.spec.capacity.clone(),
            endpoints: cell.spec.endpoints.clone(),
            shifts: Vec::new(),
            destinations,
            kin: Kin::default(),
        });
    }
}

/// Precedence first, then the older, then namespace and name. An object without a time, from a file, counts as youngest.
fn in_order<'a>(policies: &[&'a RoutingPolicy]) -> Vec<&'a RoutingPolicy> {
    let mut sorted = policies.to_vec();
    sorted.sort_by_key(|policy| {
        let created = policy.metadata.creation_timestamp.as_ref().map(|time| time.0.as_millisecond());
        (Reverse(policy.spec.precedence), created.is_none(), created, names(policy))
    });
    sorted.dedup_by_key(|policy| names(policy));
    sorted
}

fn names(policy: &RoutingPolicy) -> (&str, &str) {
    let metadata = &policy.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

struct Builder {
    table: Table,
    /// For each listener, in order, the matches with the place of their rule.
    alternatives: Vec<Vec<(u32, Arc<Vec<Condition>>)>>,
    /// Which rule has a match already, by place of the listener and precedence.
    taken: HashMap<(usize, i32, Arc<Vec<Condition>>), RuleId>,
    verdicts: Vec<ParentVerdict>,
}

/// What is to be said of a policy, apart from conflicts, which each listener has its own of.
#[derive(Clone, Default)]
struct Findings {
    accepted: Complaints,
    resolved: Complaints,
}

impl Builder {
    fn add_policy(&mut self, router: &Router, policy: &RoutingPolicy) {
        let ours = |parent: &&ParentRef| parent.router == self.table.router;
        let mut parents: Vec<&ParentRef> = policy.spec.parent_refs.iter().filter(ours).collect();
        parents.sort();
        parents.dedup();
        if parents.is_empty() {
            return;
        }
        let (namespace, _) = names(policy);
        let mut findings = Findings::default();
        let drafts = self.read_rules(policy, &mut findings);
        let mut attached = Vec::new();
        for parent in parents {
            let mut said = findings.clone();
            match self.attachment(router, namespace, parent) {
                Ok(listener) => attached.push((listener, parent, said)),
                Err(refusal) => {
                    said.accepted = Complaints::default();
                    self.conclude(policy, parent, said, refusal);
                }
            }
        }
        for draft in drafts {
            self.add_rule(policy.spec.precedence, draft, &mut attached);
        }
        for (_, parent, said) in attached {
            self.conclude(policy, parent, said, Outcome::accepted());
        }
    }

    fn read_rules(&self, policy: &RoutingPolicy, findings: &mut Findings) -> Vec<Draft> {
        let (namespace, name) = names(policy);
        let mut seen = HashSet::new();
        let mut drafts = Vec::with_capacity(policy.spec.rules.len());
        for rule in &policy.spec.rules {
            let id = RuleId::new(namespace, name, &rule.name);
            let read = if seen.insert(rule.name.as_str()) {
                draft::read(id, rule, &self.table)
            } else {
                Err("another rule of the policy has its name; give it one of its own".to_owned())
            };
            let draft = match read {
                Ok(draft) => draft,
                Err(error) => {
                    let sentence = format!("rule {:?} is not served: {error}", rule.name);
                    findings.accepted.add("InvalidRule", &sentence);
                    continue;
                }
            };
            for cell in &draft.missing {
                let sentence = format!("rule {:?} names cell {cell:?}, which does not exist", rule.name);
                findings.resolved.add("CellNotFound", &sentence);
            }
            for cell in &draft.repeated {
                let sentence = format!(
                    "rule {:?} names cell {cell:?} twice in one group, and the first counts; remove the other",
                    rule.name
                );
                findings.resolved.add("CellNamedTwice", &sentence);
            }
            if let Some((cell, destination)) = &draft.unsafe_restart {
                let sentence = format!(
                    "rule {:?} is served with restart.policy SafeOnly: cell {cell:?} may open tunnels to Destination {destination:?}, whose effects no router can fence; set its pointOfNoReturn to false if it has none, or take it from the cell's destinations",
                    rule.name
                );
                findings.resolved.add("UnsafeRestart", &sentence);
            }
            drafts.push(draft);
        }
        drafts
    }

    fn attachment(&self, router: &Router, namespace: &str, parent: &ParentRef) -> Result<usize, Outcome> {
        let allowed = &router.spec.allowed_namespaces;
        if !allowed.is_empty() && !allowed.iter().any(|one| one == namespace) {
            let message = format!(
                "Router {:?} takes no policies from namespace {namespace:?}; add it to allowedNamespaces",
                parent.router
            );
            return Err(Outcome::refused("NamespaceNotAllowed", message));
        }
        self.table.listeners.iter().position(|listener| listener.name == parent.listener).ok_or_else(|| {
            let names: Vec<&str> =
                self.table.listeners.iter().map(|listener| listener.name.as_str()).collect();
            let message = format!(
                "Router {:?} has no listener {:?}; it has {}",
                parent.router,
                parent.listener,
                names.join(", ")
            );
            Outcome::refused("ListenerNotFound", message)
        })
    }

    /// Adds the rule to each listener that it is attached to, without the matches that an earlier rule has there.
    fn add_rule(&mut self, precedence: i32, draft: Draft, attached: &mut [(usize, &ParentRef, Findings)]) {
        let Draft { rule, arms, .. } = draft;
        let arms: Vec<_> = arms.into_iter().map(Arc::new).collect();
        let place = self.table.rules.len() as u32;
        let mut serves = false;
        for (listener, _, said) in attached {
            for conditions in &arms {
                let taken = (*listener, precedence, Arc::clone(conditions));
                if let Some(other) = self.taken.get(&taken) {
                    let sentence = format!(
                        "rule {} has the same match as {other}, which is older or comes first and serves on; change the match or the precedence",
                        rule.id
                    );
                    said.accepted.add("Conflict", &sentence);
                    continue;
                }
                self.taken.insert(taken, rule.id.clone());
                let target = &mut self.table.listeners[*listener];
                self.alternatives[*listener].push((place, Arc::clone(conditions)));
                target.buffer_limit = target.buffer_limit.max(rule.restart.buffer_limit);
                serves = true;
            }
        }
        if serves {
            self.table.rules.push(Arc::new(super::Rule { place, ..rule }));
        }
    }

    fn conclude(&mut self, policy: &RoutingPolicy, parent: &ParentRef, said: Findings, accepted: Outcome) {
        let (namespace, name) = names(policy);
        self.verdicts.push(ParentVerdict {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            parent: parent.clone(),
            accepted: said.accepted.into_outcome(accepted),
            resolved_refs: said.resolved.into_outcome(Outcome::resolved()),
        });
    }
}
