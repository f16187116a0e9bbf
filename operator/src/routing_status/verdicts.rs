//! What the tables of all Routers make of policies and shifts: judged by the very code that the routers run, and only when
//! something that a table is built from has changed.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use bulkhead_crds::RoutingPolicy;
use bulkhead_routing::table::{
    DestinationVerdict, Inputs, ParentVerdict, ShiftVerdict, build, unknown_routers,
};
use jiff::Timestamp;
use kube::ResourceExt;

use super::{World, drained, shifts};

/// What the tables make of the objects.
#[derive(Default)]
pub(super) struct Verdicts {
    /// By namespace and name.
    pub policies: HashMap<(String, String), Vec<ParentVerdict>>,
    pub shifts: HashMap<String, ShiftVerdict>,
    /// The same from every Router, since it is about the Destination alone.
    pub destinations: HashMap<String, DestinationVerdict>,
    /// `NAMESPACE/POLICY/RULE` of each rule that nobody is left to serve.
    pub drained: HashSet<String>,
}

/// Verdicts, and what they were made from: judging is the dearest part, and answers of routers change none.
#[derive(Default)]
pub(super) struct Judged {
    made_from: u64,
    pub verdicts: Verdicts,
}

impl Judged {
    pub(super) fn renew(&mut self, world: &World, now: Timestamp) {
        let made_from = fingerprint(world, now);
        if self.made_from != made_from {
            self.made_from = made_from;
            self.verdicts = judge(world, now);
        }
    }
}

/// Changes with every object that a table is built from and with the end of a shift, and with nothing that is only status.
fn fingerprint(world: &World, now: Timestamp) -> u64 {
    fn add<K: ResourceExt>(objects: &[K], hasher: &mut DefaultHasher) {
        for object in objects {
            let meta = object.meta();
            (&meta.uid, meta.generation, meta.deletion_timestamp.is_some()).hash(hasher);
        }
        objects.len().hash(hasher);
    }
    let mut hasher = DefaultHasher::new();
    add(&world.cells, &mut hasher);
    add(&world.routers, &mut hasher);
    add(&world.policies, &mut hasher);
    add(&world.shifts, &mut hasher);
    add(&world.destinations, &mut hasher);
    world.shifts.iter().filter(|shift| shifts::has_ended(shift, now)).count().hash(&mut hasher);
    hasher.finish()
}

fn judge(world: &World, now: Timestamp) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let names: Vec<String> = world.routers.iter().map(ResourceExt::name_any).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let policies: Vec<&RoutingPolicy> = world.policies.iter().collect();
    let mut all = unknown_routers(&known, &policies);
    for router in &world.routers {
        let inputs = Inputs {
            router,
            cells: world.cells.iter().collect(),
            policies: policies.clone(),
            shifts: world.shifts.iter().collect(),
            destinations: world.destinations.iter().collect(),
        };
        let made = build(&inputs);
        verdicts.drained.extend(drained::rules(&made.table, now).map(|rule| rule.as_str().to_owned()));
        all.extend(made.verdicts);
        let destinations = made.destinations.into_iter().map(|verdict| (verdict.name.clone(), verdict));
        verdicts.destinations.extend(destinations);
        for verdict in made.shifts {
            // A shift of a rule is known to the Routers that have the rule; one of them is enough.
            let better = verdicts.shifts.get(&verdict.name).is_none_or(|last| !last.accepted.ok);
            if better {
                verdicts.shifts.insert(verdict.name.clone(), verdict);
            }
        }
    }
    for verdict in all {
        let name = (verdict.namespace.clone(), verdict.name.clone());
        verdicts.policies.entry(name).or_default().push(verdict);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, Destination, Router};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<S: DeserializeOwned>(spec: Value) -> S {
        serde_json::from_value(spec).expect("is one")
    }

    #[test]
    fn destinations_are_judged_and_so_is_what_they_forbid_to_rules() {
        let rule = json!({"name": "all", "groups": [{"cells": [{"name": "a"}]}],
                          "restart": {"policy": "UntilPointOfNoReturn"}});
        let parents = json!([{"router": "r", "listener": "http"}]);
        let mut policy = RoutingPolicy::new("p", of(json!({"parentRefs": parents, "rules": [rule]})));
        policy.metadata.namespace = Some("apps".to_owned());
        let kms = |spec| Destination::new("kms", of(spec));
        let mut world = World {
            cells: vec![Cell::new("a", of(json!({"template": "t", "destinations": ["kms"]})))],
            routers: vec![Router::new("r", of(json!({"listeners": [{"name": "http", "port": 8080}]})))],
            policies: vec![policy],
            destinations: vec![kms(json!({"connect": {}, "endpoints": ["kms:443"]}))],
            ..World::default()
        };
        let mut judged = Judged::default();
        let mut check = |world: &World, refs: &str, destination: &str| {
            judged.renew(world, Timestamp::UNIX_EPOCH);
            let Verdicts { policies, destinations, .. } = &judged.verdicts;
            let policy = &policies[&("apps".to_owned(), "p".to_owned())][0];
            assert_eq!((policy.accepted.ok, policy.resolved_refs.reason), (true, refs), "{policy:?}");
            assert_eq!(destinations["kms"].accepted.reason, destination);
        };
        check(&world, "UnsafeRestart", "Accepted");
        world.destinations[0] = kms(json!({"http": {}, "endpoints": ["kms:443"]}));
        world.destinations[0].metadata.generation = Some(2);
        check(&world, "ResolvedRefs", "InvalidDestination");
    }
}
