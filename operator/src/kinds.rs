//! The kinds of objects that the operator keeps in cells' namespaces: which of them a template may contain, in which
//! order they are applied, and which are never pruned. No I/O.

use kube::core::ApiResource;

/// One kind of object in a cell's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagedKind {
    pub resource: ApiResource,
    /// Whether a CellTemplate may contain it.
    pub in_templates: bool,
    /// Whether objects hold data, so that they are never removed while the namespace stays.
    pub holds_data: bool,
}

impl ManagedKind {
    fn is(&self, group: &str, kind: &str) -> bool {
        self.resource.group == group && self.resource.kind == kind
    }
}

/// Every kind in the order in which objects are applied: what others refer to goes first, what starts pods goes last.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(Vec<ManagedKind>);

impl Kinds {
    /// The closed list, and after it the kinds that the installation adds.
    pub(crate) fn new(extra: &[ApiResource]) -> Self {
        let kind = |group, version, kind, plural, in_templates| ManagedKind {
            resource: resource(group, version, kind, plural),
            in_templates,
            holds_data: kind == "PersistentVolumeClaim",
        };
        let mut kinds = vec![
            kind("", "v1", "ResourceQuota", "resourcequotas", false),
            kind("", "v1", "LimitRange", "limitranges", false),
            kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", false),
            kind("", "v1", "ServiceAccount", "serviceaccounts", false),
            kind("rbac.authorization.k8s.io", "v1", "Role", "roles", false),
            kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", false),
            kind("", "v1", "ConfigMap", "configmaps", true),
            kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
            kind("", "v1", "Service", "services", true),
            kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
            kind("apps", "v1", "StatefulSet", "statefulsets", true),
            kind("apps", "v1", "Deployment", "deployments", true),
            kind("batch", "v1", "Job", "jobs", true),
            kind("batch", "v1", "CronJob", "cronjobs", true),
            kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true),
        ];
        for resource in extra {
            if !kinds.iter().any(|known| known.is(&resource.group, &resource.kind)) {
                kinds.push(ManagedKind { resource: resource.clone(), in_templates: true, holds_data: false });
            }
        }
        Self(kinds)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ManagedKind> {
        self.0.iter()
    }

    /// The kind of that `apiVersion` and `kind`.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<&ManagedKind> {
        self.0.iter().find(|known| known.resource.api_version == api_version && known.resource.kind == kind)
    }

    /// The kind of that name in that group, whatever its version.
    pub(crate) fn of_group(&self, group: &str, kind: &str) -> Option<&ManagedKind> {
        self.0.iter().find(|known| known.is(group, kind))
    }

    /// Place in the order of applying; kinds unknown go last.
    pub(crate) fn position(&self, resource: &ApiResource) -> usize {
        self.0.iter().position(|known| known.resource == *resource).unwrap_or(self.0.len())
    }

    /// `Deployment (apps/v1), …`: what templates may contain, for messages.
    pub(crate) fn in_templates(&self) -> String {
        let names: Vec<_> = self
            .0
            .iter()
            .filter(|known| known.in_templates)
            .map(|known| format!("{} ({})", known.resource.kind, known.resource.api_version))
            .collect();
        names.join(", ")
    }
}

pub(crate) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

pub(crate) fn namespace() -> ApiResource {
    resource("", "v1", "Namespace", "namespaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_kind_is_allowed_and_a_known_one_is_not_doubled() {
        let daemon_set = resource("apps", "v1", "DaemonSet", "daemonsets");
        let deployment = resource("apps", "v1", "Deployment", "deployments");
        let kinds = Kinds::new(&[daemon_set.clone(), deployment]);
        assert!(kinds.find("apps/v1", "DaemonSet").is_some_and(|kind| kind.in_templates));
        assert_eq!(kinds.iter().filter(|kind| kind.resource.kind == "Deployment").count(), 1);
        assert!(kinds.find("v1", "Secret").is_none());
        assert!(kinds.find("networking.k8s.io/v1", "NetworkPolicy").is_some_and(|kind| !kind.in_templates));
    }
}
