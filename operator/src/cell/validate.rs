//! From a Cell and what was observed to something that can be built: whose the namespace is, which revision applies,
//! what the template makes of the Cell's values. Pure; nothing after it looks at raw specs again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_crds::cell::{Capacity, Quota};
use bulkhead_crds::{Cell, names};
use bulkhead_protocol::Reason;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use super::desired::ANNOTATION_RETAINED;
use super::observe::NamespaceSeen;
use crate::kinds::Kinds;
use crate::revision::Revision;
use crate::template;

/// Well-known labels of nodes.
const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";

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
    /// Names of the Destinations that it may reach, in order.
    pub destinations: Vec<String>,
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
    let template = &revision.recipe.template;
    let objects = template::render(template, cell.name(), &cell.spec.values, kinds).map_err(|refusal| {
        let reason =
            if refusal.path.starts_with("spec.values") { "InvalidValues" } else { "InvalidTemplate" };
        let whose = if reason == "InvalidValues" { "this Cell" } else { "its template" };
        Problem::new(reason, format!("{refusal} (in {whose}, for revision {})", revision.name))
    })?;
    allowed_destinations(cell, revision)?;
    Ok(ValidCell { objects, ..without_workload(cell, revision) })
}

/// Every Destination that a step names must be one of the Cell's. Whether it exists is another matter: the other
/// transactions of the cell need not wait for it.
fn allowed_destinations(cell: &Cell, revision: &Revision) -> Result<(), Problem> {
    let steps = revision.recipe.template.steps.iter().enumerate();
    let mut forbidden = steps.filter_map(|(index, step)| {
        let name = step.destination.as_ref()?;
        (!cell.spec.destinations.contains(name)).then_some((index, name))
    });
    let Some((index, name)) = forbidden.next() else { return Ok(()) };
    Err(Problem::new(
        Reason::DestinationForbidden.as_str(),
        format!(
            "spec.steps[{index}] of its template sends to Destination {name}, which this Cell does not name: add {name} to \
             spec.destinations of the Cell (for revision {})",
            revision.name
        ),
    ))
}

/// The Cell without what the template makes of its values: enough for its walls.
pub(crate) fn without_workload(cell: &Cell, revision: &Revision) -> ValidCell {
    let spec = &cell.spec;
    let placement = spec.placement.clone().unwrap_or_default();
    ValidCell {
        name: cell.name().to_owned(),
        namespace: cell.namespace_name(),
        revision: revision.clone(),
        objects: Vec::new(),
        node_selector: node_selector(cell),
        tolerations: json!(placement.tolerations),
        dedicated_nodes: placement.dedicated_nodes,
        quota: spec.quota.clone().unwrap_or_default(),
        capacity: spec.capacity.clone(),
        destinations: BTreeSet::from_iter(spec.destinations.iter().cloned()).into_iter().collect(),
    }
}

fn node_selector(cell: &Cell) -> BTreeMap<String, String> {
    let Some(placement) = &cell.spec.placement else { return BTreeMap::new() };
    let mut selector = placement.node_selector.clone();
    for (label, value) in [(REGION, &placement.region), (ZONE, &placement.zone)] {
        selector.extend(value.clone().map(|value| (label.to_owned(), value)));
    }
    selector
}

/// A cell never spans regions: the nodes that its pods may run on must all be in one. Nodes that say no region count
/// for none.
///
/// # Errors
/// The regions, and what to do: the Cell's region cannot be set once it exists.
pub(crate) fn one_region(cell: &Cell, nodes: &[Arc<PartialObjectMeta<Node>>]) -> Result<(), Problem> {
    let selector = node_selector(cell);
    let labels = nodes.iter().filter_map(|node| node.metadata.labels.as_ref());
    let regions: BTreeSet<&str> = labels
        .filter(|labels| selector.iter().all(|(label, value)| labels.get(label) == Some(value)))
        .filter_map(|labels| labels.get(REGION).map(String::as_str))
        .collect();
    if regions.len() < 2 {
        return Ok(());
    }
    let regions = Vec::from_iter(regions).join(", ");
    Err(Problem::new(
        "RegionRequired",
        format!(
            "its nodes are in regions {regions}, and a cell never spans regions: make a Cell with \
             spec.placement.region set to one of them in place of this one, which cannot get a region any more"
        ),
    ))
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::core::PartialObjectMetaExt;

    use super::*;
    use crate::revision::Recipe;

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
    fn a_step_sends_only_to_what_the_cell_names_and_the_cell_is_told_what_to_add() {
        let template = json!({"objects": [], "services": [{"name": "web", "port": 8080}], "steps": [
            {"service": "web", "path": "/"}, {"destination": "visa"}, {"destination": "mastercard"}]});
        let template = serde_json::from_value(template).expect("is one");
        let revision = Revision::new("t", Recipe { template, ..Recipe::default() }, 1);
        let check = |destinations: &[&str], expected: Result<&[&str], &str>| {
            let mut cell = cell(None, None);
            cell.spec.destinations = destinations.iter().map(|name| (*name).to_owned()).collect();
            match (validate(&cell, &revision, &Kinds::new(&[])), expected) {
                (Ok(valid), Ok(names)) => assert_eq!(valid.destinations, names),
                (Err(problem), Err(words)) => {
                    assert_eq!(problem.reason, "DestinationForbidden");
                    assert!(problem.message.contains(words), "{problem}");
                }
                (other, _) => panic!("{destinations:?} led to {other:?}"),
            }
        };
        check(&["visa", "mastercard"], Ok(&["mastercard", "visa"]));
        check(&["visa"], Err("spec.steps[2] of its template sends to Destination mastercard,"));
        check(&[], Err("add visa to spec.destinations of the Cell"));
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
    fn a_cell_that_could_run_in_two_regions_is_told_which_and_that_it_needs_one() {
        let node = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned()));
            let metadata = ObjectMeta { labels: Some(labels.collect()), ..ObjectMeta::default() };
            Arc::new(metadata.into_response_partial::<Node>())
        };
        let region = "topology.kubernetes.io/region";
        let (eu, us) = (
            node(&[(region, "eu-1"), ("topology.kubernetes.io/zone", "eu-1a")]),
            node(&[(region, "us-1"), ("pool", "large")]),
        );
        let check = |placement: Value, nodes: &[&Arc<PartialObjectMeta<Node>>], expected: Option<&str>| {
            let mut cell = cell(None, None);
            cell.spec.placement = serde_json::from_value(placement.clone()).expect("is one");
            let nodes: Vec<_> = nodes.iter().map(|node| Arc::clone(node)).collect();
            match (one_region(&cell, &nodes), expected) {
                (Ok(()), None) => {}
                (Err(problem), Some(text)) if problem.reason == "RegionRequired" => {
                    assert!(problem.message.contains(text), "{problem}");
                }
                (other, _) => panic!("{placement} led to {other:?}"),
            }
        };
        check(Value::Null, &[&us, &eu, &us], Some("in regions eu-1, us-1,"));
        check(json!({"dedicatedNodes": true}), &[&us, &eu], Some("in regions eu-1, us-1,"));
        check(Value::Null, &[&eu, &eu, &node(&[])], None);
        check(Value::Null, &[], None);
        for bound in
            [json!({"region": "eu-1"}), json!({"zone": "eu-1a"}), json!({"nodeSelector": {"pool": "large"}})]
        {
            check(bound, &[&us, &eu], None);
        }
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
