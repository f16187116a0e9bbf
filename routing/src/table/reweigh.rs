//! The table after an edit of weights alone, which is what people and rollouts edit most: what finds the rules stays, and
//! so do all rules but those of the edited policies.

use std::sync::Arc;

use bulkhead_crds::RoutingPolicy;
use bulkhead_crds::policy::RoutingRule;

use super::draft::MAX_WEIGHT;
use super::{Rule, Table};

/// Whether the policy differs from what it was in the weights of its rules at most, and none of them is an owner rule, so
/// that [`Table::reweighed`] will do.
pub fn differ_in_weights_alone(before: &RoutingPolicy, now: &RoutingPolicy) -> bool {
    let (a, b) = (&before.metadata, &now.metadata);
    let is_same_object = a.uid.is_some()
        && a.uid == b.uid
        && a.creation_timestamp == b.creation_timestamp
        && a.deletion_timestamp == b.deletion_timestamp;
    let mut spec = now.spec.clone();
    let places = before.spec.rules.iter().zip(&mut spec.rules);
    let groups = places.flat_map(|(before, now)| before.groups.iter().zip(&mut now.groups));
    for (before, now) in groups.flat_map(|(before, now)| before.cells.iter().zip(&mut now.cells)) {
        now.weight = before.weight;
    }
    is_same_object && spec == before.spec && spec.rules.iter().all(|rule| !rule.owner)
}

impl Table {
    /// The same with the weights that these policies have now, from which what it was made of differs in nothing else. None
    /// where more depends on them than their rules.
    pub fn reweighed(&self, policies: &[&RoutingPolicy]) -> Option<Self> {
        let mut table = self.clone();
        let edited: Vec<_> = policies.iter().map(|policy| (prefix(policy), &policy.spec.rules)).collect();
        for rule in &mut table.rules {
            let of = edited.iter().find_map(|(prefix, rules)| {
                let name = rule.id.as_str().strip_prefix(prefix.as_str())?;
                // Of two with one name the first serves.
                rules.iter().find(|rule| rule.name == name)
            });
            let Some(spec) = of else { continue };
            if rule.owner || !rule.shifts.is_empty() {
                return None;
            }
            reweigh(Arc::make_mut(rule), spec);
        }
        Some(table)
    }
}

/// What the ids of its rules begin with, and those of no other.
fn prefix(policy: &RoutingPolicy) -> String {
    let meta = &policy.metadata;
    format!("{}/{}/", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn reweigh(rule: &mut Rule, spec: &RoutingRule) {
    for (group, spec) in rule.groups.iter_mut().zip(&spec.groups) {
        for cell in &mut group.cells {
            // Of two mentions of a name the first counts.
            if let Some(spec) = spec.cells.iter().find(|spec| *spec.name == *cell.name) {
                cell.weight = spec.weight.min(MAX_WEIGHT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{World, header, policy, shift};

    /// Policies of three rules each over cells of which one does not exist and one is named twice.
    fn world(weights: &[u32; 4]) -> World {
        let mut world = World::new(&["a", "b"]);
        let [first, second, third, fourth] = weights;
        let groups = json!([
            {"cells": [{"name": "a", "weight": first}, {"name": "gone", "weight": second}]},
            {"cells": [{"name": "b", "weight": third}, {"name": "b", "weight": fourth}]},
        ]);
        for name in ["ns/p", "ns/p2"] {
            let rule = |number: u32| {
                let matches = header("x-rule", &format!("{name}-{number}"));
                json!({"name": format!("r{number}"), "matches": matches, "groups": groups})
            };
            world.policies.push(policy(name, 0, 100, Value::Array((0..3).map(rule).collect())));
        }
        for policy in &mut world.policies {
            policy.metadata.uid = policy.metadata.name.clone();
        }
        world
    }

    fn all(world: &World) -> Vec<&RoutingPolicy> {
        world.policies.iter().collect()
    }

    proptest! {
        #[test]
        fn it_is_the_table_that_is_made_anew(before: [u32; 4], now: [u32; 4]) {
            let (before, now) = (world(&before), world(&now));
            for (before, now) in before.policies.iter().zip(&now.policies) {
                prop_assert!(differ_in_weights_alone(before, now));
            }
            let reweighed = before.table().reweighed(&all(&now)).expect("nothing else depends on them");
            let anew = now.table();
            prop_assert_eq!(format!("{:?}", reweighed.rules), format!("{:?}", anew.rules));
            prop_assert_eq!(format!("{:?}", reweighed.cells), format!("{:?}", anew.cells));
        }
    }

    #[test]
    fn only_the_edited_rules_are_made_anew() {
        let (before, now) = (world(&[1; 4]), world(&[2; 4]));
        let table = before.table();
        let reweighed = table.reweighed(&[&now.policies[1]]).expect("is possible");
        let shared: Vec<bool> =
            table.rules.iter().zip(&reweighed.rules).map(|(before, now)| Arc::ptr_eq(before, now)).collect();
        assert_eq!(shared, [true, true, true, false, false, false]);
        assert!(Arc::ptr_eq(&table.listeners[0].index, &reweighed.listeners[0].index));
    }

    #[test]
    fn a_shift_of_a_rule_depends_on_its_weights() {
        let mut world = world(&[1; 4]);
        let of = json!({"namespace": "ns", "name": "p", "rule": "r0"});
        let weights = json!([{"name": "a", "weight": 1}]);
        let spec = json!({"policy": of, "weights": weights, "expiresAt": "2030-01-01T00:00:00Z"});
        world.shifts.push(shift("s", 0, spec));
        let table = world.table();
        assert!(table.reweighed(&[&world.policies[0]]).is_none());
        assert!(table.reweighed(&[&world.policies[1]]).is_some());
    }

    #[test]
    fn whatever_else_differs_makes_a_new_table() {
        let before = world(&[1; 4]).policies.remove(0);
        let check = |edit: fn(&mut RoutingPolicy), expected| {
            let mut now = before.clone();
            edit(&mut now);
            assert_eq!(differ_in_weights_alone(&before, &now), expected, "{now:?}");
        };
        check(|_| {}, true);
        check(|policy| policy.metadata.generation = Some(7), true);
        check(|policy| policy.spec.rules[0].groups[0].cells[0].weight = 9, true);
        check(|policy| policy.metadata.uid = Some("another".to_owned()), false);
        check(|policy| policy.spec.precedence += 1, false);
        check(|policy| policy.spec.parent_refs[0].listener = "other".to_owned(), false);
        check(|policy| policy.spec.rules[0].name = "other".to_owned(), false);
        check(|policy| policy.spec.rules.truncate(2), false);
        check(|policy| policy.spec.rules[0].groups.truncate(1), false);
        check(|policy| policy.spec.rules[0].groups[0].cells[0].name = "b".to_owned(), false);
        check(|policy| policy.spec.rules[0].groups[0].cells.truncate(1), false);
        check(|policy| policy.spec.rules[0].groups[0].min_healthy_percent = 50, false);
        check(|policy| policy.spec.rules[0].matches.clear(), false);
        check(|policy| policy.spec.rules[0].restart.max_attempts += 1, false);
        check(|policy| policy.spec.rules[0].owner = true, false);
    }
}
