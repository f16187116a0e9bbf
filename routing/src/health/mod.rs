//! Whether a cell is in, in the eyes of one router, and how it comes back. The streams, sockets and timers that make
//! the events are the router's.

mod cell;
mod evidence;
mod fleet;
mod observer;
mod samples;
#[cfg(test)]
mod stories;
#[cfg(test)]
mod story;
mod suspicion;
#[cfg(test)]
mod trials;

pub use cell::{Effect, Event, Pod, Standing, State, step};
pub use evidence::{Case, Fault};
pub use fleet::Fleet;
pub use observer::{Doubt, Observer, observe};
pub use samples::{Part, Samples};
pub use suspicion::Beside;

use crate::table::Failback;

/// Percent of its weight that a cell gets at that age: nothing while it is held down, then step by step, then all.
/// Age is the lesser of how long the cell has been ready and how long ago this router let it in again.
pub fn ramp(failback: &Failback, age_ms: u64) -> u32 {
    let Some(climbing) = age_ms.checked_sub(failback.hold_down_ms) else { return 0 };
    let step = climbing.checked_div(failback.interval_ms).unwrap_or(u64::MAX);
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    failback.steps.get(step).copied().unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(failback: &Failback, ages: &[(u64, u32)]) {
        for (age, expected) in ages {
            assert_eq!(ramp(failback, *age), *expected, "at {age} ms");
        }
    }

    #[test]
    fn a_cell_waits_and_then_climbs_step_by_step() {
        let failback = Failback { hold_down_ms: 10_000, steps: vec![5, 25, 50, 100], interval_ms: 10_000 };
        check(
            &failback,
            &[
                (0, 0),
                (9_999, 0),
                (10_000, 5),
                (19_999, 5),
                (20_000, 25),
                (30_000, 50),
                (40_000, 100),
                (u64::MAX, 100),
            ],
        );
    }

    #[test]
    fn without_wait_or_steps_it_is_back_at_once() {
        check(&Failback { hold_down_ms: 0, steps: vec![], interval_ms: 1_000 }, &[(0, 100), (5, 100)]);
        check(&Failback { hold_down_ms: 5, steps: vec![10, 50], interval_ms: 0 }, &[(4, 0), (5, 100)]);
    }
}
