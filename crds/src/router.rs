//! `Router`: the listeners that a set of router processes serves.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::duration::Duration;
pub use crate::front::{
    ClientAuthority, ForwardedFields, ForwardedRules, ListenerCertificate, ListenerTls, ProxyProtocol,
    TlsVersion,
};

/// The way into the cells. A router process serves one of these (`--router NAME`).
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "Router",
    plural = "routers",
    category = "bulkhead",
    status = "RouterStatus",
    derive = "PartialEq",
    cel,
    doc = "The listeners that a set of router processes serves.",
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.currentReplicas"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must be at most 63 characters: the pods of the router carry it as a label")
)]
#[x_kube(
    cel,
    validation = Rule::new("self.listeners.all(l, self.listeners.exists_one(m, m.port == l.port))")
        .message("two listeners have the same port; give each its own"),
)]
#[serde(rename_all = "camelCase")]
pub struct RouterSpec {
    /// Where clients come in.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub listeners: Vec<Listener>,
    /// How long a router that stops, or a cell that is drained, lets what is in flight finish. What is left then is cut: streams without an end, upgraded connections, and whatever takes longer.
    #[serde(default = "default_drain_timeout")]
    pub drain_timeout: Duration,
    /// Namespaces whose RoutingPolicies may attach. Empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_namespaces: Vec<String>,
    /// What of a router's own requests may speak against a cell beside its siblings, the other cells of its groups.
    #[serde(default)]
    pub evidence: Evidence,
    /// How routers connect to Cells with `endpoints` of their own, for transactions and for health. Absent: in the clear. Cells of a template lie in this cluster, behind its walls, and are spoken to in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell_tls: Option<CellTls>,
}

/// A cell that does far worse than its siblings gets nothing for a while, and comes back by steps: never more than a third of a group, and none of an `owner` rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// Attempts that fail by the cell's own fault: no connection, one that breaks, no answer in time, an answer of 5xx.
    pub errors: bool,
    /// Answers that take long. To be set to false where cells may differ, as those of other zones.
    pub latency: bool,
}

impl Default for Evidence {
    fn default() -> Self {
        Self { errors: true, latency: true }
    }
}

/// Certificates come from folders of the router's `--tls-dir`, as those of listeners do. A cell's must carry the Cell's name as a DNS name, so that none can pass for another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CellTls {
    /// Secret with `ca.crt`, the authorities that cells' certificates may come from.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub ca_secret: String,
    /// Secret with `tls.crt` and `tls.key`, for cells that ask who calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub certificate_secret: Option<String>,
}

fn default_drain_timeout() -> Duration {
    Duration::from_secs(30)
}

#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.idempotency) || !has(self.idempotency.principalFrom) || self.idempotency.principalFrom != 'ClientCertificate' || (has(self.tls) && has(self.tls.clientAuthority))")
        .message("principalFrom ClientCertificate needs tls.clientAuthority: without it no client is asked for a certificate"),
)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// What RoutingPolicies name it in `parentRefs`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// TCP port of every router process.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// `HTTP`: HTTP/1.1 and HTTP/2, over TLS where `tls` is set.
    #[serde(default)]
    pub protocol: Protocol,
    /// Absent: plain TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<ListenerTls>,
    /// Absent: nobody's PROXY protocol is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
    #[serde(default)]
    pub forwarded: ForwardedRules,
    /// Answer with `bulkhead-cell`, `bulkhead-rule` and `bulkhead-attempts`. They show the topology, so it is off by default.
    #[serde(default)]
    pub explain: bool,
    /// Ids from the clients' own idempotency keys. Absent: every request is a transaction of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Idempotency>,
    #[serde(default)]
    pub limits: Limits,
}

/// The same key of the same principal is the same transaction: it is joined or refused while it is under way, and refused with 409 once it had an effect.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.principalFrom) || self.principalFrom != 'ClientCertificate' || !has(self.principalHeader)")
        .message("with principalFrom ClientCertificate the certificate alone says who calls; remove principalHeader"),
    validation = Rule::new("!has(self.principalFrom) || self.principalFrom != 'Header' || has(self.principalHeader)")
        .message("principalFrom Header needs principalHeader, the field that says who calls"),
)]
#[serde(rename_all = "camelCase")]
pub struct Idempotency {
    /// The field that carries the key, 1 to 255 visible ASCII characters. A request without it is a transaction of its own.
    #[serde(default = "default_key_header")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub header: String,
    /// Who says whose key it is. `Header`: the field `principalHeader`. `ClientCertificate`: the certificate that the client showed, by its subject, so that a renewed one is the same client's; a request with a key and without a certificate is answered with 400. Absent: `Header` where `principalHeader` is set, else nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_from: Option<PrincipalFrom>,
    /// The field in which whoever authenticates clients says who calls; a request with a key and without it is answered with 400. Without it and `principalFrom` all clients share their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub principal_header: Option<String>,
    /// What becomes of a request whose transaction is under way. `Join`: it gets the same answer. `Conflict`: 409, reason `InFlight`.
    #[serde(default)]
    pub on_repeat: OnRepeat,
}

fn default_key_header() -> String {
    "idempotency-key".to_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PrincipalFrom {
    Header,
    ClientCertificate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRepeat {
    #[default]
    Join,
    Conflict,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
}

/// Past any of these the router refuses at once, with a reason; it never queues without bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.headerTimeout) || duration(self.headerTimeout) > duration('0s')", "message": "headerTimeout must be longer than 0s"},
    {"rule": "!has(self.bodyTimeout) || duration(self.bodyTimeout) > duration('0s')", "message": "bodyTimeout must be longer than 0s"},
    {"rule": "!has(self.idleTimeout) || duration(self.idleTimeout) > duration('0s')", "message": "idleTimeout must be longer than 0s"}
]))]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Open client connections on this listener of one router process.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections: u32,
    /// Requests under way on this listener of one router process. While another cell serves, none has more than half of these.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub in_flight: u32,
    /// Requests under way on one connection in HTTP/2. A client that opens more has them refused (REFUSED_STREAM), so that it
    /// may send them again.
    #[schemars(range(min = 1, max = 10_000))]
    pub streams: u32,
    /// Bytes of a request's head; in HTTP/2 with 32 more for each field (RFC 9113, section 6.5.2).
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub header_bytes: u32,
    /// Bytes of request bodies held at the same time by one router process. They take up to a third more of its memory, and
    /// each connection of a client 40 KiB.
    #[schemars(schema_with = "crate::schema::byte_size")]
    pub buffer_total: String,
    /// How long a client may take to send a request's head; and before the first, for the PROXY header and the TLS handshake together.
    pub header_timeout: Duration,
    /// How long a client may take to send a request's body. The deadline of its rule may be over sooner.
    pub body_timeout: Duration,
    /// How long a connection may stay idle between requests.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            in_flight: 10_000,
            streams: 100,
            header_bytes: 65_536,
            buffer_total: "256Mi".to_owned(),
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// What the operator learned from the routers.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouterStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Router pods that are not gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Of these, the pods that serve the newest table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<u32>,
    /// What is so, with the reason and what to do about it.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
