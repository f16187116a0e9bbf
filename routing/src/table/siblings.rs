//! Which cells are compared with which, and how long each takes to come back: what its rules say of a cell.

use std::collections::HashSet;

use super::{CellIndex, Failback, Table};

impl Failback {
    /// Age at which a cell has all of its share again.
    pub(crate) fn ends_ms(&self) -> u64 {
        let steps = self.steps.iter().take_while(|percent| **percent < 100).count() as u64;
        self.hold_down_ms.saturating_add(self.interval_ms.saturating_mul(steps))
    }
}

/// Fills in each cell's [`super::Kin`] from the rules.
pub(super) fn relate(table: &mut Table) {
    let Table { rules, cells, .. } = table;
    // Most rules name the same few groups.
    let mut seen: HashSet<Vec<CellIndex>> = HashSet::new();
    for rule in rules {
        for group in &rule.groups {
            let mut members: Vec<CellIndex> = group.cells.iter().filter_map(|cell| cell.cell).collect();
            for member in &members {
                let kin = &mut cells[member.0 as usize].kin;
                kin.ramp_ms = kin.ramp_ms.max(rule.failback.ends_ms());
                kin.step_ms = kin.step_ms.max(rule.failback.interval_ms);
            }
            members.sort_unstable();
            if seen.contains(&members) {
                continue;
            }
            for member in &members {
                let others = members.iter().copied().filter(|other| other != member);
                cells[member.0 as usize].kin.siblings.extend(others);
            }
            seen.insert(members);
        }
    }
    for cell in cells {
        cell.kin.siblings.sort_unstable();
        cell.kin.siblings.dedup();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixture::{World, policy};
    use crate::table::Table;

    fn siblings(table: &Table, cell: &str) -> Vec<String> {
        let kin = &table.cell(table.cell_named(cell).expect("a cell")).kin;
        kin.siblings.iter().map(|other| table.cell(*other).name.to_string()).collect()
    }

    #[test]
    fn cells_of_a_group_are_siblings_and_those_of_other_groups_are_not() {
        let mut world = World::with_groups(&[&[("c", 1), ("a", 1), ("gone", 1)], &[("d", 1)]]);
        world.cells.retain(|cell| cell.name() != "gone");
        world.cells.push(crate::fixture::cell("b", json!({})));
        let groups = json!([{"cells": [{"name": "a"}, {"name": "b"}]}]);
        for n in 0..3 {
            let matches = crate::fixture::header("x", &n.to_string());
            let rule = json!({"name": "r", "matches": matches, "groups": groups});
            world.policies.push(policy(&format!("ns/p{n}"), 0, 200, json!([rule])));
        }
        let table = world.table();
        assert_eq!(siblings(&table, "a"), ["b", "c"]);
        assert_eq!(siblings(&table, "b"), ["a"]);
        assert_eq!(siblings(&table, "c"), ["a"]);
        assert!(siblings(&table, "d").is_empty());
    }

    #[test]
    fn the_slowest_way_back_of_its_rules_is_the_cells() {
        let mut world = World::with_groups(&[&[("a", 1), ("b", 1)]]);
        let quick = json!({"holdDown": "1s", "steps": [50, 100, 100], "interval": "20s"});
        let rule = json!({"name": "r", "matches": crate::fixture::header("x", "1"),
            "groups": [{"cells": [{"name": "a"}]}], "failback": quick});
        world.policies.push(policy("ns/q", 0, 200, json!([rule])));
        let table = world.table();
        let of = |cell| table.cell(table.cell_named(cell).expect("a cell")).kin.clone();
        assert_eq!((of("a").ramp_ms, of("a").step_ms), (40_000, 20_000));
        assert_eq!((of("b").ramp_ms, of("b").step_ms), (40_000, 10_000));
    }
}
