//! `RoutingPolicy`: which cell handles which transaction, in rules that an app team can own.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::duration::Duration;

/// Rules of one application, attached to listeners of Routers.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "RoutingPolicy",
    plural = "routingpolicies",
    shortname = "rpol",
    category = "bulkhead",
    namespaced,
    status = "RoutingPolicyStatus",
    derive = "PartialEq",
    cel,
    doc = "Which cell handles which transaction.",
    printcolumn(name = "Precedence", type_ = "integer", json_path = ".spec.precedence"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.parents[*].conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = ".status.parents[*].conditions[?(@.type==\"Programmed\")].status"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Shares", type_ = "string", json_path = ".status.rules[*].shares", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct RoutingPolicySpec {
    /// The listeners that these rules are attached to.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["router".into(), "listener".into()]))]
    pub parent_refs: Vec<ParentRef>,
    /// Higher goes first; then the older policy; then namespace and name; then the order of rules. Never the longest match.
    #[serde(default = "default_precedence")]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub precedence: i32,
    /// The first rule that matches decides.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub rules: Vec<RoutingRule>,
}

fn default_precedence() -> i32 {
    100
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    /// Name of a Router.
    #[schemars(length(min = 1, max = 63))]
    pub router: String,
    /// Name of one of its listeners.
    #[schemars(length(min = 1, max = 63))]
    pub listener: String,
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.owner) || !self.owner || size(self.groups) == 1")
        .message("owner: true names one owning cell per key, so it takes exactly one group"),
    validation = Rule::new("!has(self.key) || [has(self.key.header), has(self.key.query), has(self.key.jsonPointer), has(self.key.attribute)].filter(x, x).size() == 1")
        .message("key names exactly one source: header, query, jsonPointer or attribute; leave key out to use the transaction's id"),
    validation = Rule::new("!has(self.owner) || !self.owner || has(self.key)")
        .message("owner: true needs a key: without one there is nothing that a cell could own"),
)]
#[serde(rename_all = "camelCase")]
pub struct RoutingRule {
    /// What shifts, metrics and answers name the rule.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Any of these must match. Empty matches every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub matches: Vec<Match>,
    /// What picks the cell: the same key goes to the same cell at constant weights. Absent: the transaction's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Source>,
    /// In order of priority: the first that is healthy enough takes all.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub groups: Vec<Group>,
    /// Only the cell that policy weights choose for the key may serve it; when that cell is out, refuse (strong consistency).
    /// A key that an edit of the policy moves is answered 503 (`OwnerMoving`) until every router has the new table and nothing
    /// that an older one sent to a cell is under way (`status.settledGeneration`). A rule that is new, has another name or
    /// takes another key moves all of its keys. With the operator gone a moved key stays 503; a router that serves the
    /// table of its disk refuses all keys, since that table may be old. Routers that read a folder are not fenced from each other.
    #[serde(default)]
    pub owner: bool,
    #[serde(default)]
    pub restart: Restart,
    #[serde(default)]
    pub failback: Failback,
}

/// All of these must hold.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Conditions on the request.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub all: Vec<MatchCondition>,
}

/// A part of the request, and what it must look like. Values are compared as bytes; header names without regard to case.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("[has(self.header), has(self.query), has(self.jsonPointer), has(self.attribute)].filter(x, x).size() == 1")
        .message("name exactly one source: header, query, jsonPointer or attribute"),
    validation = Rule::new("[has(self.exact), has(self.prefix), has(self.suffix), has(self.range), has(self.__in__) && size(self.__in__) > 0].filter(x, x).size() == 1")
        .message("name exactly one comparison: exact, prefix, suffix, range or in"),
)]
#[serde(rename_all = "camelCase")]
pub struct MatchCondition {
    #[serde(flatten)]
    pub source: Source,
    /// The whole value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub exact: Option<String>,
    /// What the value begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: Option<String>,
    /// What the value ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub suffix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<Range>,
    /// Whole values, any of which may be it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub r#in: Vec<String>,
}

/// Decimal numbers of at most 38 digits, both ends included. A value that is no such number does not match.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("size(self.from) != size(self.to) || self.from <= self.to")
        .message("range.from is greater than range.to, so nothing could match; swap them"),
)]
pub struct Range {
    /// The least number that matches.
    #[schemars(length(max = 38), regex(pattern = "^[0-9]{1,38}$"))]
    pub from: String,
    /// The greatest number that matches.
    #[schemars(length(max = 38), regex(pattern = "^[0-9]{1,38}$"))]
    pub to: String,
}

/// A part of a request that rules compare and keys are taken from. Exactly one field is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Name of a header field; of a repeated one, the first value counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub header: Option<String>,
    /// Name of a query parameter, decoded; of a repeated one, the first value counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub query: Option<String>,
    /// A JSON pointer (RFC 6901) into the body; strings, numbers (as written) and booleans count. A body that is no JSON is answered with 400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^(/([^/~]|~[01])*)+$"))]
    pub json_pointer: Option<String>,
    /// A part of the request line or its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribute: Option<Attribute>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Attribute {
    /// The path, as sent and without the query.
    Path,
    /// The method, in capitals.
    Method,
    /// The host, in small letters and without a port.
    Host,
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The cells that share the group's traffic.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub cells: Vec<CellWeight>,
    /// Percent of policy weight that must be in, of the policy weight of cells not drained; below it the next group takes over.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub min_healthy_percent: u32,
}

/// A cell and its weight beside others of its group. Weights are relative: they need not sum to anything. 0 sends nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CellWeight {
    /// Name of a Cell.
    #[schemars(length(min = 1, max = 50))]
    pub name: String,
    /// Its part of the sum of weights. 0 sends nothing.
    #[serde(default = "default_cell_weight")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
}

fn default_cell_weight() -> u32 {
    100
}

/// When a transaction that failed in one cell is tried in another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.deadline) || duration(self.deadline) > duration('0s')", "message": "restart.deadline must be longer than 0s"},
    {"rule": "!has(self.perAttempt) || duration(self.perAttempt) > duration('0s')", "message": "restart.perAttempt must be longer than 0s; leave it out to give every attempt the whole deadline"}
]))]
#[serde(rename_all = "camelCase", default)]
pub struct Restart {
    /// `SafeOnly`: only what was provably not processed, and idempotent methods (RFC 9110, section 9.2.2). `UntilPointOfNoReturn`: whatever failed, as long as no message may have reached a Destination with effects; for cells whose every effect goes through Destinations. `Never`: one attempt.
    pub policy: RestartPolicy,
    /// Attempts in all, the first among them.
    #[schemars(range(min = 1, max = 16))]
    pub max_attempts: u32,
    /// From the request's arrival to the last byte of the answer's head.
    pub deadline: Duration,
    /// How long one attempt may take. Absent: the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_attempt: Option<Duration>,
    /// Bodies up to this size are held whole before the first attempt.
    #[schemars(schema_with = "crate::schema::byte_size")]
    pub buffer_limit: String,
    /// What becomes of a larger body. `Reject`: it is answered with 413. `Stream`: it goes to one cell and is never restarted.
    pub too_large: TooLarge,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            policy: RestartPolicy::default(),
            max_attempts: 3,
            deadline: Duration::from_secs(15),
            per_attempt: None,
            buffer_limit: "256Ki".to_owned(),
            too_large: TooLarge::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// Only what was provably not processed, and idempotent methods (RFC 9110, section 9.2.2).
    #[default]
    SafeOnly,
    /// Whatever failed, until a message may have reached a Destination with effects. From then on it is finished, by its context.
    UntilPointOfNoReturn,
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TooLarge {
    /// A body above `bufferLimit` is answered with 413.
    #[default]
    Reject,
    /// A body above `bufferLimit` is streamed to one cell and never restarted.
    Stream,
}

/// How a cell that was out comes back: not at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.steps) || (self.steps.isSorted() && self.steps.exists(s, s == 100))", "message": "failback.steps must rise and end with 100, such as [5, 25, 50, 100]"}
]))]
#[serde(rename_all = "camelCase", default)]
pub struct Failback {
    /// How long the cell must have been ready before it gets anything.
    pub hold_down: Duration,
    /// Percent of its weight, step by step, rising; the last is 100.
    #[schemars(length(min = 1, max = 16), inner(range(min = 1, max = 100)), extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<u32>,
    /// How long each step lasts.
    pub interval: Duration,
}

impl Default for Failback {
    fn default() -> Self {
        Self {
            hold_down: Duration::from_secs(10),
            steps: vec![5, 25, 50, 100],
            interval: Duration::from_secs(10),
        }
    }
}

/// What the operator learned from the routers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutingPolicyStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where the policy has `owner` rules: the newest generation that every router pod that is not gone serves, with nothing
    /// under way at an owner by an earlier one. Until it is that of the spec, keys that move are answered 503.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_generation: Option<i64>,
    /// `Ready`: accepted, resolved and programmed by every parent. `AllDrained`, only where it is so: a rule has no cell left that is not drained, and all that it matches is answered 503.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// What each listener makes of the policy.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["router".into(), "listener".into()]))]
    pub parents: Vec<ParentStatus>,
    /// Where the traffic of each rule goes now.
    #[serde(default)]
    #[schemars(length(max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub rules: Vec<RuleStatus>,
}

/// What one listener makes of the policy: `Accepted`, `ResolvedRefs`, `Programmed`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// Name of the Router.
    #[schemars(length(max = 63))]
    pub router: String,
    /// Name of its listener.
    #[schemars(length(max = 63))]
    pub listener: String,
    /// `Accepted`, `ResolvedRefs` and `Programmed`.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Where a rule's traffic goes now.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// Name of the rule.
    #[schemars(length(max = 63))]
    pub name: String,
    /// `CELL=PERCENT` for each cell with a share, such as `payments-a=80.0%`.
    #[serde(default)]
    #[schemars(length(max = 512), inner(length(max = 80)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub shares: Vec<String>,
}
