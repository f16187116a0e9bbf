//! The namespace of a cell: what the create call carries, and the labels that it must keep. Whether an existing one is
//! ours is decided in `validate`.

use bulkhead_crds::names;
use serde_json::{Value, json};

use crate::cell::validate::Identity;

/// On a namespace whose Cell was deleted with `deletionPolicy: Retain`: the one kind that a new Cell may adopt.
pub(crate) const ANNOTATION_RETAINED: &str = "bulkhead.dev/retained";

/// The whole object for a plain create. The annotation in it is the proof of ownership: nobody else's create can carry
/// the UID of a Cell that exists already. No ownerReference, so that no garbage collector ever removes a cell's data.
pub(crate) fn new_namespace(cell: &Identity) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": cell.namespace,
            "labels": wanted_labels(cell),
            "annotations": {names::ANNOTATION_CELL_UID: cell.uid},
        },
    })
}

pub(crate) fn wanted_labels(cell: &Identity) -> Value {
    json!({
        names::LABEL_CELL: cell.name,
        names::LABEL_MANAGED_BY: names::MANAGER,
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
        "pod-security.kubernetes.io/audit": "restricted",
    })
}
