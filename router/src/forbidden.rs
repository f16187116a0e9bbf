//! What cells asked for and may not reach, counted for the operator, which tells it as Events. Bounded, because cells
//! choose the words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// Destinations of one cell that are told apart; what comes later is refused all the same and not listed. Each cell has its
/// own, so that none can silence another.
const MOST_OF_A_CELL: usize = 16;
/// Bytes of a destination's name, as far as it is listed.
const MOST_NAME: usize = 260;

type Counts = BTreeMap<String, Arc<AtomicU64>>;

/// Of one process. Nothing here is locked. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Forbidden(Arc<ArcSwap<Counts>>);

impl Forbidden {
    /// A cell of the table asked for a destination, by its name or where there is none by what it wrote.
    pub(crate) fn note(&self, cell: &str, destination: &str) {
        let end = destination.floor_char_boundary(MOST_NAME.min(destination.len()));
        let pair = format!("{cell}/{}", &destination[..end]);
        if !self.0.load().contains_key(&pair) {
            self.0.rcu(|counts| {
                let mut counts = Counts::clone(counts);
                let of_cell = |pair: &&String| pair.split_once('/').is_some_and(|(its, _)| its == cell);
                if counts.keys().filter(of_cell).count() < MOST_OF_A_CELL {
                    counts.entry(pair.clone()).or_default();
                }
                counts
            });
        }
        if let Some(count) = self.0.load().get(&pair) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// By `CELL/DESTINATION`, since the process began.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = self.0.load();
        counts.iter().map(|(pair, count)| (pair.clone(), count.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_each_for_itself_and_no_cell_takes_the_room_of_another() {
        let forbidden = Forbidden::default();
        for (cell, destination) in [("a", "visa"), ("b", "visa"), ("a", "visa")] {
            forbidden.clone().note(cell, destination);
        }
        let counts = forbidden.counts();
        assert_eq!((counts.len(), counts["a/visa"], counts["b/visa"]), (2, 2, 1));
        for number in 0..2 * MOST_OF_A_CELL {
            forbidden.note("a", &number.to_string());
        }
        forbidden.note("a", "visa");
        forbidden.note("b", "amex");
        let counts = forbidden.counts();
        assert_eq!((counts.len(), counts["a/visa"], counts["b/amex"]), (MOST_OF_A_CELL + 2, 3, 1));
    }

    #[test]
    fn a_long_name_is_cut() {
        let forbidden = Forbidden::default();
        forbidden.note("a", &"ä".repeat(1_000));
        assert_eq!(forbidden.counts().keys().map(String::len).collect::<Vec<_>>(), ["a/".len() + 260]);
    }
}
