//! Which cells asked for a Destination that they may not reach, and when to tell of it: purely, from what routers count.
//! Telling is the caller's.

use std::collections::{BTreeMap, HashMap};

use bulkhead_crds::Cell;

use super::snapshot::Snapshot;

/// Between two Events about the same: a cell may ask hundreds of times a second, and one word in a minute is enough.
const QUIET_MS: u64 = 60_000;

/// A cell asked for a Destination that it may not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub cell: String,
    pub destination: String,
    /// How often since it was last told.
    pub times: u64,
}

/// What routers counted, and what was told of it.
#[derive(Debug, Default)]
pub(super) struct Forbidden {
    /// By pod and `CELL/DESTINATION`; none before the first look, which tells nothing: whoever led before this process told it.
    counted: Option<HashMap<(String, String), u64>>,
    /// By `CELL/DESTINATION`.
    open: BTreeMap<String, Open>,
}

#[derive(Debug, Default)]
struct Open {
    untold: u64,
    told_ms: Option<u64>,
}

impl Forbidden {
    /// What is to be told now.
    pub(super) fn look(&mut self, snapshot: &Snapshot, now_ms: u64) -> Vec<Asked> {
        let counts = counts(snapshot);
        if let Some(before) = &self.counted {
            for ((pod, key), count) in &counts {
                let known = before.get(&(pod.clone(), key.clone())).copied().unwrap_or(0);
                // A process that started anew counts from zero.
                let more = count.checked_sub(known).unwrap_or(*count);
                if more > 0 {
                    self.open.entry(key.clone()).or_default().untold += more;
                }
            }
        }
        self.counted = Some(counts);
        self.tell(now_ms)
    }

    fn tell(&mut self, now_ms: u64) -> Vec<Asked> {
        let is_quiet = |open: &Open| open.told_ms.is_some_and(|told| now_ms.saturating_sub(told) < QUIET_MS);
        self.open.retain(|_, open| open.untold > 0 || is_quiet(open));
        let due = self.open.iter_mut().filter(|(_, open)| open.untold > 0 && !is_quiet(open));
        let asked = due.filter_map(|(key, open)| {
            let times = std::mem::take(&mut open.untold);
            open.told_ms = Some(now_ms);
            let (cell, destination) = key.split_once('/')?;
            Some(Asked { cell: cell.to_owned(), destination: destination.to_owned(), times })
        });
        asked.collect()
    }
}

fn counts(snapshot: &Snapshot) -> HashMap<(String, String), u64> {
    let answers = snapshot.routers.iter().filter_map(|pod| Some((pod, pod.serving.as_ref()?)));
    let counts = answers.flat_map(|(pod, serving)| {
        serving.forbidden.iter().map(|(key, count)| ((pod.pod.clone(), key.clone()), *count))
    });
    counts.collect()
}

/// The sentence about it: what is so, and what to do. `exists` is of the Destination.
pub(super) fn note(asked: &Asked, cell: &Cell, exists: bool) -> String {
    let Asked { destination, times, .. } = asked;
    let (why, cure) = if !cell.spec.destinations.contains(destination) {
        ("which its spec.destinations does not name", "add it there")
    } else if !exists {
        ("which does not exist", "make it")
    } else {
        (
            "which it names and which exists",
            "see that it is Accepted, and that its spec covers what was asked for: the path under spec.http.path, http for \
             messages, connect for tunnels",
        )
    };
    format!(
        "asked for Destination {destination}, {why}, and got 403 (since this was last said: {times}); {cure}, or correct \
         what asks for it"
    )
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Serving;

    use super::super::snapshot::RouterPod;
    use super::*;
    use crate::fixture;

    fn pod(name: &str, forbidden: &[(&str, u64)]) -> RouterPod {
        let forbidden = forbidden.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
        fixture::router_pod(name, Serving { forbidden, ..Serving::default() })
    }

    /// Looks at these routers at that time; `expected` is `CELL/DESTINATION` with how often.
    #[track_caller]
    fn check(forbidden: &mut Forbidden, now_ms: u64, routers: Vec<RouterPod>, expected: &[(&str, u64)]) {
        let told = forbidden.look(&Snapshot { asked: true, routers }, now_ms);
        let told: Vec<_> =
            told.iter().map(|asked| (format!("{}/{}", asked.cell, asked.destination), asked.times)).collect();
        let expected: Vec<_> = expected.iter().map(|(key, times)| ((*key).to_owned(), *times)).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn what_grew_is_told_once_and_what_another_leader_told_is_not() {
        let mut forbidden = Forbidden::default();
        check(&mut forbidden, 0, vec![pod("r-0", &[("a/visa", 7)])], &[]);
        check(&mut forbidden, 1, vec![pod("r-0", &[("a/visa", 7)])], &[]);
        check(&mut forbidden, 2, vec![pod("r-0", &[("a/visa", 9)]), pod("r-1", &[])], &[("a/visa", 2)]);
        check(&mut forbidden, 3, vec![pod("r-0", &[("a/visa", 9)])], &[]);
    }

    #[test]
    fn what_goes_on_is_told_once_in_a_minute_with_all_that_came_meanwhile() {
        let mut forbidden = Forbidden::default();
        check(&mut forbidden, 0, vec![pod("r-0", &[]), pod("r-1", &[])], &[]);
        let both = |one, other| vec![pod("r-0", &[("a/visa", one)]), pod("r-1", &[("a/visa", other)])];
        check(&mut forbidden, 1, both(1, 2), &[("a/visa", 3)]);
        check(&mut forbidden, 2, both(5, 2), &[]);
        check(&mut forbidden, 60_000, both(5, 3), &[]);
        check(&mut forbidden, 60_001, both(5, 3), &[("a/visa", 5)]);
        check(&mut forbidden, 200_000, both(5, 3), &[]);
        assert!(forbidden.open.is_empty(), "nothing is kept of what is over: {forbidden:?}");
    }

    #[test]
    fn a_router_that_started_anew_counts_from_zero_and_each_pair_is_told_for_itself() {
        let mut forbidden = Forbidden::default();
        check(&mut forbidden, 0, vec![pod("r-0", &[("a/visa", 9)])], &[]);
        let anew = pod("r-0", &[("a/visa", 2), ("b/visa", 1)]);
        check(&mut forbidden, 1, vec![anew], &[("a/visa", 2), ("b/visa", 1)]);
    }

    #[test]
    fn the_sentence_says_what_to_add_to_make_or_to_compare() {
        let mut cell = fixture::cell();
        cell.spec.destinations = vec!["visa".to_owned()];
        let check = |destination: &str, exists: bool, words: &str| {
            let asked = Asked { cell: "a".to_owned(), destination: destination.to_owned(), times: 3 };
            let note = note(&asked, &cell, exists);
            assert!(note.contains(words), "{note}");
        };
        check(
            "mastercard",
            true,
            "which its spec.destinations does not name, and got 403 (since this was last said: 3); add it there",
        );
        check("visa", false, "which does not exist, and got 403 (since this was last said: 3); make it");
        check(
            "visa",
            true,
            "which it names and which exists, and got 403 (since this was last said: 3); see that it is Accepted, and that \
             its spec covers what was asked for: the path under spec.http.path",
        );
    }
}
