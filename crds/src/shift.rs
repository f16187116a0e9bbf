//! `TrafficShift`: an override of weights with a reason and an end, laid over spec by the routers themselves.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cell::CellState;
use crate::condition::Condition;
use crate::policy::CellWeight;

/// An incident's or an upgrade's override of a cell's weight or of a rule's weights.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "TrafficShift",
    plural = "trafficshifts",
    shortname = "shift",
    category = "bulkhead",
    status = "TrafficShiftStatus",
    derive = "PartialEq",
    cel,
    doc = "An override of a cell's weight or state, or of a rule's weights, with a reason and an end.",
    printcolumn(name = "Cell", type_ = "string", json_path = ".spec.cell"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight"),
    printcolumn(name = "State", type_ = "string", json_path = ".spec.state"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy.name"),
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.owner"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expiresAt"),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Programmed\")].status"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason")
)]
#[x_kube(
    cel,
    validation = Rule::new("has(self.cell) != has(self.policy)")
        .message("set either cell (with weight or state) or policy (with weights)"),
    validation = Rule::new("!has(self.cell) || (has(self.weight) != has(self.state))")
        .message("a shift of a cell needs either weight or state"),
    validation = Rule::new("has(self.cell) || (!has(self.weight) && !has(self.state))")
        .message("weight and state belong to a shift of a cell; a shift of a policy has weights"),
    validation = Rule::new("has(self.policy) == (has(self.weights) && size(self.weights) > 0)")
        .message("a shift of a policy needs weights, and only such a shift has them"),
    validation = Rule::new("self.owner == 'Operator' || has(self.expiresAt)")
        .message("expiresAt is needed, so that no shift is forgotten; only the operator's own shifts have no end"),
    validation = Rule::new("self.owner == oldSelf.owner && (has(self.cell) ? self.cell : '') == (has(oldSelf.cell) ? oldSelf.cell : '')")
        .message("owner and cell cannot be changed; make a new TrafficShift"),
    validation = Rule::new("has(self.policy) == has(oldSelf.policy) && (!has(self.policy) || self.policy == oldSelf.policy)")
        .message("policy cannot be changed; make a new TrafficShift"),
)]
#[serde(rename_all = "camelCase")]
pub struct TrafficShiftSpec {
    /// The cell whose weight or state is overridden. Of several shifts for one cell, the lowest share holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 50))]
    pub cell: Option<String>,
    /// Percent, 0 to 100; it can lower the cell's own weight and never raise it above what spec says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub weight: Option<u32>,
    /// Instead of a weight: `Drained` takes no new transaction and finishes what it has; `Disabled` also gives back what is in flight, as far as its rules let it be restarted elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<CellState>,
    /// The rule whose weights are overridden. Of several shifts for one rule, the newest holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<RuleReference>,
    /// New weights of that rule's cells, by name. Cells not named keep theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub weights: Vec<CellWeight>,
    /// Why, for whoever finds it in the night.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// When it ends by itself, in RFC 3339. Routers apply it by their own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::date_time")]
    pub expires_at: Option<String>,
    /// Who made it and removes it.
    #[serde(default)]
    pub owner: ShiftOwner,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ShiftOwner {
    /// A person or a tool of theirs: it must expire.
    #[default]
    User,
    /// The operator, for an upgrade or a deletion: the operator removes it.
    Operator,
}

/// One rule of one RoutingPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleReference {
    /// Namespace of the RoutingPolicy.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the RoutingPolicy.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Name of the rule in it.
    #[schemars(length(min = 1, max = 63))]
    pub rule: String,
}

/// What the operator saw.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficShiftStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What is so, with the reason and what to do about it.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
