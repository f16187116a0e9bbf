//! `Cell`: one full, isolated copy of a system.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::condition::Condition;
use crate::names;

/// A cell is a complete copy of the system and a failure domain of its own.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "Cell",
    plural = "cells",
    category = "bulkhead",
    status = "CellStatus",
    derive = "PartialEq",
    cel,
    doc = "A full, isolated copy of a system, and a failure domain of its own.",
    printcolumn(name = "State", type_ = "string", json_path = ".spec.state"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight"),
    printcolumn(
        name = "Effective",
        type_ = "integer",
        json_path = ".status.effectiveWeight",
        description = "Weight after TrafficShifts and the ramp, as the routers apply it"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Isolated", type_ = "string", json_path = ".status.conditions[?(@.type==\"Isolated\")].status"),
    printcolumn(name = "Serving", type_ = "string", json_path = ".status.conditions[?(@.type==\"Serving\")].status"),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.currentRevision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("size(self.metadata.name) <= 50 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must be at most 50 characters of a-z, 0-9 and -, starting and ending with a letter or digit: the namespace cell-NAME is made from it")
)]
#[x_kube(
    cel,
    validation = Rule::new("has(self.template) != (has(self.endpoints) && size(self.endpoints) > 0)")
        .message("set either template (a cell in this cluster) or endpoints (a cell that runs elsewhere), not both and not neither"),
    validation = Rule::new("(has(self.placement) && has(self.placement.region) ? self.placement.region : '') == (has(oldSelf.placement) && has(oldSelf.placement.region) ? oldSelf.placement.region : '')")
        .message("placement.region cannot be changed: a cell never moves between regions; make a new Cell there"),
    validation = Rule::new("has(self.template) == has(oldSelf.template)")
        .message("a Cell cannot change between template and endpoints; make a new Cell"),
)]
#[serde(rename_all = "camelCase")]
pub struct CellSpec {
    /// Percent, 0 to 100, of the share that policies give this cell. 0 drains it. Absent means 100.
    #[serde(default = "full_weight")]
    #[schemars(range(min = 0, max = 100))]
    pub weight: u32,
    /// `Active` serves; `Drained` takes no new transaction and finishes what it has; `Disabled` also gives back what is in flight, as far as its rules let it be restarted elsewhere.
    #[serde(default)]
    pub state: CellState,
    /// Name of the CellTemplate that says what the cell is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub template: Option<String>,
    /// Values of the template's parameters, each a string, number or boolean as the parameter's type says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::scalar_map")]
    pub values: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Names of the Destinations that transactions of this cell may reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub destinations: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// `Retain` keeps namespace, volumes and Secrets when the Cell is deleted; `Delete` removes all. Either waits for the drain.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// `host:port` of each orchestrator of a cell that runs outside this cluster. No namespace is made for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(min = 3, max = 260),
            regex(pattern = r"^[^\s:]+:[0-9]{1,5}$|^\[[0-9a-fA-F:.]+\]:[0-9]{1,5}$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub endpoints: Vec<String>,
}

fn full_weight() -> u32 {
    100
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CellState {
    #[default]
    Active,
    Drained,
    Disabled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    #[default]
    Retain,
    Delete,
}

/// Where the cell's pods run. A cell never spans regions.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Value of the node label `topology.kubernetes.io/region`. Cannot be changed, and is needed where the nodes that the cell could run on are in several regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub region: Option<String>,
    /// Value of the node label `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub zone: Option<String>,
    /// Further labels that the nodes of this cell's pods must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::label_map")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that this cell's pods put up with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub tolerations: Vec<Toleration>,
    /// Keep pods of other cells off the nodes that this cell's pods run on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dedicated_nodes: bool,
}

/// A pod's toleration, as in the core API.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''")
        .message("a toleration with operator Exists has no value; remove value, or use operator Equal"),
    validation = Rule::new("(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')")
        .message("a toleration without key needs operator Exists; it then tolerates every taint"),
    validation = Rule::new("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')")
        .message("tolerationSeconds needs effect NoExecute"),
)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint. Absent means every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub key: Option<String>,
    /// `Exists` looks at the key alone, `Equal` at the value too. Absent means `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint, for `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Which effect of the taint. Absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a pod stays under a taint with effect `NoExecute`. Absent means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    Exists,
    Equal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// What the cell can carry, over all its pods. Past it, routers shed or go elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Transactions begun per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub requests_per_second: Option<u32>,
    /// Transactions under way at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub in_flight: Option<u32>,
}

/// Limits of the namespace, as a ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// Sum of CPU requests, a Kubernetes quantity such as `8` or `500m`.
    #[serde(default, deserialize_with = "crate::quantity::read", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub cpu: Option<String>,
    /// Sum of memory requests and limits, a Kubernetes quantity such as `16Gi`.
    #[serde(default, deserialize_with = "crate::quantity::read", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub memory: Option<String>,
    /// Number of pods, the two of the cell-runtime among them.
    #[serde(default, deserialize_with = "crate::quantity::read", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub pods: Option<String>,
}

/// What the operator saw.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The namespace that was made for this cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// UID of that namespace: the second proof, beside its annotation, that it is ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub namespace_uid: Option<String>,
    /// Revision of the template that the cell's workload is made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub current_revision: Option<String>,
    /// Revision that the cell is being brought to; the same as `currentRevision` when nothing is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub update_revision: Option<String>,
    /// Percent, 0 to 100, after TrafficShifts and the ramp, as the routers apply it; the lowest of them where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub effective_weight: Option<u32>,
    /// Since when the cell's orchestrators have said ready, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub ready_since: Option<String>,
    /// Transactions under way, shown only while the cell drains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// What is so, with the reason and what to do about it.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl Cell {
    /// The name; a Cell without one was never stored.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn namespace_name(&self) -> String {
        names::namespace_of(self.name())
    }

    /// Weight after `state`: what the spec alone says, before shifts and ramps.
    pub fn spec_weight(&self) -> u32 {
        match self.spec.state {
            CellState::Active => self.spec.weight.min(100),
            CellState::Drained | CellState::Disabled => 0,
        }
    }
}
