//! What a router serves, as it tells the operator: `GET /v1/serving` on its admin port.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub const PATH: &str = "/v1/serving";

/// The state of one router process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// Name of the Router object that it serves.
    pub router: String,
    /// Name of its pod.
    pub pod: String,
    /// Counts the tables that this process has served; 0 is none yet.
    pub table: u64,
    /// True while it serves the table from its disk, because the API server was away when it started.
    #[serde(default)]
    pub from_disk: bool,
    /// Listeners of the table that are not open, or not as it says, and why.
    #[serde(default)]
    pub closed: BTreeMap<String, String>,
    /// Listeners with certificates that are missing or cannot be used, and why; `cellTls` for those towards cells. The others and the
    /// last good ones are in use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub certificates: BTreeMap<String, String>,
    /// Generation of each object in the table, by `KIND/NAME` or `KIND/NAMESPACE/NAME`, with its UID.
    pub objects: BTreeMap<String, ObjectVersion>,
    /// Each cell, as this router sees it.
    pub cells: BTreeMap<String, CellServing>,
    /// Policies with `owner` rules, by `RoutingPolicy/NAMESPACE/NAME`, of which an earlier version than that in the table has
    /// transactions under way at owners.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unsettled: BTreeSet<String>,
    /// Destinations that a cell asked for and may not reach, by `CELL/DESTINATION`, with how often since this process began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forbidden: BTreeMap<String, u64>,
    /// Destinations of the table that this router cannot send to, and why: no fit address, or no certificates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unavailable: BTreeMap<String, String>,
    /// Shares of each rule in parts per million, by `NAMESPACE/POLICY/RULE`, then by cell.
    pub shares: BTreeMap<String, BTreeMap<String, u32>>,
}

/// Which version of an object is in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVersion {
    pub uid: String,
    pub generation: i64,
}

/// One cell in one router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellServing {
    /// Whether this router sends it new work.
    pub r#in: bool,
    /// CamelCase word for why it is out; `Ready` when it is in. `HighErrorRate` or `HighLatency` while it is in and evidence is
    /// against it, so that rules with enough other cells send it nothing.
    pub reason: String,
    /// Percent after spec, shifts, the ramp and evidence: the lowest of any rule.
    pub effective_weight: u32,
    /// Transactions of this router under way in the cell.
    pub in_flight: u32,
    /// Orchestrator pods that this router streams from.
    pub pods: u32,
}
