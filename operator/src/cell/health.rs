//! How the workload of a cell does, read from its objects: which are complete, and which cannot be. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::DynamicObject;
use serde_json::Value;

use super::desired::Key;

/// The workload of one cell, all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// What is not as its object says it should be, in sentences.
    pub incomplete: Vec<String>,
    /// What the cluster refuses to run: a reason, and what it said.
    pub forbidden: Option<(&'static str, String)>,
    /// Objects that run pods.
    pub workloads: usize,
}

/// Judges the objects of a cell. `stale` says whether an object is older than what we last applied, so that nothing is
/// taken for complete that has yet to begin.
pub(super) fn judge(
    objects: &BTreeMap<Key, Arc<DynamicObject>>,
    failures: &[String],
    stale: impl Fn(&Key, &DynamicObject) -> bool,
) -> Health {
    let mut health = Health::default();
    for (key, object) in objects {
        let Some(verdict) = judgement(key) else { continue };
        health.workloads += 1;
        let what = format!("{} {}", key.kind, key.name);
        match verdict(object) {
            _ if stale(key, object) => health.incomplete.push(format!("{what} was just changed")),
            Verdict::Complete => {}
            Verdict::Incomplete(why) => health.incomplete.push(format!("{what}: {why}")),
            Verdict::Forbidden(why) => {
                health.forbidden.get_or_insert((forbidden_reason(&why), format!("{what}: {why}")));
                health.incomplete.push(format!("{what}: {why}"));
            }
        }
    }
    if health.forbidden.is_none()
        && !health.incomplete.is_empty()
        && let Some(failure) = failures.iter().find(|failure| failure.contains("forbidden"))
    {
        health.forbidden = Some((forbidden_reason(failure), failure.clone()));
    }
    health
}

/// Whether an object runs pods, so that the workload is not complete without it.
pub(super) fn runs_pods(key: &Key) -> bool {
    judgement(key).is_some()
}

fn judgement(key: &Key) -> Option<fn(&DynamicObject) -> Verdict> {
    match key.of_kind() {
        ("apps", "Deployment") => Some(deployment),
        ("apps", "StatefulSet") => Some(stateful_set),
        ("apps", "DaemonSet") => Some(daemon_set),
        ("batch", "Job") => Some(job),
        _ => None,
    }
}

enum Verdict {
    Complete,
    Incomplete(String),
    Forbidden(String),
}

fn forbidden_reason(message: &str) -> &'static str {
    if message.contains("exceeded quota") || message.contains("failed quota") {
        "QuotaForbidden"
    } else {
        "PodsForbidden"
    }
}

fn count(value: &Value, absent: i64) -> i64 {
    value.as_i64().unwrap_or(absent)
}

fn condition<'a>(object: &'a DynamicObject, r#type: &str) -> Option<&'a Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == r#type && condition["status"] == "True")
}

fn not_observed(object: &DynamicObject) -> bool {
    count(&object.data["status"]["observedGeneration"], 0) < object.metadata.generation.unwrap_or(0)
}

fn deployment(object: &DynamicObject) -> Verdict {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    if let Some(failure) = condition(object, "ReplicaFailure") {
        return Verdict::Forbidden(failure["message"].as_str().unwrap_or("pods cannot be made").to_owned());
    }
    if not_observed(object) {
        return Verdict::Incomplete("its change is not taken up yet".to_owned());
    }
    let wanted = count(&spec["replicas"], 1);
    let (updated, all, available) = (
        count(&status["updatedReplicas"], 0),
        count(&status["replicas"], 0),
        count(&status["availableReplicas"], 0),
    );
    if updated < wanted {
        Verdict::Incomplete(format!("{updated} of {wanted} pods are of the newest version"))
    } else if all > updated {
        Verdict::Incomplete(format!("{} old pods are left", all - updated))
    } else if available < wanted {
        Verdict::Incomplete(format!("{available} of {wanted} pods are ready"))
    } else {
        Verdict::Complete
    }
}

fn stateful_set(object: &DynamicObject) -> Verdict {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    if not_observed(object) {
        return Verdict::Incomplete("its change is not taken up yet".to_owned());
    }
    let wanted = count(&spec["replicas"], 1);
    let ready = count(&status["readyReplicas"], 0);
    if ready < wanted {
        Verdict::Incomplete(format!("{ready} of {wanted} pods are ready"))
    } else if status["currentRevision"] != status["updateRevision"]
        && spec["updateStrategy"]["type"] != "OnDelete"
    {
        Verdict::Incomplete(format!(
            "{} of {wanted} pods are of the newest version",
            count(&status["updatedReplicas"], 0)
        ))
    } else {
        Verdict::Complete
    }
}

fn daemon_set(object: &DynamicObject) -> Verdict {
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    if not_observed(object) {
        return Verdict::Incomplete("its change is not taken up yet".to_owned());
    }
    let wanted = count(&status["desiredNumberScheduled"], 0);
    let (updated, available) =
        (count(&status["updatedNumberScheduled"], 0), count(&status["numberAvailable"], 0));
    if updated < wanted && spec["updateStrategy"]["type"] != "OnDelete" {
        Verdict::Incomplete(format!("{updated} of {wanted} pods are of the newest version"))
    } else if available < wanted {
        Verdict::Incomplete(format!("{available} of {wanted} pods are ready"))
    } else {
        Verdict::Complete
    }
}

fn job(object: &DynamicObject) -> Verdict {
    if let Some(failed) = condition(object, "Failed") {
        return Verdict::Incomplete(format!("failed: {}", failed["message"].as_str().unwrap_or_default()));
    }
    if condition(object, "Complete").is_some() || object.data["spec"]["suspend"] == true {
        Verdict::Complete
    } else {
        Verdict::Incomplete("is not finished yet".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds;

    fn object(value: Value) -> Arc<DynamicObject> {
        Arc::new(serde_json::from_value(value).expect("is an object"))
    }

    fn key(kind: &str) -> Key {
        let group = if kind == "Job" { "batch" } else { "apps" };
        Key::new(&kinds::resource(group, "v1", kind, ""), "app")
    }

    fn check(kind: &str, value: Value, incomplete: Option<&str>) {
        let objects = [(key(kind), object(value))].into();
        let health = judge(&objects, &[], |_, _| false);
        let expected: Vec<_> = incomplete.map(|why| format!("{kind} app: {why}")).into_iter().collect();
        assert_eq!(health.incomplete, expected);
    }

    fn deployment(generation: i64, status: &Value) -> Value {
        json!({"metadata": {"name": "app", "generation": generation}, "spec": {"replicas": 2}, "status": status})
    }

    #[test]
    fn a_deployment_is_complete_when_all_its_pods_are_new_and_available() {
        let done =
            json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        check("Deployment", deployment(3, &done), None);
        check("Deployment", deployment(4, &done), Some("its change is not taken up yet"));
        let old =
            json!({"observedGeneration": 3, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3});
        check("Deployment", deployment(3, &old), Some("1 old pods are left"));
        let starting = json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2});
        check("Deployment", deployment(3, &starting), Some("0 of 2 pods are ready"));
    }

    #[test]
    fn a_daemon_set_is_complete_when_every_node_has_its_newest_pod() {
        let daemon_set = |generation: i64, updated: i64, available: i64| {
            json!({"metadata": {"name": "app", "generation": generation}, "spec": {},
                   "status": {"observedGeneration": 3, "desiredNumberScheduled": 2,
                              "updatedNumberScheduled": updated, "numberAvailable": available}})
        };
        check("DaemonSet", daemon_set(3, 2, 2), None);
        check("DaemonSet", daemon_set(4, 2, 2), Some("its change is not taken up yet"));
        check("DaemonSet", daemon_set(3, 1, 2), Some("1 of 2 pods are of the newest version"));
        check("DaemonSet", daemon_set(3, 2, 1), Some("1 of 2 pods are ready"));
    }

    #[test]
    fn a_kind_of_another_group_is_not_judged_by_its_name() {
        let of_another = Key::new(&kinds::resource("batch.volcano.sh", "v1alpha1", "Job", "jobs"), "app");
        let running =
            json!({"metadata": {"name": "app"}, "spec": {}, "status": {"state": {"phase": "Running"}}});
        assert_eq!(judge(&[(of_another, object(running))].into(), &[], |_, _| false), Health::default());
    }

    #[test]
    fn what_a_quota_forbids_is_told_apart() {
        let status = json!({"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "pods \"app-1\" is forbidden: exceeded quota: cell, requested: pods=1"}]});
        let objects = [(key("Deployment"), object(deployment(1, &status)))].into();
        let health = judge(&objects, &[], |_, _| false);
        assert_eq!(health.forbidden.map(|(reason, _)| reason), Some("QuotaForbidden"));
    }

    #[test]
    fn a_stateful_set_says_so_only_in_its_events() {
        let value = json!({"metadata": {"name": "db", "generation": 1}, "spec": {"replicas": 1},
                           "status": {"observedGeneration": 1}});
        let objects = [(key("StatefulSet"), object(value))].into();
        let failures =
            ["create Pod db-0 failed: pods \"db-0\" is forbidden: exceeded quota: cell".to_owned()];
        let health = judge(&objects, &failures, |_, _| false);
        assert_eq!(health.forbidden.map(|(reason, _)| reason), Some("QuotaForbidden"));
    }

    #[test]
    fn a_job_must_finish_and_a_stale_object_is_never_complete() {
        check(
            "Job",
            json!({"metadata": {"name": "app"}, "spec": {}, "status": {}}),
            Some("is not finished yet"),
        );
        let complete = json!({"metadata": {"name": "app"}, "spec": {},
                              "status": {"conditions": [{"type": "Complete", "status": "True"}]}});
        check("Job", complete.clone(), None);
        let objects = [(key("Job"), object(complete))].into();
        assert_eq!(judge(&objects, &[], |_, _| true).incomplete, ["Job app was just changed"]);
    }
}
