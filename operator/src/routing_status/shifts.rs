//! What the status of a TrafficShift says, purely: whether it holds, and whether every router applies it.

use bulkhead_crds::{TrafficShift, TrafficShiftStatus};
use bulkhead_routing::table::ShiftVerdict;
use jiff::Timestamp;

use super::policies::programmed;
use super::snapshot::{Snapshot, Wanted};
use crate::clock::rfc3339;
use crate::conditions::{state, statement};

pub(super) fn status(
    shift: &TrafficShift,
    verdict: Option<&ShiftVerdict>,
    snapshot: &Snapshot,
    now: Timestamp,
) -> TrafficShiftStatus {
    let generation = shift.metadata.generation;
    let key = format!("TrafficShift/{}", shift.metadata.name.as_deref().unwrap_or_default());
    let wanted = Wanted {
        key: &key,
        uid: shift.metadata.uid.as_deref().unwrap_or_default(),
        generation: generation.unwrap_or(0),
    };
    let accepted = match verdict {
        Some(verdict) => statement(
            "Accepted",
            verdict.accepted.ok,
            verdict.accepted.reason,
            verdict.accepted.message.clone(),
        ),
        None => statement("Accepted", false, "NoRouter", "there is no Router that could apply it"),
    };
    let programmed = if has_ended(shift, now) {
        statement("Programmed", false, "Expired", "it has ended and changes nothing; delete it")
    } else {
        programmed(&snapshot.progress(None, wanted), snapshot.asked, wanted.generation)
    };
    let first_open = [&accepted, &programmed].into_iter().find(|one| one.status != true.into());
    let ready = match first_open {
        Some(open) => statement("Ready", false, open.reason.clone(), open.message.clone()),
        None => statement("Ready", true, "Applied", "every router applies it"),
    };
    let conditions = shift.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    TrafficShiftStatus {
        observed_generation: generation,
        conditions: state(conditions, vec![ready, accepted, programmed], generation, &rfc3339(now)),
    }
}

/// Whether its own end has come; it changes nothing from then on.
pub(super) fn has_ended(shift: &TrafficShift, now: Timestamp) -> bool {
    let end = shift.spec.expires_at.as_deref().and_then(|end| end.parse::<Timestamp>().ok());
    end.is_some_and(|end| end <= now)
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::TrafficShiftSpec;
    use bulkhead_crds::condition::find;

    use super::*;

    #[test]
    fn an_expired_shift_says_that_it_changes_nothing() {
        let spec: TrafficShiftSpec = serde_json::from_value(serde_json::json!({
            "cell": "a", "weight": 0, "reason": "test", "expiresAt": "2020-01-01T00:00:00Z",
        }))
        .expect("is one");
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        let status = status(&TrafficShift::new("s", spec), None, &Snapshot::default(), now);
        assert_eq!(find(&status.conditions, "Programmed").map(|one| one.reason.as_str()), Some("Expired"));
    }
}
