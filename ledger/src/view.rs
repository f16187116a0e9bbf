//! What people and programs see of a ledger: the JSON of the admin port and of `--json`. It is all that a ledger holds;
//! there is nothing to hide in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bulkhead_protocol::TransactionId;
use serde::{Deserialize, Serialize};

use crate::effect::{Effect, Standing, State};
use crate::record::Resolution;

/// Where the admin port has it.
pub const PATH: &str = "/v1/ledger";

/// A transaction with its effects, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionView {
    pub transaction: String,
    /// Absent where the transaction may be attempted again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub standing: Option<StandingView>,
    pub effects: Vec<EffectView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StandingView {
    Open,
    Unknown,
    Decided,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectView {
    pub n: u32,
    pub attempt: u32,
    /// Empty where the intent is lost or was compacted; the destination too.
    pub cell: String,
    pub destination: String,
    pub state: StateView,
    /// The status of the destination's answer, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    pub intended_unix_millis: u64,
    /// When it got its state.
    pub since_unix_millis: u64,
    /// What the person wrote who resolved it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateView {
    Open,
    Answered,
    NotSent,
    Unknown,
}

/// Which transactions a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Any where it is absent.
    pub standing: Option<StandingView>,
    /// At most so many, those that changed last.
    pub limit: usize,
}

/// A list, and what else is to be said of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListView {
    pub transactions: Vec<TransactionView>,
    /// Those that match but are more than the limit.
    pub more: usize,
    /// A sentence for each place where the ledger is damaged.
    pub damages: Vec<String>,
    /// Sentences that need nothing done.
    pub notes: Vec<String>,
}

/// The body of a request to resolve an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveView {
    pub r#as: ResolutionView,
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResolutionView {
    Answered,
    NotSent,
}

impl From<ResolutionView> for Resolution {
    fn from(view: ResolutionView) -> Self {
        match view {
            ResolutionView::Answered => Self::Answered,
            ResolutionView::NotSent => Self::NotSent,
        }
    }
}

impl From<Standing> for StandingView {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::InFlight => Self::Open,
            Standing::Unknown => Self::Unknown,
            Standing::Decided => Self::Decided,
        }
    }
}

impl From<&Effect> for EffectView {
    fn from(effect: &Effect) -> Self {
        let (state, status) = match effect.state {
            State::Open => (StateView::Open, None),
            State::Answered { status } => (StateView::Answered, status),
            State::NotSent => (StateView::NotSent, None),
            State::Unknown => (StateView::Unknown, None),
        };
        Self {
            n: effect.n,
            attempt: effect.attempt,
            cell: effect.cell.as_ref().to_owned(),
            destination: effect.destination.as_ref().to_owned(),
            state,
            status,
            intended_unix_millis: effect.intended_ms,
            since_unix_millis: effect.since_ms,
            note: effect.note.as_deref().map(str::to_owned),
        }
    }
}

impl TransactionView {
    pub(crate) fn new<'a>(id: &TransactionId, effects: impl IntoIterator<Item = &'a Effect>) -> Self {
        let mut effects: Vec<_> = effects.into_iter().collect();
        effects.sort_unstable_by_key(|effect| effect.n);
        let standing = Standing::of(effects.iter().map(|effect| effect.state));
        Self {
            transaction: id.to_string(),
            standing: standing.map(StandingView::from),
            effects: effects.into_iter().map(EffectView::from).collect(),
        }
    }
}

impl Filter {
    /// Every transaction.
    pub const ALL: Self = Self { standing: None, limit: usize::MAX };
}

/// Picks those that a list shows, without a view of each that it does not show.
pub(crate) struct Newest {
    filter: Filter,
    kept: BinaryHeap<Reverse<(u64, [u8; 16])>>,
    more: usize,
}

impl Newest {
    pub(crate) fn new(filter: Filter) -> Self {
        Self { filter, kept: BinaryHeap::new(), more: 0 }
    }

    pub(crate) fn offer<'a>(&mut self, id: &TransactionId, effects: impl Iterator<Item = &'a Effect>) {
        let mut changed_ms = 0;
        let states = effects.map(|effect| {
            changed_ms = effect.since_ms.max(changed_ms);
            effect.state
        });
        let standing = Standing::of(states).map(StandingView::from);
        if self.filter.standing.is_some_and(|wanted| standing != Some(wanted)) {
            return;
        }
        self.kept.push(Reverse((changed_ms, *id.as_bytes())));
        if self.kept.len() > self.filter.limit {
            self.kept.pop();
            self.more += 1;
        }
    }

    /// The list, the last one that changed first, with a view of each that is still there.
    pub(crate) fn list(self, view: impl Fn(&TransactionId) -> Option<TransactionView>) -> ListView {
        let newest_first = self.kept.into_sorted_vec();
        let ids = newest_first.into_iter().map(|Reverse((_, id))| TransactionId::from_bytes(id));
        ListView {
            transactions: ids.filter_map(|id| view(&id)).collect(),
            more: self.more,
            ..ListView::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Intent;

    fn effect(n: u32, state: State, since_ms: u64) -> Effect {
        let id = TransactionId::from_bytes([1; 16]);
        let intent = Intent { id, n, attempt: 1, cell: "a".into(), destination: "visa".into() };
        Effect { state, since_ms, ..Effect::new(&intent, 1, 1) }
    }

    #[test]
    fn a_transaction_is_shown_with_its_effects_in_order_and_nothing_else() {
        let id = TransactionId::from_bytes([1; 16]);
        let effects = [effect(2, State::Unknown, 9), effect(1, State::Answered { status: Some(200) }, 5)];
        let json = serde_json::to_value(TransactionView::new(&id, &effects)).expect("is JSON");
        let expected = serde_json::json!({
            "transaction": "01010101-0101-0101-0101-010101010101", "standing": "unknown",
            "effects": [
                {"n": 1, "attempt": 1, "cell": "a", "destination": "visa", "state": "answered", "status": 200,
                 "intendedUnixMillis": 1, "sinceUnixMillis": 5},
                {"n": 2, "attempt": 1, "cell": "a", "destination": "visa", "state": "unknown",
                 "intendedUnixMillis": 1, "sinceUnixMillis": 9},
            ],
        });
        assert_eq!(json, expected);
    }

    fn check(filter: Filter, expected: &[u8], more: usize) {
        let mut newest = Newest::new(filter);
        for (number, state) in
            [(1, State::Unknown), (2, State::Open), (3, State::Unknown), (4, State::NotSent)]
        {
            let effect = effect(1, state, u64::from(number));
            newest.offer(&TransactionId::from_bytes([number; 16]), [effect].iter());
        }
        let list = newest.list(|id| Some(TransactionView::new(id, &[])));
        let ids: Vec<_> =
            expected.iter().map(|number| TransactionId::from_bytes([*number; 16]).to_string()).collect();
        let found: Vec<_> = list.transactions.into_iter().map(|view| view.transaction).collect();
        assert_eq!((found, list.more), (ids, more), "{filter:?}");
    }

    #[test]
    fn a_list_keeps_those_that_match_and_changed_last() {
        check(Filter::ALL, &[4, 3, 2, 1], 0);
        check(Filter { standing: None, limit: 3 }, &[4, 3, 2], 1);
        check(Filter { standing: Some(StandingView::Unknown), limit: 1 }, &[3], 1);
        check(Filter { standing: Some(StandingView::Decided), limit: 1 }, &[], 0);
    }
}
