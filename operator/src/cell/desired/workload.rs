//! The template's objects with what is the operator's to say: labels, placement, the limits that a quota needs, and the
//! security that Pod Security `restricted` asks for. What a template may not say was refused before.

use std::collections::BTreeSet;

use bulkhead_crds::names;
use serde_json::{Value, json};

use super::quota::limit_memory;
use super::{Key, place, pod_labels, restrict};
use crate::cell::validate::ValidCell;

/// One object of the template as it is applied.
pub(super) fn decorate(cell: &ValidCell, object: &Value) -> Value {
    let mut object = object.clone();
    let template = match object["kind"].as_str() {
        Some("CronJob") => object["spec"]["jobTemplate"]["spec"].get_mut("template"),
        _ => object.get_mut("spec").and_then(|spec| spec.get_mut("template")),
    };
    if let Some(template) = template.filter(|template| template["spec"]["containers"].is_array()) {
        for (label, value) in pod_labels(cell, names::COMPONENT_WORKLOAD) {
            template["metadata"]["labels"][label] = json!(value);
        }
        let spec = &mut template["spec"];
        place(cell, spec);
        restrict(spec);
        limit_memory(cell, spec);
    }
    object
}

/// The workloads whose replicas an autoscaler of the same template sets.
pub(super) fn autoscaled(objects: &[Value]) -> BTreeSet<Key> {
    objects
        .iter()
        .filter(|object| object["kind"] == "HorizontalPodAutoscaler")
        .filter_map(|object| {
            let target = &object["spec"]["scaleTargetRef"];
            Some(Key { kind: target["kind"].as_str()?.to_owned(), name: target["name"].as_str()?.to_owned() })
        })
        .collect()
}
