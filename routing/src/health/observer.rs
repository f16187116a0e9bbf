//! The router's doubt in itself: when every cell falls silent at once, it is more likely that the router was deaf.

use bulkhead_protocol::health::{BEAT_INTERVAL, SILENCE};

/// How long verdicts are held, in the router's own running time.
const HOLD_MS: u64 = 250;

/// What the router has to remember about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observer {
    last_tick_ms: Option<u64>,
    /// How long it has run since it began to hold.
    held_ms: Option<u64>,
}

/// What one tick means for the verdicts on silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Judge as usual.
    None,
    /// Reason `ObserverStalled`: judge nothing at this tick. `began` is true for the first of a row.
    ObserverStalled { began: bool },
}

/// `heard` is when each cell that is in was last heard; `late_ms`, by how much the timer of this tick was late.
pub fn observe(
    observer: Observer,
    heard: impl Iterator<Item = u64>,
    late_ms: u64,
    now_ms: u64,
) -> (Observer, Doubt) {
    let since = observer.last_tick_ms.map_or(0, |last| now_ms.saturating_sub(last));
    let ran_ms = since.saturating_sub(late_ms);
    let last_tick_ms = Some(now_ms);
    let held_ms = match observer.held_ms {
        _ if !all_fell_silent(heard, late_ms, now_ms) => None,
        None => Some(0),
        Some(held) => Some(held.saturating_add(ran_ms)),
    };
    let doubt = match held_ms {
        Some(held) if held < HOLD_MS => Doubt::ObserverStalled { began: observer.held_ms.is_none() },
        Some(_) | None => Doubt::None,
    };
    (Observer { last_tick_ms, held_ms }, doubt)
}

/// Whether all are silent now, and were last heard within one heartbeat of each other.
fn all_fell_silent(heard: impl Iterator<Item = u64>, late_ms: u64, now_ms: u64) -> bool {
    let ends = heard.fold(None, |ends: Option<(u64, u64)>, time| {
        let (first, last) = ends.unwrap_or((time, time));
        Some((first.min(time), last.max(time)))
    });
    let Some((first, last)) = ends else { return false };
    let silent = now_ms.saturating_sub(last.saturating_add(late_ms)) > SILENCE.as_millis() as u64;
    silent && last - first <= BEAT_INTERVAL.as_millis() as u64
}
