//! What records say of an effect and of a transaction, taken together: the rules by which one follows the other. Pure,
//! and the same for a router that runs, one that starts, and a person who reads the folder.

use std::sync::Arc;

use bulkhead_protocol::TransactionId;

use crate::record::{Intent, Outcome, Record, Resolution};

/// Where an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its intent is written, and nothing yet of what became of it.
    Open,
    Answered {
        status: Option<u16>,
    },
    NotSent,
    Unknown,
}

/// What a transaction's effects say about asking for it again. Without a standing it may be attempted. Of several effects
/// the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Every effect has its outcome and at least one was answered: 409.
    Decided,
    /// What became of an effect is not known: 409, and a person decides.
    Unknown,
    /// An effect is under way in this process.
    InFlight,
}

impl Standing {
    pub fn of(states: impl IntoIterator<Item = State>) -> Option<Self> {
        let standings = states.into_iter().filter_map(|state| match state {
            State::Open => Some(Self::InFlight),
            State::Unknown => Some(Self::Unknown),
            State::Answered { .. } => Some(Self::Decided),
            State::NotSent => None,
        });
        standings.max()
    }
}

impl From<Outcome> for State {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Answered { status } => Self::Answered { status },
            Outcome::NotSent => Self::NotSent,
            Outcome::Unknown => Self::Unknown,
        }
    }
}

/// One effect outside the cells. It shows nothing of what was sent or answered, because the ledger does not hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub n: u32,
    pub attempt: u32,
    pub state: State,
    /// Empty where the intent is lost or was compacted, as for the destination.
    pub cell: Arc<str>,
    pub destination: Arc<str>,
    /// Milliseconds since 1970; 0 where the intent is lost.
    pub intended_ms: u64,
    /// When it got the state that it has.
    pub since_ms: u64,
    /// What the person wrote who resolved it.
    pub note: Option<Arc<str>>,
    /// Its intent is in this segment or a later one.
    pub(crate) segment: u64,
}

impl Effect {
    pub(crate) fn new(intent: &Intent, at_ms: u64, segment: u64) -> Self {
        let Intent { n, attempt, cell, destination, .. } = intent;
        Self {
            n: *n,
            attempt: *attempt,
            state: State::Open,
            cell: Arc::clone(cell),
            destination: Arc::clone(destination),
            intended_ms: at_ms,
            since_ms: at_ms,
            note: None,
            segment,
        }
    }

    /// One of which only the end is known.
    fn without_intent(n: u32, segment: u64) -> Self {
        let nameless: Arc<str> = Arc::from("");
        let intent = Intent {
            id: TransactionId::from_bytes([0; 16]),
            n,
            attempt: 0,
            cell: Arc::clone(&nameless),
            destination: nameless,
        };
        Self::new(&intent, 0, segment)
    }

    /// The records from which it would be read as it is, for a segment that is to hold it after its own is deleted.
    pub(crate) fn records(&self, id: TransactionId) -> Vec<Record> {
        let Self { n, attempt, cell, destination, .. } = self;
        let (cell, destination) = (Arc::clone(cell), Arc::clone(destination));
        let intent = Intent { id, n: *n, attempt: *attempt, cell, destination };
        let outcome = match self.state {
            State::Open => None,
            State::Answered { status } => Some(Outcome::Answered { status }),
            State::NotSent => Some(Outcome::NotSent),
            State::Unknown => Some(Outcome::Unknown),
        };
        let outcome = outcome.map(|outcome| Record::Outcome { id, n: *n, at_ms: self.since_ms, outcome });
        [Record::Intent(intent, self.intended_ms)].into_iter().chain(outcome).collect()
    }

    /// Takes over what a person found out, if it is unknown.
    pub(crate) fn resolve(&mut self, resolution: Resolution, note: &Arc<str>, at_ms: u64) {
        if self.state == State::Unknown {
            self.state = Outcome::from(resolution).into();
            self.since_ms = at_ms;
            self.note = Some(Arc::clone(note));
        }
    }
}

/// Which transaction a record is about, if it is about one.
pub(crate) fn transaction(record: &Record) -> Option<TransactionId> {
    match record {
        Record::Intent(intent, _) => Some(intent.id),
        Record::Outcome { id, .. } | Record::Resolution { id, .. } => Some(*id),
        Record::Ended { .. } | Record::Compacted { .. } | Record::Seal { .. } => None,
    }
}

/// Lets a record of this transaction take effect; records come in the order of the ledger. Where damage has taken
/// records away, the effect is rather unknown than forgotten.
pub(crate) fn apply(effects: &mut Vec<Effect>, record: &Record, segment: u64) {
    match record {
        Record::Intent(intent, at_ms) => match find(effects, intent.n) {
            // Tried again, at another endpoint or by another attempt.
            Some(effect) if effect.state == State::NotSent => *effect = Effect::new(intent, *at_ms, segment),
            // Written again by a compaction: it is in a later segment now.
            Some(effect) => effect.segment = segment,
            None => effects.push(Effect::new(intent, *at_ms, segment)),
        },
        Record::Outcome { n, at_ms, outcome, .. } => {
            let effect = find_or_add(effects, *n, segment);
            // Only the first is of this process; an unknown effect changes by a resolution alone.
            if matches!(effect.state, State::Open | State::NotSent) {
                effect.state = (*outcome).into();
                effect.since_ms = *at_ms;
            }
        }
        Record::Resolution { n, at_ms, resolution, note, .. } => {
            let effect = find_or_add(effects, *n, segment);
            // That it was unknown is implied, and the record which says so may be lost.
            if matches!(effect.state, State::Open | State::Unknown) {
                effect.state = State::Unknown;
                effect.resolve(*resolution, note, *at_ms);
            }
        }
        Record::Ended { .. } | Record::Compacted { .. } | Record::Seal { .. } => {}
    }
}

fn find(effects: &mut [Effect], n: u32) -> Option<&mut Effect> {
    effects.iter_mut().find(|effect| effect.n == n)
}

fn find_or_add(effects: &mut Vec<Effect>, n: u32, segment: u64) -> &mut Effect {
    let at = effects.iter().position(|effect| effect.n == n).unwrap_or_else(|| {
        effects.push(Effect::without_intent(n, segment));
        effects.len() - 1
    });
    &mut effects[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = [1; 16];
    const ANSWERED: State = State::Answered { status: Some(200) };
    const RESOLVED: State = State::Answered { status: None };

    /// `i`: intent, `a`, `n`, `u`: outcomes, `A`, `N`: resolutions, all of effect 1.
    fn record(letter: char) -> Record {
        let id = TransactionId::from_bytes(ID);
        let outcome = |outcome| Record::Outcome { id, n: 1, at_ms: 2, outcome };
        let resolution =
            |resolution| Record::Resolution { id, n: 1, at_ms: 3, resolution, note: "seen".into() };
        match letter {
            'i' => Record::Intent(
                Intent { id, n: 1, attempt: 1, cell: "a".into(), destination: "visa".into() },
                1,
            ),
            'a' => outcome(Outcome::Answered { status: Some(200) }),
            'n' => outcome(Outcome::NotSent),
            'u' => outcome(Outcome::Unknown),
            'A' => resolution(Resolution::Answered),
            'N' => resolution(Resolution::NotSent),
            other => panic!("{other} is no record"),
        }
    }

    fn check(records: &str, expected: State) {
        let mut effects = Vec::new();
        records.chars().for_each(|letter| apply(&mut effects, &record(letter), 1));
        assert_eq!(effects.iter().map(|effect| effect.state).collect::<Vec<_>>(), [expected], "{records}");
    }

    #[test]
    fn an_effect_ends_as_its_outcome_says_and_may_be_tried_again_if_it_was_not_sent() {
        check("i", State::Open);
        check("ia", ANSWERED);
        check("in", State::NotSent);
        check("iu", State::Unknown);
        check("ini", State::Open);
        check("inia", ANSWERED);
    }

    #[test]
    fn only_a_person_changes_what_is_unknown_and_nobody_what_was_answered() {
        check("iuA", RESOLVED);
        check("iuN", State::NotSent);
        check("iua", State::Unknown);
        check("iun", State::Unknown);
        check("iAu", RESOLVED);
        check("iaN", ANSWERED);
        check("iuAN", RESOLVED);
    }

    #[test]
    fn records_that_are_written_twice_change_nothing() {
        check("iiaa", ANSWERED);
        check("iuiu", State::Unknown);
        check("inn", State::NotSent);
    }

    #[test]
    fn an_outcome_whose_intent_is_lost_counts() {
        check("a", ANSWERED);
        check("u", State::Unknown);
        check("A", RESOLVED);
    }

    #[test]
    fn an_effect_is_read_from_its_own_records_as_it_is() {
        for records in ["i", "ia", "iu", "in"] {
            let mut effects = Vec::new();
            records.chars().for_each(|letter| apply(&mut effects, &record(letter), 1));
            let mut again = Vec::new();
            let carried = effects[0].records(TransactionId::from_bytes(ID));
            carried.iter().for_each(|record| apply(&mut again, record, 1));
            assert_eq!(again, effects, "{records}");
        }
    }

    #[test]
    fn a_standing_is_in_flight_before_unknown_before_decided() {
        let check = |states: &[State], expected| assert_eq!(Standing::of(states.iter().copied()), expected);
        check(&[], None);
        check(&[State::NotSent], None);
        check(&[State::NotSent, ANSWERED], Some(Standing::Decided));
        check(&[ANSWERED, State::Unknown], Some(Standing::Unknown));
        check(&[State::Unknown, ANSWERED], Some(Standing::Unknown));
        check(&[State::Unknown, State::Open], Some(Standing::InFlight));
    }
}
