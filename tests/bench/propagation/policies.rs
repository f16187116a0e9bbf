//! The policies of the bench: the one whose route is watched, and those that stand beside it. Pure.

use serde_json::{Value, json};

/// The namespace of all of them.
pub(super) const NAMESPACE: &str = "default";
/// What all of them have, so that they can be found and deleted.
pub(super) const LABEL: &str = "bulkhead.dev/bench";
pub(super) const OF_BENCH: &str = "propagation";
/// The policy whose route is watched.
pub(super) const LIVE: &str = "bench-live";
/// What its route takes.
pub(super) const PATH: &str = "/bench-live";
/// The cells that are to take all of it in turn.
pub(super) const CELLS: [&str; 2] = ["payments-a", "payments-b"];

/// The watched policy, which sends everything to that one of [`CELLS`]. It goes before all others.
pub(super) fn live(cell: usize) -> Value {
    policy(LIVE, 1_000, &json!([live_rule(cell)]))
}

/// The policy of that number beside it, with so many rules, each for a partner of its own. Each edit gives its first rule
/// another weight.
pub(super) fn beside(number: u32, rules: u32, edit: u32) -> Value {
    policy(&format!("bench-{number:04}"), 100, &partners(number * rules, rules, edit))
}

fn policy(name: &str, precedence: i32, rules: &Value) -> Value {
    json!({
        "apiVersion": "bulkhead.dev/v1alpha1",
        "kind": "RoutingPolicy",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {LABEL: OF_BENCH}},
        "spec": {
            "parentRefs": [{"router": "main", "listener": "http"}],
            "precedence": precedence,
            "rules": rules,
        },
    })
}

fn live_rule(cell: usize) -> Value {
    let cells = [0, 1].map(|place| weighed(place, if place == cell { 100 } else { 0 }));
    json!({
        "name": "live",
        "matches": [{"all": [{"attribute": "path", "prefix": PATH}]}],
        "key": {"header": "x-account"},
        "groups": [{"cells": cells}],
    })
}

fn weighed(cell: usize, weight: u32) -> Value {
    json!({"name": CELLS[cell], "weight": weight})
}

fn partners(first: u32, rules: u32, edit: u32) -> Value {
    let rule = |number: u32| {
        let weight = if number == first { 50 + edit % 50 } else { 50 };
        json!({
            "name": format!("partner-{number}"),
            "matches": [{"all": [{"header": "x-partner", "exact": format!("p{number:06}")}]}],
            "key": {"header": "x-account"},
            "groups": [{"cells": [weighed(0, weight), weighed(1, 50)]}],
        })
    };
    (first..first + rules).map(rule).collect()
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::RoutingPolicy;

    use super::*;

    #[test]
    fn policies_are_what_the_crd_says() {
        let read = |policy| serde_json::from_value::<RoutingPolicy>(policy).expect("is a policy");
        let (live, beside) = (read(live(1)), read(beside(3, 10, 0)));
        let group = &live.spec.rules[0].groups[0];
        let cells: Vec<_> = group.cells.iter().map(|cell| (cell.name.as_str(), cell.weight)).collect();
        assert_eq!((live.spec.precedence, cells), (1_000, vec![("payments-a", 0), ("payments-b", 100)]));
        assert_eq!((beside.spec.rules.len(), beside.metadata.name.as_deref()), (10, Some("bench-0003")));
        assert_eq!(beside.spec.rules[9].name, "partner-39");
    }

    #[test]
    fn every_edit_of_a_policy_changes_it() {
        let weight = |edit| beside(3, 10, edit).pointer("/spec/rules/0/groups/0/cells/0/weight").cloned();
        assert_eq!([weight(0), weight(1), weight(49)], [50, 51, 99].map(|weight| Some(Value::from(weight))));
    }
}
