//! When the next table is made: changes that come together make one, and whoever is changed without end does not keep a core
//! busy with tables. Pure.

use std::time::Duration;

/// Changes that come this close together make one table.
const TOGETHER: Duration = Duration::from_millis(5);
/// So many times as long as a table took, the builder rests after it.
const REST: u32 = 8;
/// But no longer than this: it is what a change may wait for beyond the making of the table.
const REST_MOST: Duration = Duration::from_millis(40);

/// Times count from the start of one monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    rests_until: Duration,
}

impl Pace {
    /// A table was made from then until now: for how long.
    pub(crate) fn made(&mut self, began: Duration, now: Duration) -> Duration {
        let took = now.saturating_sub(began);
        self.rests_until = now + (took * REST).min(REST_MOST);
        took
    }

    /// For how long the changes that come now are gathered.
    pub(crate) fn gathers(&self, now: Duration) -> Duration {
        self.rests_until.saturating_sub(now).max(TOGETHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_waits_longer_only_behind_a_table_that_took_long() {
        let millis = Duration::from_millis;
        let check = |took: u64, later: u64, expected| {
            let mut pace = Pace::default();
            pace.made(millis(1_000), millis(1_000 + took));
            assert_eq!(
                pace.gathers(millis(1_000 + took + later)),
                millis(expected),
                "{took} ms, {later} later"
            );
        };
        assert_eq!(Pace::default().gathers(millis(7)), millis(5));
        check(0, 0, 5);
        check(2, 0, 16);
        check(2, 6, 10);
        check(2, 100, 5);
        check(200, 0, 40);
        check(200, 38, 5);
    }
}
