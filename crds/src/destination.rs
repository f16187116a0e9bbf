//! `Destination`: a system outside every cell, reached only through the router.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::duration::Duration;

/// A system outside every cell. Cells name it in `spec.destinations`; the router alone speaks to it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "Destination",
    plural = "destinations",
    shortname = "dest",
    category = "bulkhead",
    status = "DestinationStatus",
    derive = "PartialEq",
    cel,
    doc = "A system outside every cell, reached only through the router.",
    printcolumn(name = "Endpoints", type_ = "string", json_path = ".spec.endpoints[*]"),
    printcolumn(name = "Effects", type_ = "boolean", json_path = ".spec.pointOfNoReturn"),
    printcolumn(name = "Check", type_ = "string", json_path = ".spec.duplicateCheck.type"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[x_kube(
    cel,
    validation = Rule::new("has(self.http) != has(self.connect)")
        .message("set either http (the router sends messages) or connect (the router opens tunnels)"),
    validation = Rule::new("!has(self.http) || (has(self.pointOfNoReturn) && !self.pointOfNoReturn) || has(self.duplicateCheck)")
        .message("duplicateCheck must be written where there are effects: type Header with the header that the destination checks, or type None if it checks nothing; set pointOfNoReturn: false if calls have no effect"),
    validation = Rule::new("!has(self.connect) || (!has(self.duplicateCheck) && !has(self.tls))")
        .message("duplicateCheck and tls belong to http: what goes through a tunnel is the cell's and the router cannot read it"),
)]
#[serde(rename_all = "camelCase")]
pub struct DestinationSpec {
    /// It takes HTTP/1.1 requests, which cells hand to the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpDestination>,
    /// It is reached through tunnels (CONNECT, RFC 9110, section 9.3.6): for time, keys, object storage. What cells do through one cannot be fenced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<ConnectDestination>,
    /// `host:port` of each of its servers. One that is not reached is passed over for the next.
    #[schemars(
        length(min = 1, max = 16),
        inner(
            length(min = 3, max = 260),
            regex(pattern = r"^[^\s:/@]+:[0-9]{1,5}$|^\[[0-9a-fA-F:.]+\]:[0-9]{1,5}$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<DestinationTls>,
    /// Whether calls have effects: a transaction whose message may have reached it is finished and never restarted.
    #[serde(default = "yes")]
    pub point_of_no_return: bool,
    /// How the destination tells a message that it has seen before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_check: Option<DuplicateCheck>,
    /// Time that must be left to the caller's deadline when a message is about to be sent; with less it is not.
    #[serde(default)]
    pub min_time: Duration,
    /// How long a connection, TLS included, may take.
    #[serde(default = "default_connect_timeout")]
    pub connect_timeout: Duration,
    /// How long the whole answer may take. Past it the outcome is unknown.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    #[serde(default)]
    pub limits: DestinationLimits,
    /// Networks in which the names of `endpoints` may lie although they are link-local, loopback, private or the cluster's own. An endpoint that is written as an address needs no leave. On Kubernetes no router ever connects to its own loopback, whatever is written here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 3, max = 50), regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub allowed_networks: Vec<String>,
}

fn yes() -> bool {
    true
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(1)
}

fn default_timeout() -> Duration {
    Duration::from_secs(5)
}

/// How messages are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpDestination {
    /// Path of messages, unless the cell names one below it.
    #[serde(default = "default_path")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub path: String,
    /// Value of `host`. Absent: the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 260), regex(pattern = r"^[^\s/@]+$"))]
    pub host: Option<String>,
}

fn default_path() -> String {
    "/".to_owned()
}

/// Tunnels to the endpoints and to nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectDestination {
    /// How long a tunnel may carry nothing before it is closed.
    #[serde(default = "default_idle_timeout")]
    pub idle_timeout: Duration,
}

fn default_idle_timeout() -> Duration {
    Duration::from_secs(60)
}

/// Certificates come from folders of the router's `--tls-dir`, which the chart fills from Secrets of the router's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DestinationTls {
    /// Name that its certificate must carry. Absent: the host of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// Secret with `ca.crt`, the authorities that its certificate may come from.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub ca_secret: String,
    /// Secret with `tls.crt` and `tls.key`, for destinations that ask who calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub certificate_secret: Option<String>,
}

/// What makes a second message with the same id and number harmless.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("self.type != 'Header' || has(self.header)")
        .message("type Header needs header, the field in which the destination looks for the id"),
    validation = Rule::new("self.type != 'None' || (!has(self.header) && !has(self.window))")
        .message("type None has no header and no window"),
)]
#[serde(rename_all = "camelCase")]
pub struct DuplicateCheck {
    /// `Header`: it executes a message once for each value of a header field. `None`: it executes whatever comes.
    pub r#type: DuplicateCheckType,
    /// The field that gets `ID/N`: the transaction's id and the number of the message in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_|~-]+$"))]
    pub header: Option<String>,
    /// For how long the destination remembers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DuplicateCheckType {
    #[default]
    Header,
    None,
}

/// Of one router process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DestinationLimits {
    /// Messages, or tunnels, under way at the same time. Past it a message is not sent, and the cell is told so at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub in_flight: u32,
    /// Bytes of an answer's body; a longer one leaves the outcome unknown.
    #[schemars(schema_with = "crate::schema::byte_size")]
    pub answer_bytes: String,
}

impl Default for DestinationLimits {
    fn default() -> Self {
        Self { in_flight: 1_000, answer_bytes: "256Ki".to_owned() }
    }
}

/// What the operator saw.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DestinationStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every router serves this generation. `DuplicateChecked`: False where a message that was sent twice would be executed twice.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
