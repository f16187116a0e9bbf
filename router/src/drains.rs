//! How long each cell has been without weight: what is under way in one that is drained has the Router's `drainTimeout`
//! to end. What ends it then are those who wait for it, who see it by [`CellLive::drains_over`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::live::CellLive;

/// The cells of the table in force, and those that are gone, for as long as what is under way in them may take.
#[derive(Default)]
pub(crate) struct Drains {
    cells: HashMap<Arc<str>, Known>,
    looks: u64,
}

struct Known {
    live: Arc<CellLive>,
    /// The last look that found the cell in the table.
    seen: u64,
    drained_since_ms: Option<u64>,
    is_over: bool,
}

impl Drains {
    /// Takes the cells of the table with whether each is drained now. A cell that is gone is drained as well. Whether the
    /// time of any is over since the last look.
    pub(crate) fn look<'a>(
        &mut self,
        cells: impl Iterator<Item = (&'a Arc<CellLive>, bool)>,
        within: Duration,
        now_ms: u64,
    ) -> bool {
        self.looks += 1;
        for (live, is_drained) in cells {
            let known = self.cells.entry(Arc::clone(&live.name)).or_insert_with(|| Known::new(live));
            known.seen = self.looks;
            known.set(is_drained, now_ms);
        }
        let mut any = false;
        for known in self.cells.values_mut() {
            if known.seen != self.looks {
                known.set(true, now_ms);
            }
            any |= known.ends(within, now_ms);
        }
        self.cells.retain(|_, known| known.seen == self.looks || !known.is_over);
        any
    }
}

impl Known {
    fn new(live: &Arc<CellLive>) -> Self {
        Self { live: Arc::clone(live), seen: 0, drained_since_ms: None, is_over: false }
    }

    fn set(&mut self, is_drained: bool, now_ms: u64) {
        if is_drained {
            self.drained_since_ms.get_or_insert(now_ms);
        } else {
            (self.drained_since_ms, self.is_over) = (None, false);
        }
    }

    /// Whether its time is over now, and was not before.
    fn ends(&mut self, within: Duration, now_ms: u64) -> bool {
        let lasted = self.drained_since_ms.map(|since| Duration::from_millis(now_ms.saturating_sub(since)));
        if self.is_over || lasted.is_none_or(|lasted| lasted < within) {
            return false;
        }
        self.is_over = true;
        self.live.drain_is_over();
        let left = self.live.in_flight();
        if left > 0 {
            tracing::warn!(
                cell = &*self.live.name,
                left,
                "the time of the drain is over; what is left is cut"
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    /// Looks at these times at whether the cell is drained, none where it is gone, and says when its time was over.
    #[track_caller]
    fn check(looks: &[(u64, Option<bool>)], expected: &[u64]) {
        let (mut drains, live) = (Drains::default(), Arc::new(CellLive::new("a")));
        let mut over = Vec::new();
        for (second, is_drained) in looks {
            let before = live.drains_over();
            let cells = is_drained.iter().map(|is_drained| (&live, *is_drained));
            let any = drains.look(cells, WITHIN, second * 1_000);
            assert_eq!(live.drains_over() - before, u32::from(any), "at {second}");
            over.extend(any.then_some(*second));
        }
        assert_eq!(over, expected, "{looks:?}");
    }

    #[test]
    fn a_drain_is_over_once_when_its_time_is() {
        let (serves, drained) = (Some(false), Some(true));
        check(&[(0, serves), (100, serves)], &[]);
        check(&[(0, serves), (10, drained), (39, drained), (40, drained), (90, drained)], &[40]);
        // As a router begins, it does not know since when.
        check(&[(5, drained), (34, drained), (35, drained)], &[35]);
    }

    #[test]
    fn weight_given_back_in_time_ends_it_and_another_drain_begins_anew() {
        let (serves, drained) = (Some(false), Some(true));
        check(&[(0, drained), (29, serves), (30, drained), (59, drained), (60, drained)], &[60]);
        check(&[(0, drained), (30, drained), (31, serves), (32, drained), (62, drained)], &[30, 62]);
    }

    #[test]
    fn a_cell_that_is_gone_is_drained_until_it_is_back() {
        let (serves, drained) = (Some(false), Some(true));
        check(&[(0, serves), (10, None), (39, None), (40, None), (80, None)], &[40]);
        check(&[(0, drained), (10, None), (30, None), (31, serves)], &[30]);
        check(&[(0, serves), (10, None), (39, serves), (50, serves)], &[]);
    }

    #[test]
    fn a_cell_that_is_gone_for_good_is_forgotten() {
        let (mut drains, live) = (Drains::default(), Arc::new(CellLive::new("a")));
        drains.look([(&live, false)].into_iter(), WITHIN, 0);
        drains.look(std::iter::empty(), WITHIN, 0);
        assert_eq!(Arc::strong_count(&live), 2);
        drains.look(std::iter::empty(), WITHIN, 30_000);
        assert_eq!(Arc::strong_count(&live), 1);
    }
}
