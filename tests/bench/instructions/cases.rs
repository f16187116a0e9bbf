//! What is counted: decisions about fixed requests over fixed tables, and the bytes of fixed messages, again and again.
//! Nothing in it depends on a clock or on chance.

use std::hint::black_box;

use anyhow::{Context as _, Result};
use bulkhead_crds::{Cell, Router, RoutingPolicy};
use bulkhead_protocol::TransactionId;
use bulkhead_routing::decide::{choose, key, match_rule};
use bulkhead_routing::table::build;
use bulkhead_routing::{CellIndex, CellStates, CellView, Inputs, RequestParts, Table};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::codec;

const LISTENER: &str = "http";
const CELLS: [&str; 4] = ["a", "b", "c", "d"];
/// Rules that a policy may have at most.
const RULES_EACH: usize = 128;
/// Requests that differ, which take turns.
const REQUESTS: u64 = 64;
const BODY: &str = r#"{"partner":"p123","market":"US","paymentType":"card","amount":1250,"currency":"USD","pan":"374500000000007"}"#;

pub(super) struct Case {
    pub(super) name: &'static str,
    what: What,
}

enum What {
    Decision(Decision),
    /// Done so many times.
    Codec(fn(u64) -> Result<()>),
}

struct Decision {
    rules: fn() -> Vec<Value>,
    /// Whether the first of the cells is out.
    first_is_out: bool,
}

pub(super) static CASES: [Case; 9] = [
    decision("one rule by a field, key in a field", one_rule, false),
    decision("one rule by a field, first cell out", one_rule, true),
    decision("one of 1,000 rules by a field", many_rules, false),
    decision("one of 100 rules by a range in the body", rules_of_bodies, false),
    decision("one of 100 rules by the path, no key", rules_of_paths, false),
    Case { name: "a request's head of 7 fields, read", what: What::Codec(codec::read_request) },
    Case { name: "the same written for a cell", what: What::Codec(codec::write_request) },
    Case { name: "an answer's head of 4 fields, read", what: What::Codec(codec::read_answer) },
    Case { name: "a body of 8 chunks of 512 B, read", what: What::Codec(codec::read_chunks) },
];

const fn decision(name: &'static str, rules: fn() -> Vec<Value>, first_is_out: bool) -> Case {
    Case { name, what: What::Decision(Decision { rules, first_is_out }) }
}

struct Cells {
    first_is_out: bool,
}

impl CellStates for Cells {
    fn state(&self, cell: CellIndex) -> CellView {
        let is_in = !(self.first_is_out && cell == CellIndex(0));
        CellView { weight: 100, is_in, ramp_age_ms: u64::MAX, drained: false, doubt: None }
    }

    fn now_unix_ms(&self) -> u64 {
        0
    }
}

impl Case {
    /// Does it so many times.
    ///
    /// # Errors
    /// When a request gets no cell, or a message cannot be read: whatever is counted then is not what was to be.
    pub(super) fn play(&self, count: u64) -> Result<()> {
        match &self.what {
            What::Decision(decision) => decision.play(count),
            What::Codec(play) => play(count),
        }
    }
}

impl Decision {
    fn play(&self, count: u64) -> Result<()> {
        let (table, requests) = (self.table()?, (0..REQUESTS).map(request).collect::<Vec<_>>());
        let states = Cells { first_is_out: self.first_is_out };
        let transaction = TransactionId::new_v7(1, [7; 10]);
        for request in requests.iter().cycle().take(usize::try_from(count)?) {
            let rule = match_rule(black_box(&table), LISTENER, black_box(request))?;
            let key = key(rule, request, black_box(&transaction))?;
            black_box(choose(rule, key, &states, &[])?);
        }
        Ok(())
    }

    fn table(&self) -> Result<Table> {
        let router: Router = read(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "Router", "metadata": {"name": "main"},
            "spec": {"listeners": [{"name": LISTENER, "port": 8080}]},
        }))?;
        let cells = CELLS.map(|name| {
            read::<Cell>(json!({
                "apiVersion": "bulkhead.dev/v1alpha1", "kind": "Cell", "metadata": {"name": name},
                "spec": {"endpoints": ["127.0.0.1:9001"]},
            }))
        });
        let cells: Vec<_> = cells.into_iter().collect::<Result<_>>()?;
        let rules = (self.rules)();
        let policies: Vec<_> = rules.chunks(RULES_EACH).enumerate().map(policy).collect::<Result<_>>()?;
        let built = build(&Inputs {
            router: &router,
            cells: cells.iter().collect(),
            policies: policies.iter().collect(),
            shifts: Vec::new(),
            destinations: Vec::new(),
        });
        Ok(built.table)
    }
}

fn policy((number, rules): (usize, &[Value])) -> Result<RoutingPolicy> {
    read(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "RoutingPolicy",
        "metadata": {
            "namespace": "default", "name": format!("p{number:03}"), "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"parentRefs": [{"router": "main", "listener": LISTENER}], "rules": rules},
    }))
}

fn read<T: DeserializeOwned>(object: Value) -> Result<T> {
    serde_json::from_value(object).context("an object of a case is none of the API")
}

/// To two cells in unequal parts.
fn rule(name: &str, matches: &Value, key: Option<Value>) -> Value {
    let groups = json!([
        {"cells": [{"name": CELLS[0], "weight": 70}, {"name": CELLS[1], "weight": 30}]},
        {"cells": [{"name": CELLS[2]}, {"name": CELLS[3]}]},
    ]);
    let mut rule = json!({"name": name, "matches": [{"all": [matches]}], "groups": groups});
    if let (Some(key), Some(rule)) = (key, rule.as_object_mut()) {
        rule.insert("key".to_owned(), key);
    }
    rule
}

fn one_rule() -> Vec<Value> {
    vec![rule(
        "partners",
        &json!({"header": "x-partner", "prefix": "p"}),
        Some(json!({"header": "x-transaction-id"})),
    )]
}

fn many_rules() -> Vec<Value> {
    let key = || Some(json!({"header": "x-transaction-id"}));
    let partner = |number| json!({"header": "x-partner", "exact": format!("p{number}")});
    (0..1_000).map(|number| rule(&format!("r{number}"), &partner(number), key())).collect()
}

fn rules_of_bodies() -> Vec<Value> {
    let digits = |number: u32| format!("37{number:02}00000000000");
    let range =
        |number| json!({"jsonPointer": "/pan", "range": {"from": digits(number), "to": digits(number + 1)}});
    let key = || Some(json!({"jsonPointer": "/pan"}));
    (0..100).map(|number| rule(&format!("r{number}"), &range(number), key())).collect()
}

fn rules_of_paths() -> Vec<Value> {
    let path = |number| json!({"attribute": "path", "prefix": format!("/v{number}/")});
    (0..100).map(|number| rule(&format!("r{number}"), &path(number), None)).collect()
}

/// The fields that clients send, and none of which is the first.
fn request(number: u64) -> RequestParts {
    let headers = [
        ("host", "payments.example".to_owned()),
        ("user-agent", "bench/1".to_owned()),
        ("accept", "*/*".to_owned()),
        ("x-partner", "p123".to_owned()),
        ("x-transaction-id", format!("0192f0c1-0000-7000-8000-{number:012}")),
        ("content-type", "application/json".to_owned()),
    ];
    RequestParts {
        method: "POST".to_owned(),
        path: "/v1/authorize".to_owned(),
        host: Some("payments.example".to_owned()),
        headers: headers.map(|(name, value)| (name.to_owned(), value.into_bytes())).into(),
        body: BODY.as_bytes().to_vec(),
        ..RequestParts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_comes_to_its_end() {
        for case in &CASES {
            case.play(REQUESTS).unwrap_or_else(|refused| panic!("{}: {refused:#}", case.name));
        }
    }

    #[test]
    fn tables_have_all_rules() {
        let decisions = CASES.iter().filter_map(|case| match &case.what {
            What::Decision(decision) => Some(decision),
            What::Codec(_) => None,
        });
        let rules: Vec<_> =
            decisions.map(|decision| decision.table().expect("is built").rules().len()).collect();
        assert_eq!(rules, [1, 1, 1_000, 100, 100]);
    }
}
