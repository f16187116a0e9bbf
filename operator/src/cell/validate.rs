//! From a Cell and what was observed to something that can be built: whose the namespace is, which revision applies,
//! what the template makes of the Cell's values. Pure; nothing after it looks at raw specs again.

use std::collections::BTreeMap;

use bulkhead_crds::cell::{Capacity, Quota};
use bulkhead_crds::{Cell, names};
use serde_json::{Value, json};

use super::desired::ANNOTATION_RETAINED;
use super::observe::NamespaceSeen;
use crate::kinds::Kinds;
use crate::revision::Revision;
use crate::template;

/// Why a Cell cannot be built now, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Who a Cell is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub name: String,
    pub uid: String,
    pub namespace: String,
}

impl Identity {
    pub(crate) fn of(cell: &Cell) -> Self {
        Self {
            name: cell.name().to_owned(),
            uid: cell.metadata.uid.clone().unwrap_or_default(),
            namespace: cell.namespace_name(),
        }
    }
}

/// A Cell that can be built.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ValidCell {
    pub name: String,
    pub namespace: String,
    pub revision: Revision,
    /// The workload as the template says, nothing of ours in it yet.
    pub objects: Vec<Value>,
    pub node_selector: BTreeMap<String, String>,
    /// A list, as the core API writes it.
    pub tolerations: Value,
    pub dedicated_nodes: bool,
    pub quota: Quota,
    pub capacity: Option<Capacity>,
}

/// Whose the namespace of that name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It does not exist; ours to create.
    Missing,
    /// It does not exist, but status still has the UID of one that did: forget that first.
    Lost,
    Ours,
    /// Ours, and being deleted: nothing may be created in it.
    Terminating,
    /// Retained by a deleted Cell of this name, and the new Cell asks for it by its UID.
    Adoptable,
    /// Not ours, so neither touched nor deleted.
    Foreign(Problem),
}

/// The namespace is ours if our own create call made it: its annotation has our UID, and status, once written, agrees.
pub(crate) fn ownership(cell: &Cell, seen: Option<&NamespaceSeen>) -> Ownership {
    let recorded = cell.status.as_ref().and_then(|status| status.namespace_uid.as_deref());
    let Some(seen) = seen else {
        return if recorded.is_some() { Ownership::Lost } else { Ownership::Missing };
    };
    let identity = Identity::of(cell);
    let marked = seen.annotations.get(names::ANNOTATION_CELL_UID).is_some_and(|uid| *uid == identity.uid);
    if marked && recorded.is_none_or(|recorded| recorded == seen.uid) && !identity.uid.is_empty() {
        return if seen.terminating { Ownership::Terminating } else { Ownership::Ours };
    }
    let retained = seen.annotations.contains_key(ANNOTATION_RETAINED)
        && seen.labels.get(names::LABEL_CELL).is_some_and(|name| *name == identity.name);
    let asked = cell.metadata.annotations.as_ref().and_then(|all| all.get(names::ANNOTATION_ADOPT_NAMESPACE));
    if retained && !seen.terminating && asked.is_some_and(|uid| *uid == seen.uid) {
        return Ownership::Adoptable;
    }
    Ownership::Foreign(not_owned(&identity, seen, retained))
}

fn not_owned(identity: &Identity, seen: &NamespaceSeen, retained: bool) -> Problem {
    let Identity { name, namespace, .. } = identity;
    let message = if retained {
        format!(
            "namespace {namespace} was retained by a deleted Cell of this name; to take it with its volumes, run: \
             kubectl annotate cell {name} {}={}",
            names::ANNOTATION_ADOPT_NAMESPACE,
            seen.uid
        )
    } else {
        format!(
            "namespace {namespace} exists and was not made for this Cell, so it is left alone; delete it, or give the \
             Cell another name. (kubectl annotate cell {name} {}={} takes only a namespace that was retained by a \
             deleted Cell of this name.)",
            names::ANNOTATION_ADOPT_NAMESPACE,
            seen.uid
        )
    };
    Problem::new("NamespaceNotOwned", message)
}

/// The Cell as it is built from one revision.
///
/// # Errors
/// The field of the Cell or of the template that cannot be.
pub(crate) fn validate(cell: &Cell, revision: &Revision, kinds: &Kinds) -> Result<ValidCell, Problem> {
    let spec = &cell.spec;
    let objects =
        template::render(&revision.recipe.template, cell.name(), &spec.values, kinds).map_err(|refusal| {
            let reason =
                if refusal.path.starts_with("spec.values") { "InvalidValues" } else { "InvalidTemplate" };
            let whose = if reason == "InvalidValues" { "this Cell" } else { "its template" };
            Problem::new(reason, format!("{refusal} (in {whose}, for revision {})", revision.name))
        })?;
    let placement = spec.placement.clone().unwrap_or_default();
    let mut node_selector = placement.node_selector;
    for (label, value) in
        [("topology.kubernetes.io/region", placement.region), ("topology.kubernetes.io/zone", placement.zone)]
    {
        if let Some(value) = value {
            node_selector.insert(label.to_owned(), value);
        }
    }
    Ok(ValidCell {
        name: cell.name().to_owned(),
        namespace: cell.namespace_name(),
        revision: revision.clone(),
        objects,
        node_selector,
        tolerations: json!(placement.tolerations),
        dedicated_nodes: placement.dedicated_nodes,
        quota: spec.quota.clone().unwrap_or_default(),
        capacity: spec.capacity.clone(),
    })
}

/// Checks that need neither template nor namespace.
///
/// # Errors
/// What makes the Cell impossible in this installation.
pub(crate) fn admit(cell: &Cell, reserved: &[&str], allow_endpoints: bool) -> Result<(), Problem> {
    let name = cell.name();
    if name.len() > names::MAX_CELL_NAME {
        return Err(Problem::new(
            "NameTooLong",
            format!(
                "the name has {} characters, at most {} fit; make a new Cell",
                name.len(),
                names::MAX_CELL_NAME
            ),
        ));
    }
    if reserved.contains(&cell.namespace_name().as_str()) {
        return Err(Problem::new(
            "NamespaceReserved",
            format!("namespace {} is Bulkhead's own; give the Cell another name", cell.namespace_name()),
        ));
    }
    if !cell.spec.endpoints.is_empty() && !allow_endpoints {
        return Err(Problem::new(
            "EndpointsNotAllowed",
            "spec.endpoints names orchestrators that no wall of this cluster protects; start the operator with \
             --allow-endpoints to take such Cells",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{CellSpec, CellStatus};

    use super::*;

    fn cell(recorded: Option<&str>, adopt: Option<&str>) -> Cell {
        let mut cell = Cell::new("a", CellSpec::default());
        cell.metadata.uid = Some("cell-uid".to_owned());
        cell.metadata.annotations =
            adopt.map(|uid| [(names::ANNOTATION_ADOPT_NAMESPACE.to_owned(), uid.to_owned())].into());
        cell.status =
            Some(CellStatus { namespace_uid: recorded.map(ToOwned::to_owned), ..CellStatus::default() });
        cell
    }

    fn namespace(annotations: &[(&str, &str)]) -> NamespaceSeen {
        NamespaceSeen {
            uid: "ns-uid".to_owned(),
            annotations: annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            labels: [(names::LABEL_CELL.to_owned(), "a".to_owned())].into(),
            ..NamespaceSeen::default()
        }
    }

    #[test]
    fn only_our_own_create_call_makes_a_namespace_ours() {
        let ours = namespace(&[(names::ANNOTATION_CELL_UID, "cell-uid")]);
        assert_eq!(ownership(&cell(None, None), Some(&ours)), Ownership::Ours);
        assert_eq!(ownership(&cell(Some("ns-uid"), None), Some(&ours)), Ownership::Ours);
        assert_eq!(ownership(&cell(None, None), None), Ownership::Missing);
        assert_eq!(ownership(&cell(Some("ns-uid"), None), None), Ownership::Lost);
        for (cell, seen) in [
            (cell(Some("another"), None), ours),
            (cell(None, None), namespace(&[])),
            (cell(None, None), namespace(&[(names::ANNOTATION_CELL_UID, "another")])),
        ] {
            assert!(matches!(ownership(&cell, Some(&seen)), Ownership::Foreign(_)));
        }
    }

    #[test]
    fn only_a_retained_namespace_is_adopted_and_only_by_its_uid() {
        let retained = namespace(&[(names::ANNOTATION_CELL_UID, "old"), (ANNOTATION_RETAINED, "true")]);
        assert_eq!(ownership(&cell(None, Some("ns-uid")), Some(&retained)), Ownership::Adoptable);
        for (adopt, seen) in
            [(None, &retained), (Some("other"), &retained), (Some("ns-uid"), &namespace(&[]))]
        {
            match ownership(&cell(None, adopt), Some(seen)) {
                Ownership::Foreign(problem) => {
                    let command = "kubectl annotate cell a bulkhead.dev/adopt-namespace-uid=ns-uid";
                    assert!(problem.message.contains(command), "{problem}");
                }
                other => panic!("{adopt:?} led to {other:?}"),
            }
        }
    }

    #[test]
    fn the_placement_becomes_a_node_selector() {
        let mut cell = cell(None, None);
        cell.spec.placement = Some(bulkhead_crds::Placement {
            region: Some("r".to_owned()),
            zone: Some("z".to_owned()),
            ..bulkhead_crds::Placement::default()
        });
        let valid = validate(&cell, &Revision::default(), &Kinds::new(&[])).expect("is fine");
        assert_eq!(valid.node_selector.get("topology.kubernetes.io/region").map(String::as_str), Some("r"));
        assert_eq!(valid.node_selector.get("topology.kubernetes.io/zone").map(String::as_str), Some("z"));
    }

    #[test]
    fn a_cell_can_never_take_the_operators_own_namespace() {
        let refused = admit(&cell(None, None), &["cell-a"], false);
        assert_eq!(refused.map_err(|problem| problem.reason), Err("NamespaceReserved"));
        let mut outside = cell(None, None);
        outside.spec.endpoints = vec!["127.0.0.1:1".to_owned()];
        assert!(admit(&outside, &[], false).is_err());
        assert!(admit(&outside, &[], true).is_ok());
    }
}
