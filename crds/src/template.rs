//! `CellTemplate`: what one cell is made of.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::condition::Condition;
use crate::duration::Duration;

/// The objects, parameters and services that make one cell.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "CellTemplate",
    plural = "celltemplates",
    category = "bulkhead",
    status = "CellTemplateStatus",
    derive = "PartialEq",
    cel,
    doc = "What one cell is made of: objects, parameters, and the services that its orchestrator needs.",
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.latestRevision"),
    printcolumn(name = "Cells", type_ = "integer", json_path = ".status.cells"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedCells"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 50")
        .message("metadata.name must be at most 50 characters: the names and labels of revisions are made from it")
)]
#[x_kube(
    cel,
    validation = Rule::new("has(self.entry) != (has(self.steps) && size(self.steps) > 0)")
        .message("set either entry (one service takes whole transactions) or steps (the orchestrator calls services in turn)"),
    validation = Rule::new("!has(self.entry) || self.services.exists(s, s.name == self.entry.service)")
        .message("entry.service is not one of services; add it there with its port and readiness path"),
    validation = Rule::new("!has(self.steps) || self.steps.all(t, !has(t.service) || self.services.exists(s, s.name == t.service))")
        .message("a step names a service that is not one of services; add it there with its port and readiness path"),
)]
#[serde(rename_all = "camelCase")]
pub struct CellTemplateSpec {
    /// Kubernetes objects of the allowed kinds. `${cell.name}` and `${values.NAME}` are replaced in their strings; `$${` stays `${`. A Job must not set `ttlSecondsAfterFinished`, because it would be made and run again whenever it is removed.
    #[schemars(length(min = 1, max = 128), schema_with = "crate::schema::embedded_objects")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub objects: Vec<Value>,
    /// What Cells may set in `values`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub parameters: Vec<Parameter>,
    /// The services that the orchestrator needs and watches.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub services: Vec<Service>,
    /// The service that takes whole transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
    /// What a transaction passes in turn: services that the orchestrator calls, and destinations that the router sends to. The body of each answer is the body of the next message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub steps: Vec<Step>,
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// What Cells name it in `values`, and objects in `${values.NAME}`.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-zA-Z][a-zA-Z0-9_]*$"))]
    pub name: String,
    /// Which JSON type the value must have.
    #[serde(default)]
    pub r#type: ParameterType,
    /// Used where a Cell sets no value. Without it the value is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::scalar")]
    pub default: Option<Value>,
    /// The values allowed. Empty allows any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), schema_with = "crate::schema::scalar_list")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub r#enum: Vec<Value>,
    /// A regular expression that a string value must match as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub pattern: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ParameterType {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
}

/// A service of the cell, as a Kubernetes Service among the template's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Name of the Service, in the cell's namespace.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its port on the pods, for calls and for readiness. Where the Service has a single port, that one is used.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Asked by the orchestrator with GET every 200 ms; 200 to 399 within 500 ms means ready. The service of an entry of protocol `h2c` is asked in HTTP/2; under `/grpc.health.v1.Health/Check` as gRPC asks, where SERVING means ready.
    #[serde(default = "default_readiness_path")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub readiness_path: String,
    /// Ready pods without which the cell is not ready.
    #[serde(default = "default_min_ready")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_ready: u32,
    /// Whether the cell is ready only with it. One that is not required is watched and shown, and no more.
    #[serde(default = "required")]
    pub required: bool,
}

fn default_readiness_path() -> String {
    "/readyz".to_owned()
}

fn default_min_ready() -> u32 {
    1
}

fn required() -> bool {
    true
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.contextVersions) || size(self.contextVersions) == 0 || (has(self.protocol) && self.protocol == 'bulkhead')")
        .message("contextVersions belongs to protocol bulkhead"),
)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Name of one of `services`.
    #[schemars(length(min = 1, max = 63))]
    pub service: String,
    /// `http1`: HTTP/1.1; the service knows nothing of transactions. `h2c`: the same over HTTP/2 in the clear, with prior knowledge, as services of gRPC speak it. `bulkhead`: HTTP/1.1 with the fields of docs/protocol.md, by which the service gives transactions back and reaches Destinations.
    #[serde(default)]
    pub protocol: EntryProtocol,
    /// Versions of contexts that the service can go on from; for protocol `bulkhead`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 64), regex(pattern = "^[!-~]+$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub context_versions: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EntryProtocol {
    /// HTTP/1.1; the service knows nothing of transactions.
    #[default]
    Http1,
    /// The same over HTTP/2 in the clear.
    H2c,
    /// HTTP/1.1 with Bulkhead's own fields.
    Bulkhead,
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("has(self.service) != has(self.destination)")
        .message("a step names either a service (the orchestrator posts to it) or a destination (the router sends to it)"),
    validation = Rule::new("has(self.service) == has(self.path)")
        .message("a step with a service needs path, and a step with a destination has none: the Destination says where it goes"),
    validation = Rule::new("!has(self.timeout) || duration(self.timeout) > duration('0s')").message("timeout must be longer than 0s"),
)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Name of one of `services`, which is posted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub service: Option<String>,
    /// Path that the orchestrator posts to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub path: Option<String>,
    /// Name of a Destination that gets the body; its answer is the body of the next step. The service before it may name another in `bulkhead-destination` of its answer. The Cell has to name each of them in `destinations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub destination: Option<String>,
    /// How long a service may take. A Destination has time-outs of its own.
    #[serde(default = "default_step_timeout")]
    pub timeout: Duration,
}

fn default_step_timeout() -> Duration {
    Duration::from_secs(5)
}

/// What the operator saw.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellTemplateStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the ControllerRevision that holds the newest accepted spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub latest_revision: Option<String>,
    /// Cells that use this template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<u32>,
    /// Of these, the cells that run its newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_cells: Option<u32>,
    /// What is so, with the reason and what to do about it.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
