//! What is held in memory: the effects that can be asked for again or that a person has to see to, and no others. Split
//! into shards, each with a lock that is held for a few instructions and never while anybody waits for a disk.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_protocol::TransactionId;
use prometheus::IntGauge;

use crate::effect::{Effect, Standing, State};
use crate::history::stands;
use crate::metrics::Metrics;
use crate::record::{Intent, Outcome, Record, Resolution};
use crate::refusal::Refusal;

/// More than there are cores, so that two rarely meet in one.
const SHARDS: usize = 64;

pub(crate) struct Index {
    shards: [Mutex<Shard>; SHARDS],
    transactions: AtomicUsize,
    limit: usize,
    window_ms: u64,
    gauges: Gauges,
}

struct Gauges {
    open: IntGauge,
    unknown: IntGauge,
    transactions: IntGauge,
}

#[derive(Default)]
struct Shard {
    transactions: HashMap<TransactionId, Vec<Held>>,
    /// Transactions with an effect that was answered, and when; the oldest first.
    answered: VecDeque<(u64, TransactionId)>,
}

struct Held {
    effect: Effect,
    serial: u64,
}

/// One effect as this process took it in. A later intent of the same effect has another serial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) id: TransactionId,
    pub(crate) n: u32,
    pub(crate) serial: u64,
}

/// Effects that keep old segments from being deleted.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    /// When the last of those that are decided may be forgotten.
    pub(crate) decided_until_ms: Option<u64>,
    /// Those that have to move to a newer segment.
    pub(crate) to_carry: Vec<(TransactionId, Effect)>,
}

impl Index {
    pub(crate) fn new(limit: usize, window_ms: u64, metrics: &Metrics) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            transactions: AtomicUsize::new(0),
            limit,
            window_ms,
            gauges: Gauges {
                open: metrics.open.clone(),
                unknown: metrics.unknown.clone(),
                transactions: metrics.transactions.clone(),
            },
        }
    }

    pub(crate) fn window_ms(&self) -> u64 {
        self.window_ms
    }

    fn shard(&self, id: &TransactionId) -> MutexGuard<'_, Shard> {
        // Byte 15 is random in version 7 and a hash's in version 8.
        let shard = usize::from(id.as_bytes()[15]) % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_shard(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn standing(&self, id: &TransactionId) -> Option<Standing> {
        let shard = self.shard(id);
        Standing::of(shard.transactions.get(id)?.iter().map(|held| held.effect.state))
    }

    pub(crate) fn show(&self, id: &TransactionId) -> Vec<Effect> {
        let shard = self.shard(id);
        shard.transactions.get(id).into_iter().flatten().map(|held| held.effect.clone()).collect()
    }

    /// Hands every transaction to `look`, in no order.
    pub(crate) fn each(&self, mut look: impl FnMut(&TransactionId, &mut dyn Iterator<Item = &Effect>)) {
        for shard in self.each_shard() {
            for (id, effects) in &shard.transactions {
                look(id, &mut effects.iter().map(|held| &held.effect));
            }
        }
    }

    /// Takes in what was read at the start, as far as it stands.
    pub(crate) fn load(&self, id: TransactionId, effects: Vec<Effect>, now_ms: u64) {
        for effect in effects.into_iter().filter(|effect| stands(&id, effect)) {
            let answered = matches!(effect.state, State::Answered { .. });
            if answered && effect.since_ms.saturating_add(self.window_ms) <= now_ms {
                continue;
            }
            let mut shard = self.shard(&id);
            if answered {
                shard.answered.push_back((effect.since_ms, id));
            }
            self.count(None, Some(effect.state));
            self.insert(&mut shard, id, Held { effect, serial: 0 });
        }
    }

    /// Effects come out of a map at the start, and are forgotten in order.
    pub(crate) fn loaded(&self) {
        self.each_shard()
            .for_each(|mut shard| shard.answered.make_contiguous().sort_unstable_by_key(|(at, _)| *at));
    }

    /// Takes in a new effect, unless it has one already or `push` refuses; the shard is locked over both, so that the
    /// queue has the records of an effect in the order of its states.
    pub(crate) fn begin(
        &self,
        intent: &Intent,
        at_ms: u64,
        segment: u64,
        serial: u64,
        push: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut shard = self.shard(&intent.id);
        match shard.transactions.get(&intent.id) {
            Some(effects) => {
                if let Some(held) = effects.iter().find(|held| held.effect.n == intent.n) {
                    return Err(Refusal::Known(held.effect.state));
                }
            }
            None => {
                let transactions = self.transactions.load(Ordering::Relaxed);
                if transactions >= self.limit {
                    return Err(Refusal::Full { transactions });
                }
            }
        }
        push()?;
        self.count(None, Some(State::Open));
        self.insert(&mut shard, intent.id, Held { effect: Effect::new(intent, at_ms, segment), serial });
        Ok(())
    }

    fn insert(&self, shard: &mut Shard, id: TransactionId, held: Held) {
        match shard.transactions.entry(id) {
            Entry::Occupied(mut effects) => effects.get_mut().push(held),
            Entry::Vacant(entry) => {
                // Room for one: most transactions have no more, and pushing would make room for four.
                entry.insert(vec![held]);
                self.transactions.fetch_add(1, Ordering::Relaxed);
                self.gauges.transactions.inc();
            }
        }
    }

    /// Ends an effect that is under way, and lets `push` write it down; nothing happens to one that has ended.
    pub(crate) fn end(&self, key: Key, outcome: Outcome, at_ms: u64, push: impl FnOnce()) {
        let mut shard = self.shard(&key.id);
        let shard = &mut *shard;
        let Entry::Occupied(mut effects) = shard.transactions.entry(key.id) else { return };
        let held =
            effects.get_mut().iter_mut().find(|held| held.effect.n == key.n && held.serial == key.serial);
        let Some(held) = held.filter(|held| held.effect.state == State::Open) else { return };
        held.effect.state = outcome.into();
        held.effect.since_ms = at_ms;
        self.count(Some(State::Open), Some(held.effect.state));
        push();
        self.settle(effects, &mut shard.answered, at_ms);
    }

    /// Lets a resolution that is on the disk take effect.
    pub(crate) fn resolve(
        &self,
        id: &TransactionId,
        n: u32,
        resolution: Resolution,
        note: &Arc<str>,
        at_ms: u64,
    ) {
        let mut shard = self.shard(id);
        let shard = &mut *shard;
        let Entry::Occupied(mut effects) = shard.transactions.entry(*id) else { return };
        let Some(held) = effects.get_mut().iter_mut().find(|held| held.effect.n == n) else { return };
        let before = held.effect.state;
        held.effect.resolve(resolution, note, at_ms);
        self.count(Some(before), Some(held.effect.state));
        self.settle(effects, &mut shard.answered, at_ms);
    }

    /// Keeps of a transaction what still stands, after a change.
    fn settle(
        &self,
        mut effects: std::collections::hash_map::OccupiedEntry<'_, TransactionId, Vec<Held>>,
        answered: &mut VecDeque<(u64, TransactionId)>,
        at_ms: u64,
    ) {
        let id = *effects.key();
        effects.get_mut().retain(|held| stands(&id, &held.effect));
        if effects.get().is_empty() {
            effects.remove();
            self.forgot_one();
        } else if effects.get().iter().any(|held| matches!(held.effect.state, State::Answered { .. })) {
            answered.push_back((at_ms, id));
        }
    }

    fn forgot_one(&self) {
        self.transactions.fetch_sub(1, Ordering::Relaxed);
        self.gauges.transactions.dec();
    }

    /// Forgets what was answered longer ago than the window.
    pub(crate) fn expire(&self, now_ms: u64) {
        let over = |at_ms: u64| at_ms.saturating_add(self.window_ms) <= now_ms;
        for mut shard in self.each_shard() {
            let shard = &mut *shard;
            while let Some((_, id)) = shard.answered.pop_front_if(|(at_ms, _)| over(*at_ms)) {
                let Entry::Occupied(mut effects) = shard.transactions.entry(id) else { continue };
                effects.get_mut().retain(|held| {
                    !(matches!(held.effect.state, State::Answered { .. }) && over(held.effect.since_ms))
                });
                if effects.get().is_empty() {
                    effects.remove();
                    self.forgot_one();
                }
            }
        }
    }

    /// What is held of segments up to `through`.
    pub(crate) fn residents(&self, through: u64) -> Residents {
        let mut residents = Residents::default();
        self.each(|id, effects| {
            for effect in effects.filter(|effect| effect.segment <= through) {
                match effect.state {
                    State::Answered { .. } => {
                        let until_ms = effect.since_ms.saturating_add(self.window_ms);
                        residents.decided_until_ms = residents.decided_until_ms.max(Some(until_ms));
                    }
                    State::Open | State::Unknown => residents.to_carry.push((*id, effect.clone())),
                    State::NotSent => {}
                }
            }
        });
        residents
    }

    /// Notes that an effect's records are in a newer segment too.
    pub(crate) fn carried(&self, id: &TransactionId, n: u32, segment: u64) {
        let mut shard = self.shard(id);
        let effects = shard.transactions.get_mut(id).into_iter().flatten();
        for held in effects.filter(|held| held.effect.n == n) {
            held.effect.segment = held.effect.segment.max(segment);
        }
    }

    fn count(&self, before: Option<State>, after: Option<State>) {
        let gauge = |state: Option<State>| match state {
            Some(State::Open) => Some(&self.gauges.open),
            Some(State::Unknown) => Some(&self.gauges.unknown),
            Some(State::Answered { .. } | State::NotSent) | None => None,
        };
        if let Some(gauge) = gauge(before) {
            gauge.dec();
        }
        if let Some(gauge) = gauge(after) {
            gauge.inc();
        }
    }
}

/// What a record that takes effect once it is on the disk changes.
pub(crate) fn take_effect(index: &Index, record: &Record) {
    if let Record::Resolution { id, n, at_ms, resolution, note } = record {
        index.resolve(id, *n, *resolution, note, *at_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_MS: u64 = 1_000;

    fn index(limit: usize) -> (Index, Metrics) {
        let metrics = Metrics::new().expect("names are valid");
        (Index::new(limit, WINDOW_MS, &metrics), metrics)
    }

    fn id(version: u8, number: u8) -> TransactionId {
        let mut bytes = [number; 16];
        bytes[6] = version << 4;
        TransactionId::from_bytes(bytes)
    }

    fn begin(index: &Index, id: TransactionId, serial: u64) -> Result<Key, Refusal> {
        let intent = Intent { id, n: 1, attempt: 1, cell: "a".into(), destination: "visa".into() };
        index.begin(&intent, 5, 1, serial, || Ok(()))?;
        Ok(Key { id, n: 1, serial })
    }

    fn check(version: u8, outcome: Outcome, expected: Option<Standing>) {
        let (index, metrics) = index(10);
        let id = id(version, 1);
        let key = begin(&index, id, 1).expect("is new");
        assert_eq!((index.standing(&id), metrics.open.get()), (Some(Standing::InFlight), 1));
        let mut written = false;
        index.end(key, outcome, 7, || written = true);
        assert!(written);
        assert_eq!((index.standing(&id), metrics.open.get()), (expected, 0), "{outcome:?}");
        assert_eq!(metrics.transactions.get(), i64::from(expected.is_some()));
        index.expire(7 + WINDOW_MS - 1);
        assert_eq!(index.standing(&id), expected, "within the window");
        index.expire(7 + WINDOW_MS);
        let stays = expected.filter(|standing| *standing == Standing::Unknown);
        assert_eq!(index.standing(&id), stays, "after the window");
    }

    #[test]
    fn what_can_be_asked_for_again_is_held_for_the_window_and_what_is_unknown_for_ever() {
        check(8, Outcome::Answered { status: Some(200) }, Some(Standing::Decided));
        check(7, Outcome::Answered { status: Some(200) }, None);
        for version in [7, 8] {
            check(version, Outcome::NotSent, None);
            check(version, Outcome::Unknown, Some(Standing::Unknown));
        }
    }

    #[test]
    fn an_effect_is_intended_once_unless_it_was_not_sent() {
        let (index, _) = index(10);
        let key = begin(&index, id(8, 1), 1).expect("is new");
        assert_eq!(begin(&index, id(8, 1), 2), Err(Refusal::Known(State::Open)));
        index.end(key, Outcome::NotSent, 7, || ());
        let again = begin(&index, id(8, 1), 3).expect("was not sent");
        index.end(key, Outcome::Unknown, 8, || panic!("the former has ended"));
        index.end(again, Outcome::Answered { status: None }, 9, || ());
        let known = Refusal::Known(State::Answered { status: None });
        assert_eq!(begin(&index, id(8, 1), 4), Err(known));
    }

    #[test]
    fn memory_is_bounded() {
        let (index, _) = index(1);
        let key = begin(&index, id(8, 1), 1).expect("is the first");
        assert_eq!(begin(&index, id(8, 2), 2), Err(Refusal::Full { transactions: 1 }));
        index.end(key, Outcome::NotSent, 7, || ());
        begin(&index, id(8, 2), 3).expect("there is room again");
    }

    #[test]
    fn a_resolution_ends_what_is_unknown_and_starts_its_window() {
        let (index, metrics) = index(10);
        let key = begin(&index, id(8, 1), 1).expect("is new");
        index.end(key, Outcome::Unknown, 7, || ());
        assert_eq!(metrics.unknown.get(), 1);
        index.resolve(&key.id, 1, Resolution::Answered, &"seen".into(), 5_000);
        assert_eq!((index.standing(&key.id), metrics.unknown.get()), (Some(Standing::Decided), 0));
        index.expire(5_000 + WINDOW_MS - 1);
        assert!(index.standing(&key.id).is_some());
        index.expire(5_000 + WINDOW_MS);
        assert_eq!(index.standing(&key.id), None);
    }

    #[test]
    fn a_segment_is_kept_for_what_is_decided_and_gives_away_what_is_unknown() {
        let (index, _) = index(10);
        let decided = begin(&index, id(8, 1), 1).expect("is new");
        index.end(decided, Outcome::Answered { status: None }, 7, || ());
        begin(&index, id(7, 2), 2).expect("is new");
        let residents = index.residents(1);
        assert_eq!(residents.decided_until_ms, Some(7 + WINDOW_MS));
        assert_eq!(residents.to_carry.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id(7, 2)]);
        index.carried(&id(7, 2), 1, 5);
        assert!(index.residents(4).to_carry.is_empty());
    }
}
