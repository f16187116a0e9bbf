//! What in a template's objects would breach a wall of the cell, or could never stay as it says, found by the path of the
//! field. Pure; what Pod Security refuses beyond this is left to the API server.

use serde_json::Value;

use super::Refusal;
use crate::kinds::Kinds;

/// Checks one object that lies at `path`. References may still be in it: what is forbidden is so in every form.
///
/// # Errors
/// The path of the first field that is not allowed, and why.
pub(super) fn check(object: &Value, kinds: &Kinds, path: &str) -> Result<(), Refusal> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let Some(known) = kinds.find(api_version, kind).filter(|known| known.in_templates) else {
        return refuse(
            format!("{path}.kind"),
            &format!(
                "{kind} ({api_version}) is not a kind that templates may contain; allowed are {}",
                kinds.in_templates()
            ),
        );
    };
    check_metadata(&object["metadata"], &format!("{path}.metadata"), true)?;
    match (known.resource.group.as_str(), kind) {
        ("", "Service") => check_service(&object["spec"], &format!("{path}.spec")),
        ("apps", "Deployment" | "StatefulSet") => {
            check_template(&object["spec"]["template"], &format!("{path}.spec.template"))
        }
        ("batch", "Job") => check_job(&object["spec"], &format!("{path}.spec")),
        ("batch", "CronJob") => check_template(
            &object["spec"]["jobTemplate"]["spec"]["template"],
            &format!("{path}.spec.jobTemplate.spec.template"),
        ),
        ("", "ConfigMap" | "PersistentVolumeClaim")
        | ("policy", "PodDisruptionBudget")
        | ("autoscaling", "HorizontalPodAutoscaler") => Ok(()),
        // A kind that the installation added: its pods may lie anywhere in it.
        _ => check_anywhere(object, path),
    }
}

fn refuse(path: String, why: &str) -> Result<(), Refusal> {
    Err(Refusal::new(path, why.to_owned()))
}

/// Present and not switched off.
fn is_set(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

fn check_metadata(metadata: &Value, path: &str, named: bool) -> Result<(), Refusal> {
    if named && metadata["name"].as_str().unwrap_or_default().is_empty() {
        return refuse(format!("{path}.name"), "is required");
    }
    if metadata["name"] == bulkhead_crds::names::CELL_RUNTIME {
        return refuse(format!("{path}.name"), "is the operator's own; choose another name");
    }
    for (field, why) in [
        ("namespace", "must not be set: every object goes into the cell's own namespace"),
        ("generateName", "must not be set: objects are found again by their name"),
        ("ownerReferences", "must not be set: the operator owns the objects of a cell"),
        ("finalizers", "must not be set: it would keep the cell from being deleted"),
    ] {
        if is_set(&metadata[field]) {
            return refuse(format!("{path}.{field}"), why);
        }
    }
    for map in ["labels", "annotations"] {
        let fields = metadata[map].as_object();
        let ours = fields.and_then(|fields| {
            fields.keys().find(|key| {
                key.split_once('/')
                    .is_some_and(|(domain, _)| domain == "bulkhead.dev" || domain.ends_with(".bulkhead.dev"))
            })
        });
        if let Some(key) = ours {
            return refuse(format!("{path}.{map}[{key}]"), "names under bulkhead.dev are the operator's own");
        }
    }
    Ok(())
}

fn check_service(spec: &Value, path: &str) -> Result<(), Refusal> {
    if is_set(&spec["type"]) && spec["type"] != "ClusterIP" {
        return refuse(format!("{path}.type"), "must be ClusterIP: the router is the only way into a cell");
    }
    for field in ["externalIPs", "externalName", "loadBalancerIP", "loadBalancerClass"] {
        if is_set(&spec[field]) {
            return refuse(
                format!("{path}.{field}"),
                "is not allowed: the router is the only way into a cell",
            );
        }
    }
    Ok(())
}

fn check_job(spec: &Value, path: &str) -> Result<(), Refusal> {
    if is_set(&spec["ttlSecondsAfterFinished"]) {
        return refuse(
            format!("{path}.ttlSecondsAfterFinished"),
            "must not be set: Kubernetes would remove the finished Job, and it would be made, and so run, again and \
             again; leave it out, or use a CronJob",
        );
    }
    check_template(&spec["template"], &format!("{path}.template"))
}

fn check_template(template: &Value, path: &str) -> Result<(), Refusal> {
    check_metadata(&template["metadata"], &format!("{path}.metadata"), false)?;
    check_pod(&template["spec"], &format!("{path}.spec"))
}

fn check_pod(spec: &Value, path: &str) -> Result<(), Refusal> {
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if is_set(&spec[field]) {
            return refuse(format!("{path}.{field}"), "is not allowed: it leaves the walls of the cell");
        }
    }
    if is_set(&spec["nodeName"]) {
        return refuse(
            format!("{path}.nodeName"),
            "is not allowed: it goes past the scheduler; use the Cell's placement",
        );
    }
    for field in ["serviceAccountName", "serviceAccount"] {
        if is_set(&spec[field]) && spec[field] != "default" {
            return refuse(
                format!("{path}.{field}"),
                "must be default: pods of a cell have no access to the Kubernetes API",
            );
        }
    }
    if is_set(&spec["automountServiceAccountToken"]) {
        return refuse(
            format!("{path}.automountServiceAccountToken"),
            "is not allowed: pods of a cell have no access to the Kubernetes API",
        );
    }
    for (index, volume) in items(&spec["volumes"]) {
        check_volume(volume, &format!("{path}.volumes[{index}]"))?;
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in items(&spec[field]) {
            check_container(container, &format!("{path}.{field}[{index}]"))?;
        }
    }
    check_security(&spec["securityContext"], &format!("{path}.securityContext"))
}

fn check_volume(volume: &Value, path: &str) -> Result<(), Refusal> {
    if is_set(&volume["hostPath"]) {
        return refuse(
            format!("{path}.hostPath"),
            "is not allowed: it opens the node to the cell; use a claim",
        );
    }
    for (index, source) in items(&volume["projected"]["sources"]) {
        if is_set(&source["serviceAccountToken"]) {
            return refuse(
                format!("{path}.projected.sources[{index}].serviceAccountToken"),
                "is not allowed: pods of a cell have no access to the Kubernetes API",
            );
        }
    }
    Ok(())
}

fn check_container(container: &Value, path: &str) -> Result<(), Refusal> {
    for (index, port) in items(&container["ports"]) {
        if is_set(&port["hostPort"]) && port["hostPort"] != 0 {
            return refuse(
                format!("{path}.ports[{index}].hostPort"),
                "is not allowed: it opens the cell on its node's address",
            );
        }
    }
    check_security(&container["securityContext"], &format!("{path}.securityContext"))
}

fn check_security(context: &Value, path: &str) -> Result<(), Refusal> {
    for field in ["privileged", "allowPrivilegeEscalation"] {
        if is_set(&context[field]) {
            return refuse(
                format!("{path}.{field}"),
                "is not allowed: it reaches through the walls to the node",
            );
        }
    }
    if is_set(&context["procMount"]) && context["procMount"] != "Default" {
        return refuse(format!("{path}.procMount"), "must be Default");
    }
    // The one capability that Pod Security `restricted` lets in.
    let other = items(&context["capabilities"]["add"]).find(|(_, added)| *added != "NET_BIND_SERVICE");
    if let Some((index, added)) = other {
        return refuse(
            format!("{path}.capabilities.add[{index}]"),
            &format!("{added} is not allowed; only NET_BIND_SERVICE is"),
        );
    }
    Ok(())
}

/// Looks for the same fields at every depth.
fn check_anywhere(value: &Value, path: &str) -> Result<(), Refusal> {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("containers") {
                check_pod(value, path)?;
            }
            fields.iter().try_for_each(|(key, field)| check_anywhere(field, &format!("{path}.{key}")))
        }
        Value::Array(list) => list
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_anywhere(item, &format!("{path}[{index}]"))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_object(object: &Value, refused_at: Option<&str>) {
        let refusal = check(object, &Kinds::new(&[]), "objects[0]").err();
        assert_eq!(refusal.as_ref().map(|refusal| refusal.path.as_str()), refused_at, "{refusal:?}");
    }

    fn pod(spec: &Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "app"},
               "spec": {"template": {"spec": spec}}})
    }

    #[test]
    fn a_pod_that_would_leave_the_cell_is_refused_by_the_path_of_the_field() {
        let at = |field: &str| format!("objects[0].spec.template.spec.{field}");
        let containers = json!([{"name": "c"}]);
        check_object(&pod(&json!({"containers": containers, "hostNetwork": false})), None);
        for (spec, field) in [
            (json!({"hostNetwork": true}), "hostNetwork"),
            (json!({"hostNetwork": "${values.x}"}), "hostNetwork"),
            (json!({"hostPID": true}), "hostPID"),
            (json!({"hostIPC": true}), "hostIPC"),
            (json!({"nodeName": "n"}), "nodeName"),
            (json!({"serviceAccountName": "admin"}), "serviceAccountName"),
            (json!({"automountServiceAccountToken": true}), "automountServiceAccountToken"),
            (json!({"volumes": [{"emptyDir": {}}, {"hostPath": {"path": "/"}}]}), "volumes[1].hostPath"),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                "volumes[0].projected.sources[0].serviceAccountToken",
            ),
            (json!({"containers": [{"ports": [{"hostPort": 80}]}]}), "containers[0].ports[0].hostPort"),
            (
                json!({"initContainers": [{"securityContext": {"privileged": true}}]}),
                "initContainers[0].securityContext.privileged",
            ),
            (
                json!({"containers": [{"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}}}]}),
                "containers[0].securityContext.capabilities.add[1]",
            ),
        ] {
            check_object(&pod(&spec), Some(&at(field)));
        }
    }

    #[test]
    fn a_job_that_kubernetes_would_remove_is_refused_and_those_of_a_cron_job_are_not() {
        let job = json!({"ttlSecondsAfterFinished": 0, "template": {}});
        let of = |kind: &str, spec: Value| json!({"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec});
        check_object(&of("Job", job.clone()), Some("objects[0].spec.ttlSecondsAfterFinished"));
        check_object(&of("Job", json!({"template": {}})), None);
        check_object(&of("CronJob", json!({"jobTemplate": {"spec": job}})), None);
    }

    #[test]
    fn only_kinds_of_the_closed_list_are_let_in() {
        for (api_version, kind) in
            [("v1", "Secret"), ("networking.k8s.io/v1", "NetworkPolicy"), ("v1", "Namespace"), ("v1", "Pod")]
        {
            let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
            check_object(&object, Some("objects[0].kind"));
        }
    }

    #[test]
    fn metadata_stays_inside_the_cell() {
        let with = |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        check_object(&with(json!({"name": "x", "labels": {"app": "x"}})), None);
        check_object(&with(json!({})), Some("objects[0].metadata.name"));
        check_object(&with(json!({"name": "cell-runtime"})), Some("objects[0].metadata.name"));
        check_object(
            &with(json!({"name": "x", "namespace": "kube-system"})),
            Some("objects[0].metadata.namespace"),
        );
        check_object(
            &with(json!({"name": "x", "labels": {"bulkhead.dev/component": "cell-runtime"}})),
            Some("objects[0].metadata.labels[bulkhead.dev/component]"),
        );
    }

    #[test]
    fn a_service_is_reached_from_within_only() {
        let with = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": spec});
        check_object(&with(json!({"type": "ClusterIP"})), None);
        check_object(&with(json!({"type": "NodePort"})), Some("objects[0].spec.type"));
        check_object(&with(json!({"externalIPs": ["1.2.3.4"]})), Some("objects[0].spec.externalIPs"));
    }

    #[test]
    fn a_kind_that_the_installation_added_is_searched_at_every_depth() {
        let added = [("Fleet", "fleets"), ("Service", "services"), ("ConfigMap", "configmaps")];
        let kinds = added.map(|(kind, plural)| crate::kinds::resource("x.io", "v1", kind, plural));
        for (kind, _) in added {
            let object = json!({"apiVersion": "x.io/v1", "kind": kind, "metadata": {"name": "x"},
                                "spec": {"pods": [{"containers": [], "hostNetwork": true}]}});
            let refusal = check(&object, &Kinds::new(&kinds), "objects[0]").expect_err("is refused");
            assert_eq!(refusal.path, "objects[0].spec.pods[0].hostNetwork", "{kind}");
        }
    }
}
