//! Quota and default requests of a cell's namespace.

use serde_json::{Value, json};

use super::default;
use crate::cell::validate::ValidCell;

/// A LimitRange always, so that a container without requests is never forbidden by a quota; a ResourceQuota where the
/// Cell asks for one.
pub(super) fn objects(cell: &ValidCell) -> Vec<Value> {
    let mut objects = vec![limit_range(cell)];
    let quota = &cell.quota;
    let mut hard = serde_json::Map::new();
    for (limit, names) in [
        (&quota.cpu, ["requests.cpu"].as_slice()),
        (&quota.memory, &["requests.memory", "limits.memory"]),
        (&quota.pods, &["pods"]),
    ] {
        if let Some(limit) = limit {
            hard.extend(names.iter().map(|name| ((*name).to_owned(), json!(limit))));
        }
    }
    if !hard.is_empty() {
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "cell"},
            "spec": {"hard": hard},
        }));
    }
    objects
}

fn limit_range(cell: &ValidCell) -> Value {
    let mut limits = json!({"type": "Container", "defaultRequest": {"cpu": "50m", "memory": "64Mi"}});
    // Only where a quota counts limits. CPU limits are never counted: a throttled orchestrator misses its heartbeats.
    if cell.quota.memory.is_some() {
        limits["default"]["memory"] = json!("256Mi");
    }
    json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "cell"},
        "spec": {"limits": [limits]},
    })
}

/// Under a quota of memory, a container that asks for memory without a limit is held to what it asks for: the
/// LimitRange's default may be less, and then Kubernetes would refuse the pod.
pub(super) fn limit_memory(cell: &ValidCell, spec: &mut Value) {
    if cell.quota.memory.is_none() {
        return;
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(request) = container.pointer("/resources/requests/memory").cloned() else { continue };
            let limits = &mut container["resources"]["limits"];
            // Anything else is no list of limits, and the API server says so.
            if limits.is_null() || limits.is_object() {
                default(limits, "memory", &request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(quota: Value) -> ValidCell {
        ValidCell { quota: serde_json::from_value(quota).expect("a quota"), ..ValidCell::default() }
    }

    #[test]
    fn a_quota_of_cpu_neither_counts_nor_makes_cpu_limits() {
        let made = objects(&cell(json!({"cpu": "2", "memory": "4Gi"})));
        let [limit_range, quota] = made.as_slice() else { panic!("{made:#?}") };
        let hard = json!({"requests.cpu": "2", "requests.memory": "4Gi", "limits.memory": "4Gi"});
        assert_eq!(quota["spec"]["hard"], hard);
        assert_eq!(limit_range["spec"]["limits"][0]["default"], json!({"memory": "256Mi"}));
    }

    #[test]
    fn every_container_has_the_requests_that_a_quota_counts() {
        let made = objects(&cell(json!({})));
        let [limit_range] = made.as_slice() else { panic!("{made:#?}") };
        let limits = &limit_range["spec"]["limits"][0];
        assert_eq!(limits["defaultRequest"], json!({"cpu": "50m", "memory": "64Mi"}));
        assert_eq!(limits["default"], Value::Null);
    }

    #[track_caller]
    fn check(quota: Value, resources: &Value, expected: &Value) {
        let mut spec = json!({"containers": [{"resources": resources}]});
        limit_memory(&cell(quota), &mut spec);
        assert_eq!(spec["containers"][0]["resources"], *expected);
    }

    #[test]
    fn a_request_of_memory_is_never_above_the_default_limit() {
        let asked = json!({"requests": {"memory": "1Gi"}});
        let bounded = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}});
        check(json!({"memory": "4Gi"}), &asked, &bounded);
        check(json!({"cpu": "2"}), &asked, &asked);
        let both = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        check(json!({"memory": "4Gi"}), &both, &both);
        let cpu = json!({"requests": {"cpu": "1"}});
        check(json!({"memory": "4Gi"}), &cpu, &cpu);
    }
}
