//! Objects for tests, written as their JSON, and cells whose state a test sets.

#![expect(clippy::needless_pass_by_value, reason = "tests write `json!` where it is needed")]

use bulkhead_crds::{Cell, Destination, Router, RoutingPolicy, TrafficShift};
use serde_json::{Value, json};

use crate::decide::{CellStates, CellView};
use crate::request::RequestParts;
use crate::table::{Build, CellIndex, Inputs, Rule, Table, build};

/// The lists that a table is built from. Everything attaches to listener `http` of Router `main`.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) router: Router,
    pub(crate) cells: Vec<Cell>,
    pub(crate) policies: Vec<RoutingPolicy>,
    pub(crate) shifts: Vec<TrafficShift>,
    pub(crate) destinations: Vec<Destination>,
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the API")
}

pub(crate) fn cell(name: &str, spec: Value) -> Cell {
    let mut whole = json!({"template": "t"});
    whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    let meta = json!({"name": name});
    read(json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "Cell", "metadata": meta, "spec": whole}))
}

/// `name` is NAMESPACE/NAME; `second` is the second of its creation.
pub(crate) fn policy(name: &str, second: u32, precedence: i32, rules: Value) -> RoutingPolicy {
    let (namespace, name) = name.split_once('/').expect("NAMESPACE/NAME");
    let created = format!("2026-01-01T00:00:{second:02}Z");
    read(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "RoutingPolicy",
        "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
        "spec": {
            "parentRefs": [{"router": "main", "listener": "http"}],
            "precedence": precedence,
            "rules": rules,
        },
    }))
}

pub(crate) fn shift(name: &str, second: u32, spec: Value) -> TrafficShift {
    let created = format!("2026-01-01T00:00:{second:02}Z");
    let mut whole = json!({"reason": "a test"});
    whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    read(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "TrafficShift",
        "metadata": {"name": name, "creationTimestamp": created}, "spec": whole,
    }))
}

/// A Destination that takes HTTP and checks duplicates, but for what `spec` says otherwise.
pub(crate) fn destination(name: &str, spec: Value) -> Destination {
    let mut whole = json!({"endpoints": ["127.0.0.1:1"]});
    whole.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    let meta = json!({"name": name});
    read(
        json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "Destination", "metadata": meta, "spec": whole}),
    )
}

impl World {
    pub(crate) fn new(cells: &[&str]) -> Self {
        let router = read(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "Router", "metadata": {"name": "main"},
            "spec": {"listeners": [{"name": "http", "port": 8080}, {"name": "other", "port": 8081}]},
        }));
        let cells = cells.iter().map(|name| cell(name, json!({}))).collect();
        Self { router, cells, policies: Vec::new(), shifts: Vec::new(), destinations: Vec::new() }
    }

    /// Cells named by the groups, and one rule for everything: `[[("a", 80), ("b", 20)], [("c", 1)]]`.
    pub(crate) fn with_groups(groups: &[&[(&str, u32)]]) -> Self {
        let mut world = Self::new(&[]);
        let mut written = Vec::new();
        for group in groups {
            let weight = |(name, weight): &(&str, u32)| json!({"name": name, "weight": weight});
            written.push(json!({"cells": group.iter().map(weight).collect::<Vec<_>>()}));
            for (name, _) in *group {
                if world.cells.iter().all(|cell| cell.name() != *name) {
                    world.cells.push(cell(name, json!({})));
                }
            }
        }
        world.policies = vec![policy("ns/p", 0, 100, json!([{"name": "all", "groups": written}]))];
        world
    }

    /// Changes the first rule of the first policy.
    pub(crate) fn rule(mut self, change: impl FnOnce(&mut bulkhead_crds::RoutingRule)) -> Self {
        change(&mut self.policies[0].spec.rules[0]);
        self
    }

    pub(crate) fn build(&self) -> Build {
        build(&Inputs {
            router: &self.router,
            cells: self.cells.iter().collect(),
            policies: self.policies.iter().collect(),
            shifts: self.shifts.iter().collect(),
            destinations: self.destinations.iter().collect(),
        })
    }

    pub(crate) fn table(&self) -> Table {
        self.build().table
    }
}

/// A rule with one group of that cell.
pub(crate) fn to(name: &str, matches: Value, cell: &str) -> Value {
    json!({"name": name, "matches": matches, "groups": [{"cells": [{"name": cell}]}]})
}

/// `matches` of one header value.
pub(crate) fn header(name: &str, value: &str) -> Value {
    json!([{"all": [{"header": name, "exact": value}]}])
}

/// A request with one header.
pub(crate) fn request(name: &str, value: &str) -> RequestParts {
    RequestParts { headers: vec![(name.to_owned(), value.as_bytes().to_vec())], ..RequestParts::default() }
}

/// Every cell of a table, in and at full weight until a test says otherwise.
pub(crate) struct States {
    pub(crate) views: Vec<CellView>,
    pub(crate) now_unix_ms: u64,
}

impl CellStates for States {
    fn state(&self, cell: CellIndex) -> CellView {
        self.views[cell.0 as usize]
    }

    fn now_unix_ms(&self) -> u64 {
        self.now_unix_ms
    }
}

impl States {
    pub(crate) fn at(table: &Table, now_unix_ms: u64) -> Self {
        let view = |(cell, _): (CellIndex, _)| {
            let weight = table.cell_weight(cell, now_unix_ms).percent;
            CellView { weight, is_in: true, ramp_age_ms: u64::MAX, drained: weight == 0, doubt: None }
        };
        Self { views: table.cells().map(view).collect(), now_unix_ms }
    }

    pub(crate) fn of(table: &Table) -> Self {
        Self::at(table, 0)
    }

    pub(crate) fn view(&mut self, table: &Table, cell: &str) -> &mut CellView {
        &mut self.views[place(table, cell)]
    }

    /// Takes these out.
    pub(crate) fn out(mut self, table: &Table, cells: &[&str]) -> Self {
        for cell in cells {
            self.view(table, cell).is_in = false;
        }
        self
    }
}

fn place(table: &Table, cell: &str) -> usize {
    table.cell_named(cell).expect("a cell of the table").0 as usize
}

pub(crate) fn the_rule(table: &Table) -> &Rule {
    &table.rules()[0]
}
