//! The template's objects with what is the operator's to say: labels, placement, the limits that a quota needs, and the
//! security that Pod Security `restricted` asks for. What a template may not say was refused before.

use std::collections::BTreeSet;

use bulkhead_crds::names;
use serde_json::{Value, json};

use super::quota::limit_memory;
use super::{Key, place, pod_labels, restrict};
use crate::cell::validate::ValidCell;
use crate::kinds::Kinds;

/// One object of the template as it is applied.
pub(super) fn decorate(cell: &ValidCell, object: &Value) -> Value {
    let mut object = object.clone();
    let template = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("batch/v1"), Some("CronJob")) => object["spec"]["jobTemplate"]["spec"].get_mut("template"),
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
pub(super) fn autoscaled(objects: &[Value], kinds: &Kinds) -> BTreeSet<Key> {
    objects
        .iter()
        .filter(|object| object["kind"] == "HorizontalPodAutoscaler")
        .filter_map(|object| {
            let target = &object["spec"]["scaleTargetRef"];
            // An autoscaler finds its target in whatever version it has.
            let (group, _) = target["apiVersion"].as_str()?.split_once('/').unwrap_or_default();
            let kind = kinds.of_group(group, target["kind"].as_str()?)?;
            Some(Key::new(&kind.resource, target["name"].as_str()?))
        })
        .collect()
}
