//! Quota and default requests of a cell's namespace.

use serde_json::{Value, json};

use crate::cell::validate::ValidCell;

/// A LimitRange always, so that a container without requests is never forbidden by a quota; a ResourceQuota where the
/// Cell asks for one.
pub(super) fn objects(cell: &ValidCell) -> Vec<Value> {
    let mut objects = vec![limit_range(cell)];
    let quota = &cell.quota;
    let mut hard = serde_json::Map::new();
    for (limit, names) in [
        (&quota.cpu, ["requests.cpu", "limits.cpu"].as_slice()),
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
    // A limit is only defaulted where a quota counts limits: elsewhere an unasked CPU limit would only throttle.
    if cell.quota.cpu.is_some() {
        limits["default"]["cpu"] = json!("500m");
    }
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
