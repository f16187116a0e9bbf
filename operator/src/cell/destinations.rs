//! What a Cell's status says of the Destinations that it names, purely. Which of them its template may send to is `validate`'s.

use bulkhead_crds::Cell;

use super::observe::Observed;
use crate::conditions::{Statement, statement};

/// The Destinations that a Cell names.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    pub count: usize,
    /// Of these, those that do not exist.
    pub missing: Vec<String>,
}

impl Destinations {
    pub(super) fn of(cell: &Cell, observed: &Observed) -> Self {
        let named = &cell.spec.destinations;
        let missing = named.iter().filter(|name| !observed.destinations.contains(*name));
        Self { count: named.len(), missing: missing.cloned().collect() }
    }

    /// Not stated of a cell that names none. No part of `Ready`: the cell does its work for all transactions that go elsewhere,
    /// and what is missing can be made at any time without touching it.
    pub(super) fn resolved(&self) -> Option<Statement> {
        const TYPE: &str = "DestinationsResolved";
        if self.count == 0 {
            return None;
        }
        if self.missing.is_empty() {
            let text = format!("all {} Destinations that it names exist", self.count);
            return Some(statement(TYPE, true, TYPE, text));
        }
        let text = format!(
            "there is no Destination {}; make it, or take it out of spec.destinations; until then transactions that go there \
             are answered 403",
            self.missing.join(", ")
        );
        Some(statement(TYPE, false, "DestinationNotFound", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[track_caller]
    fn check(named: &[&str], existing: &[&str], expected: Option<(bool, &str)>) {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut cell = fixture::cell();
        cell.spec.destinations = all(named);
        let observed = Observed { destinations: all(existing).into_iter().collect(), ..Observed::default() };
        let said = Destinations::of(&cell, &observed).resolved();
        let (holds, words) = expected.unzip();
        assert_eq!(said.as_ref().map(|said| said.status), holds.map(Into::into), "{said:?}");
        let text = said.map(|said| said.message).unwrap_or_default();
        assert!(text.contains(words.unwrap_or_default()), "{text}");
    }

    #[test]
    fn what_does_not_exist_is_named() {
        check(&["visa", "mastercard"], &["mastercard", "visa"], Some((true, "all 2 Destinations")));
        check(&["visa", "mastercard", "amex"], &["visa"], Some((false, "no Destination mastercard, amex;")));
        check(&[], &["visa"], None);
    }
}
