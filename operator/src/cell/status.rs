//! Step five of a Cell's reconcile: the one write of its status, left out when nothing is new, and the Events that tell
//! of what changed. What the status says is decided in `statements`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bulkhead_crds::condition::{find, is_true};
use bulkhead_crds::{Cell, CellStatus, Condition};
use serde_json::{Value, json};

use super::health::judge;
use super::observe::Observed;
use super::statements::{Report, compute};
use super::validate::Problem;
use super::{Context, Error};
use crate::clock;
use crate::routing_status::snapshot::CellTraffic;

/// In flight changes all the time, so it is written no more often than this.
const IN_FLIGHT_MS: i64 = 10_000;

/// The last status that was written of each Cell, so that a store that lags behind does not make us write it again.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashMap<String, Last>>);

#[derive(Clone, Debug)]
struct Last {
    /// Version of the Cell that the write was decided on.
    version: Option<String>,
    status: Value,
    in_flight_at: i64,
}

/// Writes the status where it differs, and tells of transitions once they are written.
///
/// # Errors
/// What the API server said.
pub(crate) async fn write(context: &Context, cell: &Cell, report: &Report) -> Result<(), Error> {
    let now = clock::now();
    let mut status = compute(cell, report, now);
    let uid = cell.metadata.uid.clone().unwrap_or_default();
    let last = context.written.0.lock().unwrap_or_else(PoisonError::into_inner).get(&uid).cloned();
    let before = cell.status.clone().unwrap_or_default();
    let millis = now.as_millisecond();
    let in_flight_at = last.as_ref().map_or(0, |last| last.in_flight_at);
    let soon = millis.saturating_sub(in_flight_at) < IN_FLIGHT_MS;
    if soon && status.in_flight.is_some_and(|count| count > 0) && before.in_flight.is_some() {
        keep_in_flight(&mut status, &before);
    }
    let value = json!(status);
    let repeated =
        last.is_some_and(|last| last.status == value && last.version == cell.metadata.resource_version);
    if status == before || repeated {
        return Ok(());
    }
    context.writer.status(&context.cell_resource(), None, cell.name(), &value).await?;
    let in_flight_at = if status.in_flight == before.in_flight { in_flight_at } else { millis };
    let version = cell.metadata.resource_version.clone();
    let written = Last { version, status: value, in_flight_at };
    context.written.0.lock().unwrap_or_else(PoisonError::into_inner).insert(uid, written);
    tell(context, cell, &before.conditions, &status.conditions).await;
    Ok(())
}

/// Leaves the number, and the sentence that has it, as they were written.
fn keep_in_flight(status: &mut CellStatus, before: &CellStatus) {
    status.in_flight = before.in_flight;
    for r#type in ["Drained", "Ready", "Reconciling"] {
        let Some(old) = find(&before.conditions, r#type) else { continue };
        if let Some(new) = status.conditions.iter_mut().find(|new| new.r#type == r#type)
            && (new.status, &new.reason) == (old.status, &old.reason)
        {
            new.message.clone_from(&old.message);
        }
    }
}

async fn tell(context: &Context, cell: &Cell, before: &[Condition], after: &[Condition]) {
    let about = context.about(cell);
    for r#type in ["Ready", "Drained", "Stalled"] {
        let (was, is) = (is_true(before, r#type), is_true(after, r#type));
        let Some(condition) = find(after, r#type) else { continue };
        let reason_changed = find(before, r#type).is_none_or(|old| old.reason != condition.reason);
        match (r#type, was, is) {
            ("Ready", false, true) => {
                context.writer.event(false, "Ready", condition.message.clone(), &about).await
            }
            ("Ready", true, false) => {
                context.writer.event(true, "NotReady", condition.message.clone(), &about).await;
            }
            ("Drained", false, true) => {
                context.writer.event(false, "Drained", condition.message.clone(), &about).await
            }
            ("Stalled", _, true) if reason_changed || !was => {
                context.writer.event(true, &condition.reason, condition.message.clone(), &about).await;
            }
            _ => {}
        }
    }
}

/// The status of a Cell that is being deleted; `held` is what people should know of.
///
/// # Errors
/// What the API server said.
pub(crate) async fn write_leaving(
    context: &Context,
    cell: &Cell,
    observed: &Observed,
    traffic: &CellTraffic,
    message: &str,
    held: Option<Problem>,
) -> Result<(), Error> {
    let last = cell.status.clone().unwrap_or_default();
    let report = Report {
        namespace: last.namespace,
        namespace_uid: last.namespace_uid,
        current_revision: last.current_revision,
        update_revision: last.update_revision,
        health: judge(&observed.objects, &[], |_, _| false),
        voices: observed.voices.clone(),
        objects: observed.objects.len(),
        traffic: traffic.clone(),
        drained: traffic.is_drained(),
        external: !cell.spec.endpoints.is_empty(),
        leaving: Some(message.to_owned()),
        held,
        ..Report::default()
    };
    write(context, cell, &report).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fixture;

    #[tokio::test]
    async fn an_event_tells_of_a_status_only_once_that_is_written() {
        let away = AtomicBool::new(true);
        let (client, requests) = fixture::api_server(move |line| {
            let fails = line.ends_with("/status") && away.swap(false, Ordering::SeqCst);
            fails.then(|| fixture::failure(500, "no leader"))
        });
        let context = fixture::context(client);
        let stuck = Report { problem: Some(Problem::new("NamespaceNotOwned", "text")), ..Report::default() };

        assert!(write(&context, &fixture::cell(), &stuck).await.is_err());
        assert_eq!(requests.events(), [""; 0]);
        write(&context, &fixture::cell(), &stuck).await.expect("is written");
        assert_eq!(requests.events(), ["NamespaceNotOwned"]);
        let last = requests.all().pop().expect("something was sent");
        assert!(last.ends_with("/events"), "{last}");
    }
}
