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
    use std::path::Path;

    use serde_json::json;

    use super::*;

    const HEADER: &str =
        "# Made from the types in crds/src; `BLESS=1 cargo test -p bulkhead-crds` refreshes it.\n";

    fn check(path: &Path, definition: &Value) {
        let expected = HEADER.to_owned() + &serde_yaml::to_string(definition).expect("JSON is YAML");
        crate::blessed::check(path, &expected);
    }

    #[test]
    fn committed_yaml_is_what_the_types_say() {
        for manifest in all().expect("derived definitions serialise") {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml").join(manifest.name);
            check(&path.with_extension("yaml"), &manifest.definition);
        }
    }

    /// Helm updates what a chart renders and leaves what is in its folder `crds` for ever; and it must not delete a
    /// definition on uninstall, since every Cell would go with it.
    #[test]
    fn the_chart_renders_the_same_definitions_and_keeps_them() {
        for mut manifest in all().expect("derived definitions serialise") {
            manifest.definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/bulkhead-crds/templates");
            check(&templates.join(manifest.name).with_extension("yaml"), &manifest.definition);
            assert!(!manifest.definition.to_string().contains("{{"), "Helm would take this for a template");
        }
    }
}
