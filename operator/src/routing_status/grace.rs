//! A moment for routers to follow, before a status says that they are waited for: most have the change as soon as the operator
//! has seen it, and then one write says all. Pure.

use std::collections::HashMap;
use std::time::Duration;

/// For how long a status is kept back that says nothing but that routers are waited for.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Objects that wait for routers, by UID: in which generation, and since when.
#[derive(Debug, Default)]
pub(super) struct Grace(HashMap<String, (i64, u64)>);

impl Grace {
    /// These wait now, each in that generation, and no others.
    pub(super) fn renew<'a>(&mut self, waiting: impl Iterator<Item = (&'a str, i64)>, now_ms: u64) {
        let since = |(uid, generation): (&str, i64)| {
            let before = self.0.get(uid).filter(|(before, _)| *before == generation);
            (uid.to_owned(), (generation, before.map_or(now_ms, |(_, since)| *since)))
        };
        self.0 = waiting.map(since).collect();
    }

    /// Whether its status is still kept back.
    pub(super) fn holds(&self, uid: &str, now_ms: u64) -> bool {
        let since = self.0.get(uid).map(|(_, since)| *since);
        since.is_some_and(|since| u128::from(now_ms.saturating_sub(since)) < GRACE.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_has_its_moment_and_no_more() {
        let mut grace = Grace::default();
        let mut check = |generation, now, expected| {
            grace.renew([("u", generation)].into_iter(), now);
            assert_eq!(grace.holds("u", now), expected, "generation {generation} at {now}");
        };
        check(1, 0, true);
        check(1, 1_999, true);
        check(1, 2_000, false);
        check(1, 5_000, false);
        check(2, 5_000, true);
        check(2, 7_000, false);
    }

    #[test]
    fn who_waits_again_has_another_moment() {
        let mut grace = Grace::default();
        grace.renew([("u", 1)].into_iter(), 0);
        grace.renew(std::iter::empty(), 500);
        assert!(!grace.holds("u", 500));
        grace.renew([("u", 1)].into_iter(), 2_000);
        assert!(grace.holds("u", 3_999) && !grace.holds("u", 4_000));
    }
}
