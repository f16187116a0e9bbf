//! A folder of YAML files, as a table to decide with: nothing breaks, a document says the same alone and among others, and
//! the same objects make a table that decides the same.

#![no_main]

mod source;

use bulkhead_protocol::TransactionId;
use bulkhead_routing::explain::{Explanation, explain};
use bulkhead_routing::table::{Inputs, Table, build};
use bulkhead_routing::{CellIndex, CellStates, CellView, RequestParts};
use libfuzzer_sys::fuzz_target;
use source::Objects;

fuzz_target!(|text: &str| {
    let objects = Objects::read(text);
    for router in &objects.routers {
        let build = || {
            build(&Inputs {
                router,
                cells: objects.cells.iter().collect(),
                policies: objects.policies.iter().collect(),
                shifts: objects.shifts.iter().collect(),
                destinations: objects.destinations.iter().collect(),
            })
        };
        let table = build().table;
        let decided = decide(&table);
        assert_eq!(decided, decide(&build().table));
        let cells = decided.iter().filter_map(|decided| decided.cell.as_deref());
        assert!(cells.into_iter().all(|cell| table.cell_named(cell).is_some()));
    }
});

/// Every cell is in, as good as it can be.
struct AllIn;

impl CellStates for AllIn {
    fn state(&self, _: CellIndex) -> CellView {
        CellView { weight: 100, is_in: true, ramp_age_ms: u64::MAX, drained: false, doubt: None }
    }

    fn now_unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
}

fn decide(table: &Table) -> Vec<Explanation> {
    let request = |method: &str, path: &str, body: &str| RequestParts {
        method: method.to_owned(),
        path: path.to_owned(),
        query: Some("q=1&partner=acme".to_owned()),
        host: Some("shop.example:8080".to_owned()),
        headers: vec![("x-partner".to_owned(), b"acme".to_vec()), ("x-account".to_owned(), b"17".to_vec())],
        body: body.as_bytes().to_vec(),
    };
    let requests =
        [request("GET", "/", ""), request("POST", "/v1/pay", r#"{"account": "17", "a": [{"b": 7}]}"#)];
    let id = TransactionId::from_bytes([7; 16]);
    let listeners = table.listeners().iter();
    listeners
        .flat_map(|listener| {
            requests.iter().map(|request| explain(table, &listener.name, request, &id, &AllIn))
        })
        .collect()
}
