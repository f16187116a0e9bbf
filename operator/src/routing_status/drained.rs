//! Which rules have nobody left to serve them though every cell may be healthy: all of their cells are drained or weigh 0.
//! Decided by the very code that the routers choose with.

use bulkhead_routing::decide::{CellStates, CellView, shares};
use bulkhead_routing::table::{CellIndex, RuleId, Table};
use jiff::Timestamp;

/// Every cell in, whatever its health: what then has no share has none by spec, policy or shift alone.
struct AllIn<'a> {
    table: &'a Table,
    now_unix_ms: u64,
}

impl CellStates for AllIn<'_> {
    fn state(&self, cell: CellIndex) -> CellView {
        let weight = self.table.cell_weight(cell, self.now_unix_ms).percent;
        CellView { weight, is_in: true, ramp_age_ms: u64::MAX, drained: weight == 0, doubt: None }
    }

    fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms
    }
}

/// The rules of the table that are answered 503 until somebody gives a cell a weight again. Those whose cells do not
/// exist are not among them.
pub(super) fn rules(table: &Table, now: Timestamp) -> impl Iterator<Item = &RuleId> {
    let all_in = AllIn { table, now_unix_ms: u64::try_from(now.as_millisecond()).unwrap_or(0) };
    let drained = move |shares: Vec<(CellIndex, u32)>| {
        !shares.is_empty() && shares.iter().all(|(_, share)| *share == 0)
    };
    table.rules().iter().filter(move |rule| drained(shares(rule, &all_in))).map(|rule| &rule.id)
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, Router, RoutingPolicy, TrafficShift};
    use bulkhead_routing::table::{Inputs, build};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> K {
        let object = json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "spec": spec,
                            "metadata": {"name": name, "namespace": "apps"}});
        serde_json::from_value(object).expect("is one")
    }

    /// Looks, as 2030 begins, at a policy with these rules over the cells `on` and `off`, of which only the first is active.
    #[track_caller]
    fn check(rules: &[(&str, &[(&str, u32)])], shift: Option<&Value>, expected: &[&str]) {
        let router: Router = object("Router", "r", &json!({"listeners": [{"name": "http", "port": 8080}]}));
        let on: Cell = object("Cell", "on", &json!({"template": "t"}));
        let off: Cell = object("Cell", "off", &json!({"template": "t", "state": "Drained"}));
        let rules: Vec<Value> = rules
            .iter()
            .map(|(name, cells)| {
                let cells: Vec<_> =
                    cells.iter().map(|(name, weight)| json!({"name": name, "weight": weight})).collect();
                let matches = json!([{"all": [{"header": "rule", "exact": name}]}]);
                json!({"name": name, "matches": matches, "groups": [{"cells": cells}]})
            })
            .collect();
        let parents = json!([{"router": "r", "listener": "http"}]);
        let policy: RoutingPolicy =
            object("RoutingPolicy", "p", &json!({"parentRefs": parents, "rules": rules}));
        let shift: Option<TrafficShift> = shift.map(|spec| object("TrafficShift", "s", spec));
        let inputs = Inputs {
            router: &router,
            cells: vec![&on, &off],
            policies: vec![&policy],
            shifts: shift.iter().collect(),
            destinations: Vec::new(),
        };
        let made = build(&inputs);
        assert!(made.verdicts.iter().all(|verdict| verdict.accepted.ok), "{:?}", made.verdicts);
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        let found: Vec<_> = super::rules(&made.table, now).map(RuleId::as_str).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_rule_is_drained_when_each_of_its_cells_is_or_weighs_nothing() {
        let rules: &[(&str, &[(&str, u32)])] = &[
            ("weights", &[("on", 0)]),
            ("states", &[("off", 100)]),
            ("both", &[("on", 0), ("off", 100)]),
            ("half", &[("on", 1), ("off", 100)]),
            ("nobody", &[("unknown", 100)]),
        ];
        check(rules, None, &["apps/p/weights", "apps/p/states", "apps/p/both"]);
    }

    #[test]
    fn a_shift_drains_a_rule_until_it_ends() {
        let rules: &[(&str, &[(&str, u32)])] = &[("all", &[("on", 100)])];
        let shift = |end: &str| json!({"cell": "on", "weight": 0, "reason": "test", "expiresAt": end});
        check(rules, Some(&shift("2030-01-01T00:00:01Z")), &["apps/p/all"]);
        check(rules, Some(&shift("2029-12-31T23:59:59Z")), &[]);
    }
}
