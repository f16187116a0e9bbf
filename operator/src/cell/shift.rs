//! The TrafficShifts that the operator makes to take a cell out: their names and contents, and the calls that make and
//! remove them. When to do so is decided by `rollout` and `deletion`.

use bulkhead_crds::shift::ShiftOwner;
use bulkhead_crds::{Cell, CellState, TrafficShift, names};
use jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DeserializeGuard};
use serde_json::{Value, json};

use super::Context;
use super::observe::Observed;
use super::validate::{Identity, Problem};
use crate::kinds;
use crate::routing_status::snapshot::{CellTraffic, Wanted};
use crate::writer::Error;

/// Reason of the problem that the cluster knows no TrafficShifts.
pub(crate) const KIND_UNKNOWN: &str = "ShiftNotMade";

/// What the operator takes a cell out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Update,
    Delete,
}

impl Purpose {
    pub(crate) fn name(self, cell: &str) -> String {
        match self {
            Self::Update => format!("bulkhead-update-{cell}"),
            Self::Delete => format!("bulkhead-delete-{cell}"),
        }
    }
}

pub(crate) fn resource() -> ApiResource {
    kinds::resource(names::GROUP, names::VERSION, "TrafficShift", "trafficshifts")
}

fn object(cell: &Identity, purpose: Purpose, reason: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "TrafficShift",
        "metadata": {
            "name": purpose.name(&cell.name),
            "labels": {names::LABEL_CELL: cell.name, names::LABEL_MANAGED_BY: names::MANAGER},
            "annotations": {names::ANNOTATION_CELL_UID: cell.uid},
        },
        "spec": {"cell": cell.name, "weight": 0, "reason": reason, "owner": "Operator"},
    })
}

/// The operator's shift for that cell and purpose, if it exists.
pub(crate) fn find<'a>(observed: &'a Observed, cell: &str, purpose: Purpose) -> Option<&'a TrafficShift> {
    let name = purpose.name(cell);
    observed.shifts.iter().find(|shift| {
        shift.metadata.name.as_deref() == Some(name.as_str()) && shift.spec.owner == ShiftOwner::Operator
    })
}

/// Makes the shift; that it exists already is fine. A problem where only people can help.
///
/// # Errors
/// What may go away by itself.
pub(crate) async fn make(
    context: &Context,
    cell: &Identity,
    purpose: Purpose,
    reason: &str,
) -> Result<Result<(), Problem>, super::Error> {
    let Err(error) = context.writer.create(&resource(), None, &object(cell, purpose, reason)).await else {
        return Ok(Ok(()));
    };
    match error.code() {
        Some(409) => check_owner(context, &purpose.name(&cell.name)).await,
        Some(404) => Ok(Err(Problem::new(
            KIND_UNKNOWN,
            format!(
                "this cluster knows no TrafficShifts ({error}), and without one the routers are not told to take the \
                 cell out; install the chart bulkhead-crds again"
            ),
        ))),
        _ if error.is_refusal() => Ok(Err(Problem::new(
            "ShiftRefused",
            format!(
                "the API server refuses the TrafficShift that takes the cell out ({error}); change the webhook, policy \
                 or role that refuses it"
            ),
        ))),
        _ => Err(error.into()),
    }
}

/// A problem where the shift of that name is not the operator's, so that it need not take the cell out.
async fn check_owner(context: &Context, name: &str) -> Result<Result<(), Problem>, super::Error> {
    let api = Api::<TrafficShift>::all(context.client.clone());
    let found = api.get_opt(name).await?;
    Ok(match found {
        Some(shift) if shift.spec.owner != ShiftOwner::Operator => Err(Problem::new(
            "ShiftNameTaken",
            format!(
                "TrafficShift {name} was not made by the operator, which needs that name to take the cell out; delete \
                 it, or make it again under another name"
            ),
        )),
        Some(_) | None => Ok(()),
    })
}

/// # Errors
/// What the API server said; that it is gone already is none.
pub(crate) async fn remove(context: &Context, shift: &TrafficShift) -> Result<(), Error> {
    let name = shift.metadata.name.as_deref().unwrap_or_default();
    context.writer.delete(&resource(), None, name, shift.metadata.uid.as_deref().unwrap_or_default()).await
}

/// Whether another cell is out for an update, asked of the API server itself: two reconciles that decided on older answers
/// must not both begin. A Cell that cannot be read may be of any template; nobody waits for one that leaves.
///
/// # Errors
/// What the API server said.
pub(crate) async fn another_is_out(context: &Context, siblings: &[Cell], me: &str) -> kube::Result<bool> {
    let api = Api::<DeserializeGuard<TrafficShift>>::all(context.client.clone());
    let params = ListParams::default().labels(&format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGER));
    let shifts = api.list(&params).await?;
    let unreadable = context.stores.cells.state_filter(|cell| cell.0.is_err());
    let updates: Vec<String> = siblings
        .iter()
        .map(Resource::meta)
        .chain(unreadable.iter().map(|cell| cell.meta()))
        .filter(|meta| meta.deletion_timestamp.is_none())
        .filter_map(|meta| meta.name.as_deref())
        .filter(|name| *name != me)
        .map(|name| Purpose::Update.name(name))
        .collect();
    Ok(shifts
        .items
        .iter()
        .filter_map(|guard| guard.0.as_ref().ok())
        .any(|shift| shift.metadata.name.as_ref().is_some_and(|name| updates.contains(name))))
}

/// The weight that spec and other people's shifts leave a cell, now. Our own are left out.
pub(crate) fn weight_without_ours(cell: &Cell, shifts: &[TrafficShift], now: Timestamp) -> u32 {
    lowest(cell, shifts.iter().filter(|shift| shift.spec.owner == ShiftOwner::User), now)
}

/// The weight that spec and all shifts leave a cell, now.
pub(crate) fn weight(cell: &Cell, shifts: &[TrafficShift], now: Timestamp) -> u32 {
    lowest(cell, shifts.iter(), now)
}

fn lowest<'a>(cell: &Cell, shifts: impl Iterator<Item = &'a TrafficShift>, now: Timestamp) -> u32 {
    shifts
        .filter(|shift| shift.spec.cell.as_deref() == Some(cell.name()))
        .filter(|shift| {
            let end = shift.spec.expires_at.as_deref().and_then(|end| end.parse::<Timestamp>().ok());
            end.is_none_or(|end| end > now)
        })
        .map(|shift| match shift.spec.state {
            Some(CellState::Drained | CellState::Disabled) => 0,
            Some(CellState::Active) | None => shift.spec.weight.unwrap_or(100),
        })
        .fold(cell.spec_weight(), u32::min)
}

/// How the routers treat the cell; with the shift, they must have it in their tables to count as not holding the cell.
pub(crate) fn traffic(observed: &Observed, cell: &str, shift: Option<&TrafficShift>) -> CellTraffic {
    let Some(shift) = shift else { return observed.snapshot.cell(cell, None) };
    let key = format!("TrafficShift/{}", shift.metadata.name.as_deref().unwrap_or_default());
    let wanted = Wanted {
        key: &key,
        uid: shift.metadata.uid.as_deref().unwrap_or_default(),
        generation: shift.metadata.generation.unwrap_or(1),
    };
    observed.snapshot.cell(cell, Some(wanted))
}

/// When the shift was made.
pub(crate) fn made_at(shift: Option<&TrafficShift>) -> Option<Timestamp> {
    shift?.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Whether the wait for the drain of a cell that goes out since then is over: nothing is left, or what is left has had
/// the drain time-out while no router sends anything new.
pub(crate) fn is_drained(
    traffic: &CellTraffic,
    since: Option<Timestamp>,
    drain_timeout_ms: i64,
    now: Timestamp,
) -> bool {
    let silent = traffic.known && traffic.sending == 0 && traffic.effective_weight == Some(0);
    traffic.is_drained() || (silent && has_passed(drain_timeout_ms, since, now))
}

/// Whether that many milliseconds have passed since then.
pub(crate) fn has_passed(millis: i64, since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_some_and(|since| now.as_millisecond().saturating_sub(since.as_millisecond()) > millis)
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{CellSpec, TrafficShiftSpec};

    use super::*;

    fn cell(weight: u32) -> Cell {
        Cell::new("a", CellSpec { weight, ..CellSpec::default() })
    }

    fn shift(
        weight: Option<u32>,
        state: Option<CellState>,
        expires_at: Option<&str>,
        owner: ShiftOwner,
    ) -> TrafficShift {
        let spec = TrafficShiftSpec {
            cell: Some("a".to_owned()),
            weight,
            state,
            policy: None,
            weights: Vec::new(),
            reason: "test".to_owned(),
            expires_at: expires_at.map(ToOwned::to_owned),
            owner,
        };
        TrafficShift::new("s", spec)
    }

    #[test]
    fn other_peoples_shifts_lower_the_weight_until_they_expire() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        let check = |shift: TrafficShift, expected| {
            assert_eq!(weight_without_ours(&cell(80), &[shift], now), expected)
        };
        let later = Some("2030-01-01T00:00:01Z");
        check(shift(Some(50), None, later, ShiftOwner::User), 50);
        check(shift(Some(100), None, later, ShiftOwner::User), 80);
        check(shift(None, Some(CellState::Drained), later, ShiftOwner::User), 0);
        check(shift(Some(50), None, Some("2029-12-31T23:59:59Z"), ShiftOwner::User), 80);
        check(shift(Some(0), None, None, ShiftOwner::Operator), 80);
    }

    #[test]
    fn what_does_not_finish_is_waited_for_no_longer_than_the_drain_time_out() {
        let now: Timestamp = "2030-01-01T00:01:00Z".parse().expect("a time");
        let since: Option<Timestamp> = Some("2030-01-01T00:00:00Z".parse().expect("a time"));
        let mut traffic = CellTraffic {
            known: true,
            routers: 1,
            effective_weight: Some(0),
            in_flight: 1,
            holding: vec!["r".to_owned()],
            ..CellTraffic::default()
        };
        assert!(is_drained(&traffic, since, 30_000, now));
        assert!(!is_drained(&traffic, since, 90_000, now));
        assert!(!is_drained(&traffic, None, 30_000, now), "it does not go out");
        traffic.sending = 1;
        assert!(!is_drained(&traffic, since, 30_000, now), "a router still sends");
    }
}
