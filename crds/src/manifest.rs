//! The CustomResourceDefinitions as YAML, in the order in which they are applied.

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{Cell, CellTemplate, Destination, Router, RoutingPolicy, TrafficShift, schema};

/// One CustomResourceDefinition.
pub struct Manifest {
    /// Plural name of the kind; the committed file is `crds/yaml/NAME.yaml`.
    pub name: &'static str,
    /// Its rules as they hold for an object that is made.
    pub definition: Value,
}

impl Manifest {
    /// The definition as a cluster gets it. Rules of the root speak of the name, which never changes: they hold when an
    /// object is made and not when it is edited, or one that was stored before them could never lose its finalizer.
    pub fn installed(&self) -> Value {
        let mut definition = self.definition.clone();
        for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
            let rules = version.pointer_mut("/schema/openAPIV3Schema/x-kubernetes-validations");
            for rule in rules.and_then(Value::as_array_mut).into_iter().flatten() {
                let about_name = rule["rule"].as_str().unwrap_or_default();
                rule["rule"] = json!(format!("oldSelf.hasValue() || ({about_name})"));
                rule["optionalOldSelf"] = json!(true);
            }
        }
        definition
    }
}

/// Every kind of the API.
///
/// # Errors
/// When a definition is no JSON, which derived ones always are.
pub fn all() -> Result<Vec<Manifest>, serde_json::Error> {
    [
        ("celltemplates", CellTemplate::crd()),
        ("cells", Cell::crd()),
        ("destinations", Destination::crd()),
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
            check(&path.with_extension("yaml"), &manifest.installed());
        }
    }

    /// Helm updates what a chart renders and leaves what is in its folder `crds` for ever; and it must not delete a
    /// definition on uninstall, since every Cell would go with it.
    #[test]
    fn the_chart_renders_the_same_definitions_and_keeps_them() {
        for manifest in all().expect("derived definitions serialise") {
            let mut definition = manifest.installed();
            definition["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/bulkhead-crds/templates");
            check(&templates.join(manifest.name).with_extension("yaml"), &definition);
            assert!(!definition.to_string().contains("{{"), "Helm would take this for a template");
        }
    }

    #[test]
    fn a_name_is_judged_when_the_object_is_made_and_never_again() {
        let mut kinds = Vec::new();
        for manifest in all().expect("derived definitions serialise") {
            let installed = manifest.installed();
            let root = &installed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            for rule in root["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let text = rule["rule"].as_str().expect("a rule is text");
                assert!(text.starts_with("oldSelf.hasValue() || (size(self.metadata.name) <= "), "{text}");
                assert_eq!(rule["optionalOldSelf"], true, "{text}");
                kinds.push(manifest.name);
            }
        }
        assert_eq!(kinds, ["celltemplates", "cells", "routers"]);
    }
}
