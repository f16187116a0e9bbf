//! The loop that judges: on every change, and ten times a second to notice that it was not run for a while. The
//! decisions themselves are `verdict`'s and `age`'s.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::age::Event;
use crate::cell::{Cell, Spoken};
use crate::peers;
use crate::verdict::{OwnView, judge};

const TICK: Duration = Duration::from_millis(100);

pub(crate) async fn run(cell: Arc<Cell>) {
    let mut asked_peers = false;
    loop {
        tokio::select! {
            () = cell.changed.notified() => {}
            () = tokio::time::sleep(TICK) => {}
        }
        let now = cell.clock.millis();
        if let Some(stalled_ms) = cell.judging(now) {
            tracing::warn!(stalled_ms, "this process was not run for a while");
            step(&cell, Event::Stalled, now);
            // Traffic was stopped with everything else, and is judged by what it does from now on.
            cell.see_traffic();
        }
        if speak(&cell, now) && !asked_peers {
            asked_peers = true;
            tokio::spawn(inherit(Arc::clone(&cell)));
        }
    }
}

/// Judges, and tells everybody when something changed. Returns whether the cell is ready.
fn speak(cell: &Cell, now: u64) -> bool {
    let views = cell.views();
    cell.metrics.services(&views);
    cell.metrics.in_flight.set(i64::from(cell.limits.in_flight()));
    cell.metrics.routers.set(i64::from(cell.routers.load(Ordering::SeqCst)));
    let own = OwnView { draining: cell.is_draining(), traffic_silent_ms: cell.traffic_silent_ms() };
    let judgement = judge(&views, own);
    let ready = judgement.ready;
    cell.spoken.send_if_modified(|spoken| {
        let before = spoken.judgement.clone();
        let age = spoken.age.step(Event::Judged { ready }, now);
        if judgement == before {
            return false;
        }
        tracing::info!(
            ready,
            reason = judgement.reason,
            message = judgement.message,
            before = before.reason,
            "the verdict changed"
        );
        *spoken = Spoken { judgement: judgement.clone(), age };
        true
    });
    cell.metrics.ready.set(i64::from(ready));
    ready
}

fn step(cell: &Cell, event: Event, now: u64) {
    cell.spoken.send_if_modified(|spoken| {
        let age = spoken.age.step(event, now);
        let changed = age != spoken.age;
        spoken.age = age;
        changed
    });
}

/// Takes over the age that the other orchestrators of the cell know, once.
async fn inherit(cell: Arc<Cell>) {
    if let Some(ready_for_ms) = peers::longest_ready(&cell).await {
        step(&cell, Event::Inherited { ready_for_ms }, cell.clock.millis());
        tracing::info!(ready_for_ms, "took over from the cell's other orchestrators since when it is ready");
    }
}
