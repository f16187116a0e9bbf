//! The CustomResourceDefinitions as YAML, in the order in which they are applied.

use kube::CustomResourceExt;
use serde_json::Value;

use crate::{Cell, CellTemplate, Router, RoutingPolicy, TrafficShift, schema};

/// One CustomResourceDefinition.
pub struct Manifest {
    /// Plural name of the kind; the committed file is `crds/yaml/NAME.yaml`.
    pub name: &'static str,
    pub definition: Value,
}

/// Every kind of the API.
///
/// # Errors
/// When a definition is no JSON, which derived ones always are.
pub fn all() -> Result<Vec<Manifest>, serde_json::Error> {
    [
        ("celltemplates", CellTemplate::crd()),
        ("cells", Cell::crd()),
        ("routers", Router::crd()),
        ("routingpolicies", RoutingPolicy::crd()),
        ("trafficshifts", TrafficShift::crd()),
    ]
    .into_iter()
    .map(|(name, definition)| Ok(Manifest { name, definition: schema::finish(&definition)? }))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "# Made from the types in crds/src; `BLESS=1 cargo test -p bulkhead-crds` refreshes it.\n";

    #[test]
    fn committed_yaml_is_what_the_types_say() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/yaml");
        for manifest in all().expect("derived definitions serialise") {
            let path = format!("{folder}/{}.yaml", manifest.name);
            let expected =
                HEADER.to_owned() + &serde_yaml::to_string(&manifest.definition).expect("JSON is YAML");
            if std::env::var_os("BLESS").is_some() {
                std::fs::write(&path, &expected).expect("the folder of the YAML can be written");
            }
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == expected, "{path} is stale: run BLESS=1 cargo test -p bulkhead-crds");
        }
    }
}
