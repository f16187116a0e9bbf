//! Removes the operator's own shifts that outlived what they were made for: a crash between two writes leaves them, and
//! nobody else removes them.

use bulkhead_crds::shift::ShiftOwner;
use bulkhead_crds::{TrafficShift, names};
use kube::ResourceExt;

use super::World;
use crate::cell::Context;
use crate::cell::shift::{Purpose, remove};
use crate::writer::Error;

pub(super) async fn remove_orphans(context: &Context, world: &World) -> Result<(), Error> {
    for shift in world.shifts.iter().filter(|shift| is_orphan(shift, world)) {
        remove(context, shift).await?;
    }
    Ok(())
}

/// One of the operator's shifts whose Cell, by its UID, no longer exists. A Cell that cannot be read exists all the same:
/// without its shift, routers would send to it in the middle of its update.
fn is_orphan(shift: &TrafficShift, world: &World) -> bool {
    let Some(cell) = shift.spec.cell.as_deref() else { return false };
    let name = shift.name_any();
    let made_by_us = shift.spec.owner == ShiftOwner::Operator
        && shift.labels().get(names::LABEL_MANAGED_BY).is_some_and(|manager| manager == names::MANAGER)
        && [Purpose::Update, Purpose::Delete].iter().any(|purpose| purpose.name(cell) == name);
    let uid = shift.annotations().get(names::ANNOTATION_CELL_UID).cloned().unwrap_or_default();
    made_by_us && !world.existing.contains(&(cell.to_owned(), uid))
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;

    use super::*;
    use crate::routing_status::identity;

    fn shift(name: &str, owner: &str) -> TrafficShift {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "TrafficShift",
            "metadata": {"name": name, "labels": {names::LABEL_MANAGED_BY: names::MANAGER},
                         "annotations": {names::ANNOTATION_CELL_UID: "u"}},
            "spec": {"cell": "a", "weight": 0, "reason": "test", "owner": owner, "expiresAt": "2030-01-01T00:00:00Z"},
        }))
        .expect("is one")
    }

    fn world(uid: Option<&str>) -> World {
        let meta = |uid: &str| ObjectMeta {
            name: Some("a".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        // None of them can be read.
        World { existing: uid.map(|uid| identity(&meta(uid))).into_iter().collect(), ..World::default() }
    }

    #[test]
    fn only_our_own_shift_of_a_cell_that_is_gone_is_an_orphan() {
        let ours = shift("bulkhead-update-a", "Operator");
        assert!(!is_orphan(&ours, &world(Some("u"))));
        assert!(is_orphan(&ours, &world(Some("another"))));
        assert!(is_orphan(&ours, &world(None)));
        assert!(!is_orphan(&shift("incident", "Operator"), &world(None)));
        assert!(!is_orphan(&shift("bulkhead-update-a", "User"), &world(None)));
    }
}
