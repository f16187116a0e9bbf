//! Destinations that cells asked for and may not reach, counted for the operator, which tells whoever runs the cell.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Pairs of cell and destination that are counted: names come from cells, which may send any.
const MOST: usize = 1024;

/// Counts of one process, by `CELL/DESTINATION`.
#[derive(Default)]
pub(crate) struct Forbidden(Mutex<BTreeMap<String, u64>>);

impl Forbidden {
    pub(crate) fn note(&self, cell: &str, destination: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = format!("{cell}/{destination}");
        if let Some(count) = counts.get_mut(&pair) {
            *count += 1;
        } else if counts.len() < MOST {
            counts.insert(pair, 1);
        }
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_up_to_a_bound() {
        let forbidden = Forbidden::default();
        (0..2 * MOST).for_each(|number| forbidden.note("a", &number.to_string()));
        (0..2).for_each(|_| forbidden.note("a", "0"));
        let counts = forbidden.counts();
        assert_eq!((counts.len(), counts["a/0"], counts.contains_key("a/2000")), (MOST, 3, false));
    }
}
