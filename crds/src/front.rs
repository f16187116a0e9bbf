//! What stands between a listener's socket and HTTP: TLS, the PROXY protocol, and whom to believe about clients.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Certificates come from folders of the router's `--tls-dir`, which the chart fills from Secrets of the router's namespace. Changed ones hold for new handshakes within a few seconds; connections go on.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerTls {
    /// What the listener shows. Which of them, the name decides that the client asks for (SNI, RFC 6066, section 3): an exact name before a wildcard, of two with the same name the earlier. Who asks for none or another gets the first.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["secret".into()]))]
    pub certificates: Vec<ListenerCertificate>,
    /// Whom clients' certificates must come from. Absent: clients are not asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_authority: Option<ClientAuthority>,
    /// The oldest version of TLS that clients may speak; 1.3 is the newest.
    #[serde(default)]
    pub min_version: TlsVersion,
}

/// One certificate with its key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerCertificate {
    /// Secret with `tls.crt`, the certificate and those between it and its authority, and `tls.key`.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub secret: String,
    /// Names that it is shown for; `*.` stands for one label. Absent: those that the certificate carries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub hosts: Vec<String>,
}

/// Certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientAuthority {
    /// Secret with `ca.crt`, the authorities that they may come from. All of them are trusted to name any client.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub secret: String,
    /// Let clients in that show none. One that shows a wrong one is refused nevertheless.
    #[serde(default)]
    pub optional: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsVersion {
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    #[serde(rename = "1.3")]
    V1_3,
}

/// Before anything else, TLS included, a proxy says for whom it has connected (the PROXY protocol, versions 1 and 2).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyProtocol {
    /// Networks of those proxies. A connection from there must begin with the header, and one without is refused. From elsewhere the header is not read: else whoever reaches the listener could pass for any address.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 3, max = 50), regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub from: Vec<String>,
}

/// What cells are told of the way that a request came: `x-forwarded-for`, `-proto` and `-host`, or `forwarded` (RFC 7239).
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.fields) || self.fields != 'None' || !has(self.trust) || size(self.trust) == 0")
        .message("with fields None nothing that was forwarded reaches a cell, so that there is nobody to trust; remove trust, or choose other fields"),
)]
#[serde(rename_all = "camelCase")]
pub struct ForwardedRules {
    /// Networks of proxies that are believed: what they forward is kept and added to. What anybody else says in `forwarded` or a field of `x-forwarded-` is taken off. Absent: nobody is believed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 3, max = 50), regex(pattern = "^[0-9a-fA-F:.]+/[0-9]{1,3}$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub trust: Vec<String>,
    /// Which fields reach cells. The others are taken off, whoever sent them. `XForwarded`: those of `x-forwarded-`. `Forwarded`: that of RFC 7239. `Both`. `None`.
    #[serde(default)]
    pub fields: ForwardedFields,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForwardedFields {
    #[default]
    XForwarded,
    Forwarded,
    Both,
    None,
}
