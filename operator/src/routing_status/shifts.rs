//! What the status of a TrafficShift says, purely: whether it holds, and whether every router applies it.

use bulkhead_crds::{TrafficShift, TrafficShiftStatus};
use bulkhead_routing::table::ShiftVerdict;
use jiff::Timestamp;

use super::policies::{not_accepted, programmed};
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
    } else if accepted.status != true.into() {
        not_accepted()
    } else {
        programmed(&snapshot.progress(None, wanted), &[], wanted.generation)
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
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::ObjectVersion;
    use bulkhead_routing::table::Outcome;

    use super::*;
    use crate::fixture;

    /// `Programmed` of a shift that the one router has in its table.
    #[track_caller]
    fn check(accepted: bool, expires_at: &str, expected: (bool, &str)) {
        let spec: TrafficShiftSpec = serde_json::from_value(serde_json::json!({
            "cell": "a", "weight": 0, "reason": "test", "expiresAt": expires_at,
        }))
        .expect("is one");
        let mut shift = TrafficShift::new("s", spec);
        (shift.metadata.uid, shift.metadata.generation) = (Some("u".to_owned()), Some(1));
        let reason = if accepted { "Accepted" } else { "CellNotFound" };
        let accepted = Outcome { ok: accepted, reason, message: "text".to_owned() };
        let verdict = ShiftVerdict { name: "s".to_owned(), accepted };
        let mut serving = Serving::default();
        serving
            .objects
            .insert("TrafficShift/s".to_owned(), ObjectVersion { uid: "u".to_owned(), generation: 1 });
        let router = fixture::router_pod("r-0", serving);
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        let status = status(&shift, Some(&verdict), &Snapshot { asked: true, routers: vec![router] }, now);
        let programmed = find(&status.conditions, "Programmed").expect("is stated");
        assert_eq!((programmed.status, programmed.reason.as_str()), (expected.0.into(), expected.1));
    }

    #[test]
    fn only_what_changes_something_is_programmed() {
        check(true, "2030-01-01T00:00:01Z", (true, "Programmed"));
        check(false, "2030-01-01T00:00:01Z", (false, "NotAccepted"));
        check(true, "2020-01-01T00:00:00Z", (false, "Expired"));
    }
}
