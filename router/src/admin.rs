//! What a router tells the operator and people on its admin port: `/v1/serving`, `/v1/table` and `/v1/explain`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use bulkhead_process::clock;
use bulkhead_protocol::serving::{self, CellServing};
use bulkhead_protocol::{Reason, Serving, TransactionId};
use bulkhead_routing::explain::{self, Explanation};
use bulkhead_routing::table::CellIndex;
use bulkhead_routing::{RequestParts, decide};
use serde_json::{Value, json};

use crate::egress::DestinationLive;
use crate::owned;
use crate::snapshot::{Moment, Snapshot};
use crate::worker::Shared;

/// What the routes read.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) router: String,
    pub(crate) pod: String,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) fn routes(source: Source) -> Router {
    Router::new()
        .route(serving::PATH, get(async |State(source): State<Source>| Json(source.serving())))
        .route("/v1/table", get(async |State(source): State<Source>| Json(source.table())))
        .route("/v1/explain", get(explain).post(explain))
        .with_state(source)
}

/// Where a request would go and why: `?listener=NAME&method=…&path=…&host=…&header=NAME:VALUE&transaction=ID`, with the
/// request's body as the body. Nothing is sent anywhere.
async fn explain(
    State(source): State<Source>,
    Query(asked): Query<Vec<(String, String)>>,
    body: Bytes,
) -> Result<Json<Explanation>, (StatusCode, String)> {
    let asked = Asked::read(asked, &body).map_err(|wrong| (StatusCode::BAD_REQUEST, wrong + "\n"))?;
    let snapshot = source.shared.current.load_full();
    let now_unix_ms = clock::now_unix_millis();
    let moment = snapshot.at(source.shared.clock.millis(), now_unix_ms);
    let transaction =
        asked.transaction.unwrap_or_else(|| TransactionId::new_v7(now_unix_ms, crate::random::bytes()));
    Ok(Json(explain::explain(&snapshot.table, &asked.listener, &asked.request, &transaction, &moment)))
}

/// A request that is only asked about.
#[derive(Default)]
struct Asked {
    listener: String,
    transaction: Option<TransactionId>,
    request: RequestParts,
}

impl Asked {
    fn read(pairs: Vec<(String, String)>, body: &[u8]) -> Result<Self, String> {
        let mut asked = Self { listener: "http".to_owned(), ..Self::default() };
        asked.request.method = "GET".to_owned();
        asked.request.path = "/".to_owned();
        asked.request.body = body.to_vec();
        for (name, value) in pairs {
            match name.as_str() {
                "listener" => asked.listener = value,
                "method" => asked.request.method = value.to_uppercase(),
                "host" => asked.request.host = Some(value),
                "path" => {
                    let (path, query) =
                        value.split_once('?').map_or((&*value, None), |(path, query)| (path, Some(query)));
                    asked.request.path = path.to_owned();
                    asked.request.query = query.map(str::to_owned);
                }
                "header" => {
                    let (name, value) = value.split_once(':').ok_or("write header=NAME:VALUE")?;
                    asked
                        .request
                        .headers
                        .push((name.trim().to_lowercase(), value.trim().as_bytes().to_vec()));
                }
                "transaction" => {
                    let id = value.parse().map_err(|_| format!("transaction {value:?} is not a UUID"))?;
                    asked.transaction = Some(id);
                }
                other => {
                    return Err(format!(
                        "{other:?} is not known; write listener, method, path, host, header or transaction"
                    ));
                }
            }
        }
        Ok(asked)
    }
}

impl Source {
    pub(crate) fn serving(&self) -> Serving {
        let snapshot = self.shared.current.load_full();
        let moment = snapshot.at(self.shared.clock.millis(), clock::now_unix_millis());
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
        let unavailable = snapshot.destinations.values();
        let unavailable =
            unavailable.filter_map(|live| Some((live.spec.name.as_ref().to_owned(), live.unavailable()?)));
        Serving {
            router: self.router.clone(),
            pod: self.pod.clone(),
            table: snapshot.version,
            from_disk: snapshot.about.from_disk,
            closed: self.shared.listeners.closed(),
            certificates: unusable_certificates(&snapshot).into_iter().chain(of_cells(&snapshot)).collect(),
            objects: snapshot.about.objects.clone(),
            cells: cells.collect(),
            unsettled: owned::unsettled(&snapshot.about),
            forbidden: self.shared.forbidden.counts(),
            unavailable: unavailable.collect(),
            shares: shares.collect(),
        }
    }

    /// Those that are not open, or not as the table says, and those that serve with former certificates.
    fn refused_listeners(&self, snapshot: &Snapshot) -> Vec<Value> {
        let mut refused = unusable_certificates(snapshot);
        refused.extend(self.shared.listeners.closed());
        refused.into_iter().map(|(name, message)| json!({"name": name, "message": message})).collect()
    }

    /// The table for people: listeners, rules, and what was left out and why.
    fn table(&self) -> Value {
        let snapshot = self.shared.current.load_full();
        let refused = snapshot.about.verdicts.iter().filter(|verdict| !verdict.accepted.ok).map(|verdict| {
            json!({
                "policy": format!("{}/{}", verdict.namespace, verdict.name),
                "listener": verdict.parent.listener,
                "reason": verdict.accepted.reason,
                "message": verdict.accepted.message,
            })
        });
        let shifts = snapshot.about.shifts.iter().filter(|verdict| !verdict.accepted.ok);
        let unread = snapshot.about.destinations.iter().filter(|verdict| !verdict.accepted.ok);
        let unread = unread.map(|verdict| {
            refused_destination(&verdict.name, verdict.accepted.reason, &verdict.accepted.message)
        });
        let mut destinations: Vec<&Arc<DestinationLive>> = snapshot.destinations.values().collect();
        destinations.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
        let out = destinations.iter().filter_map(|live| {
            let why = live.unavailable()?;
            Some(refused_destination(&live.spec.name, Reason::DestinationUnavailable.as_str(), &why))
        });
        json!({
            "version": snapshot.version,
            "fromDisk": snapshot.about.from_disk,
            "builtUnixMillis": snapshot.about.built_unix_ms,
            "listeners": snapshot.table.listeners().iter().map(|listener| &listener.name).collect::<Vec<_>>(),
            "refusedListeners": self.refused_listeners(&snapshot),
            "rules": snapshot.table.rules().iter().map(|rule| rule.id.as_str()).collect::<Vec<_>>(),
            "cells": snapshot.table.cells().map(|(index, cell)| json!({
                "name": &*cell.name,
                "pods": snapshot.pods(index).iter().map(|pod| pod.at.traffic.to_string()).collect::<Vec<_>>(),
                "reason": snapshot.live(index).map(|live| live.report().reason.clone()),
                "message": snapshot.live(index).map(|live| live.report().message.clone()),
            })).collect::<Vec<_>>(),
            "cellTls": snapshot.cell_tls_wrong,
            "refused": refused.collect::<Vec<_>>(),
            "refusedShifts": shifts.map(|verdict| json!({
                "name": verdict.name,
                "reason": verdict.accepted.reason,
                "message": verdict.accepted.message,
            })).collect::<Vec<_>>(),
            "destinations": destinations.iter().map(|live| live.describe()).collect::<Vec<_>>(),
            "refusedDestinations": unread.chain(out).collect::<Vec<_>>(),
            "unreadable": snapshot.about.bad,
        })
    }
}

/// What is wrong with the certificates of each listener that serves nevertheless.
fn unusable_certificates(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let serving = snapshot.servers.iter().filter(|(_, served)| served.server.is_some());
    serving.filter_map(|(name, served)| Some((name.clone(), served.wrong.clone()?))).collect()
}

/// No listener is called so: its name has no capital letter.
fn of_cells(snapshot: &Snapshot) -> Option<(String, String)> {
    Some(("cellTls".to_owned(), snapshot.cell_tls_wrong.clone()?))
}

fn refused_destination(name: &str, reason: &str, message: &str) -> Value {
    json!({"name": name, "reason": reason, "message": message})
}

/// For each cell, the lowest percent that the ramp of any rule gives it, with what evidence keeps from it.
fn lowest_ramps(snapshot: &Snapshot, moment: Moment<'_>) -> Vec<u32> {
    let mut lowest = vec![100; snapshot.cells.len()];
    for rule in snapshot.table.rules() {
        for (index, percent) in decide::ramps(rule, &moment) {
            if let Some(so_far) = lowest.get_mut(index.0 as usize) {
                *so_far = percent.min(*so_far);
            }
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &[(&str, &str)], expected: Result<(&str, &str, Option<&str>), &str>) {
        let pairs = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let asked = Asked::read(pairs, b"body");
        let read = asked.as_ref().map(|asked| {
            let RequestParts { method, path, query, .. } = &asked.request;
            (method.as_str(), path.as_str(), query.as_deref())
        });
        assert_eq!(read.map_err(String::as_str), expected);
    }

    #[test]
    fn what_is_asked_about_is_read_from_the_query() {
        check(&[], Ok(("GET", "/", None)));
        check(&[("method", "post"), ("path", "/a?b=c")], Ok(("POST", "/a", Some("b=c"))));
        check(&[("header", "x")], Err("write header=NAME:VALUE"));
        check(&[("transaction", "1")], Err("transaction \"1\" is not a UUID"));
    }
}
