//! What a router tells the operator and people: `/v1/serving` and `/v1/table` on the admin port.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use bulkhead_process::{Monotonic, clock};
use bulkhead_protocol::Serving;
use bulkhead_protocol::serving::{self, CellServing};
use bulkhead_routing::health::ramp;
use bulkhead_routing::table::CellIndex;
use bulkhead_routing::{CellStates, decide};
use serde_json::{Value, json};

use crate::snapshot::{Moment, Snapshot};

/// What the routes read.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) router: String,
    pub(crate) pod: String,
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    pub(crate) clock: Monotonic,
}

pub(crate) fn routes(source: Source) -> Router {
    Router::new()
        .route(serving::PATH, get(async |State(source): State<Source>| Json(source.serving())))
        .route("/v1/table", get(async |State(source): State<Source>| Json(source.table())))
        .with_state(source)
}

impl Source {
    pub(crate) fn serving(&self) -> Serving {
        let snapshot = self.current.load_full();
        let moment = snapshot.at(self.clock.millis(), clock::now_unix_millis());
        let table = &snapshot.table;
        let ramps = lowest_ramps(&snapshot, moment);
        let name = |index: CellIndex| table.cell(index).name.as_ref().to_owned();
        let cells = table.cells().filter_map(|(index, _)| {
            let live = snapshot.live(index)?;
            let report = live.report();
            let percent =
                moment.weight(index).percent * ramps.get(index.0 as usize).copied().unwrap_or(100) / 100;
            let cell = CellServing {
                r#in: live.is_in(),
                reason: report.reason.clone(),
                effective_weight: if live.is_in() { percent } else { 0 },
                in_flight: live.in_flight(),
                pods: report.pods,
            };
            Some((name(index), cell))
        });
        let shares = table.rules().iter().map(|rule| {
            let shares = decide::shares(rule, &moment);
            (rule.id.to_string(), shares.into_iter().map(|(index, ppm)| (name(index), ppm)).collect())
        });
        Serving {
            router: self.router.clone(),
            pod: self.pod.clone(),
            table: snapshot.version,
            from_disk: snapshot.about.from_disk,
            objects: snapshot.about.objects.clone(),
            cells: cells.collect(),
            shares: shares.collect(),
        }
    }

    /// The table for people: listeners, rules, and what was left out and why.
    fn table(&self) -> Value {
        let snapshot = self.current.load_full();
        let refused = snapshot.about.verdicts.iter().filter(|verdict| !verdict.accepted.ok).map(|verdict| {
            json!({
                "policy": format!("{}/{}", verdict.namespace, verdict.name),
                "listener": verdict.parent.listener,
                "reason": verdict.accepted.reason,
                "message": verdict.accepted.message,
            })
        });
        let shifts = snapshot.about.shifts.iter().filter(|verdict| !verdict.accepted.ok);
        json!({
            "version": snapshot.version,
            "fromDisk": snapshot.about.from_disk,
            "builtUnixMillis": snapshot.about.built_unix_ms,
            "listeners": snapshot.table.listeners().iter().map(|listener| &listener.name).collect::<Vec<_>>(),
            "rules": snapshot.table.rules().iter().map(|rule| rule.id.as_str()).collect::<Vec<_>>(),
            "cells": snapshot.table.cells().map(|(index, cell)| json!({
                "name": &*cell.name,
                "pods": snapshot.pods(index).iter().map(|pod| pod.at.traffic.to_string()).collect::<Vec<_>>(),
                "reason": snapshot.live(index).map(|live| live.report().reason.clone()),
                "message": snapshot.live(index).map(|live| live.report().message.clone()),
            })).collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(),
            "refusedShifts": shifts.map(|verdict| json!({
                "name": verdict.name,
                "reason": verdict.accepted.reason,
                "message": verdict.accepted.message,
            })).collect::<Vec<_>>(),
            "unreadable": snapshot.about.bad,
        })
    }
}

/// For each cell, the lowest percent that the ramp of any rule gives it.
fn lowest_ramps(snapshot: &Snapshot, moment: Moment<'_>) -> Vec<u32> {
    let mut lowest = vec![100; snapshot.cells.len()];
    for rule in snapshot.table.rules() {
        for index in rule.groups.iter().flat_map(|group| &group.cells).filter_map(|cell| cell.cell) {
            let percent = ramp(&rule.failback, moment.state(index).ramp_age_ms);
            if let Some(so_far) = lowest.get_mut(index.0 as usize) {
                *so_far = percent.min(*so_far);
            }
        }
    }
    lowest
}
