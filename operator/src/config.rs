//! Flags of the operator. What they lead to is decided where they are used.

use std::net::SocketAddr;

use bulkhead_process::logs::LogArgs;
use clap::{Parser, Subcommand, ValueEnum};
use kube::core::ApiResource;

/// Turns Cells into isolated namespaces with their workload, rolls templates out cell by cell, and reports.
#[derive(Parser, Clone, Debug)]
#[command(name = "bulkhead-operator", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub config: Config,
}

/// What to do instead of operating.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Fail while Cells exist: without the operator nothing would ever drain and remove them.
    PreDeleteCheck {
        /// Only warn.
        #[arg(long)]
        force: bool,
    },
}

/// Flags of the operator itself.
#[derive(clap::Args, Clone, Debug)]
pub struct Config {
    /// Namespace that the operator itself runs in: its lease and the revisions of templates are kept there.
    #[arg(long, env = "POD_NAMESPACE", default_value = "bulkhead-system")]
    pub namespace: String,
    /// Name that this process holds the lease under; the pod's name in a cluster.
    #[arg(long, env = "POD_NAME", default_value = "bulkhead-operator")]
    pub pod_name: String,
    /// Image of the cell-runtime.
    #[arg(long, env = "CELL_RUNTIME_IMAGE", default_value = "localhost/bulkhead/cell-runtime:dev")]
    pub cell_runtime_image: String,
    #[arg(long, value_enum, default_value_t)]
    pub image_pull_policy: PullPolicy,
    /// What to do where the cluster is found not to enforce NetworkPolicies. Without effect until walls are probed: `Isolated` is Unknown.
    #[arg(long, value_enum, default_value_t)]
    pub unenforced: Unenforced,
    /// Name of the Lease that decides which operator writes.
    #[arg(long, default_value = "bulkhead-operator")]
    pub lease_name: String,
    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, default_value = "0.0.0.0:9090")]
    pub admin_address: SocketAddr,
    /// A further kind that templates may contain, as GROUP/VERSION/KIND/PLURAL; may be repeated.
    #[arg(long, value_parser = parse_kind, value_delimiter = ',')]
    pub extra_kinds: Vec<ApiResource>,
    /// Where the API server is reached from cells, as CIDRs, on every port; may be repeated. Absent: what the
    /// EndpointSlices of default/kubernetes say.
    #[arg(long, value_delimiter = ',')]
    pub api_server_cidrs: Vec<String>,
    /// Take Cells with spec.endpoints, which no wall of this cluster protects.
    #[arg(long)]
    pub allow_endpoints: bool,
    /// Namespace of the router pods. Absent: the operator's own.
    #[arg(long)]
    pub router_namespace: Option<String>,
    #[command(flatten)]
    pub logs: LogArgs,
}

impl Config {
    pub fn router_namespace(&self) -> &str {
        self.router_namespace.as_deref().unwrap_or(&self.namespace)
    }
}

/// When images are pulled, in Kubernetes' own words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Unenforced {
    /// Cells are not Ready.
    #[default]
    Refuse,
    /// Cells are Ready, and a condition says that they are not isolated.
    Warn,
}

fn parse_kind(text: &str) -> Result<ApiResource, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let [group, version, kind, plural] = parts[..] else {
        return Err(format!(
            "{text:?} is not GROUP/VERSION/KIND/PLURAL; write apps/v1/DaemonSet/daemonsets, or /v1/KIND/PLURAL for the core group"
        ));
    };
    if version.is_empty() || kind.is_empty() || plural.is_empty() {
        return Err(format!("{text:?} has an empty version, kind or plural"));
    }
    Ok(crate::kinds::resource(group, version, kind, plural))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent_and_a_kind_needs_four_parts() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        assert_eq!(
            parse_kind("apps/v1/DaemonSet/daemonsets").map(|kind| kind.api_version),
            Ok("apps/v1".to_owned())
        );
        assert_eq!(parse_kind("/v1/Pod/pods").map(|kind| kind.api_version), Ok("v1".to_owned()));
        assert!(parse_kind("DaemonSet").is_err());
        assert!(parse_kind("apps/v1//daemonsets").is_err());
    }
}
