//! What the issuer received and executed, by key: the truth against which transactions are counted. Pure.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::behaviour::{Answer, Behaviour};

/// Counts of everything since the start or the last reset.
#[derive(Debug, Default)]
pub struct Book {
    entries: HashMap<String, Entry>,
    duplicates_suppressed: u64,
}

/// One key, which is the id of a transaction, `/`, and the number of its egress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub received: u64,
    pub executed: u64,
    /// What the client calls it, where the message says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The first answer, which a duplicate gets again.
    pub approved: bool,
}

/// What to say to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub approved: bool,
    /// Known by its key, and not executed again.
    pub duplicate: bool,
}

/// Sums over all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    pub received: u64,
    pub executed: u64,
    pub distinct_keys: u64,
    pub distinct_ids: u64,
    pub keys_executed_more_than_once: u64,
    pub ids_executed_more_than_once: u64,
    pub duplicates_suppressed: u64,
}

/// The id in a key: what comes before the last `/`.
pub fn id(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(id, _)| id)
}

impl Book {
    /// Enters a message and executes it, unless it is a duplicate and those are checked for.
    pub fn enter(&mut self, key: &str, reference: Option<&str>, behaviour: &Behaviour) -> Decision {
        let approved = behaviour.answer != Answer::Decline;
        let first = Entry { approved, reference: reference.map(str::to_owned), ..Entry::default() };
        let entry = self.entries.entry(key.to_owned()).or_insert(first);
        let duplicate = behaviour.duplicate_check && entry.received > 0;
        entry.received += 1;
        if duplicate {
            self.duplicates_suppressed += 1;
            return Decision { approved: entry.approved, duplicate };
        }
        entry.executed += u64::from(behaviour.executes);
        Decision { approved, duplicate }
    }

    pub fn stats(&self) -> Stats {
        let mut ids: HashMap<&str, u64> = HashMap::new();
        for (key, entry) in &self.entries {
            *ids.entry(id(key)).or_default() += entry.executed;
        }
        let more_than_once = |counts: &mut dyn Iterator<Item = u64>| counts.filter(|n| *n > 1).count() as u64;
        Stats {
            received: self.entries.values().map(|entry| entry.received).sum(),
            executed: self.entries.values().map(|entry| entry.executed).sum(),
            distinct_keys: self.entries.len() as u64,
            distinct_ids: ids.len() as u64,
            keys_executed_more_than_once: more_than_once(
                &mut self.entries.values().map(|entry| entry.executed),
            ),
            ids_executed_more_than_once: more_than_once(&mut ids.values().copied()),
            duplicates_suppressed: self.duplicates_suppressed,
        }
    }

    /// Every key, for those who compare with what callers saw.
    pub fn executions(&self) -> BTreeMap<String, Entry> {
        self.entries.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviour(answer: Answer, duplicate_check: bool) -> Behaviour {
        Behaviour { answer, duplicate_check, ..Behaviour::default() }
    }

    #[test]
    fn without_a_check_each_message_is_executed() {
        let (mut book, unchecked) = (Book::default(), behaviour(Answer::Approve, false));
        for key in ["x/1", "x/1", "x/2", "y/1"] {
            let decision = book.enter(key, None, &unchecked);
            assert_eq!(decision, Decision { approved: true, duplicate: false });
        }
        let expected = Stats {
            received: 4,
            executed: 4,
            distinct_keys: 3,
            distinct_ids: 2,
            keys_executed_more_than_once: 1,
            ids_executed_more_than_once: 1,
            duplicates_suppressed: 0,
        };
        assert_eq!(book.stats(), expected);
    }

    #[test]
    fn a_checked_duplicate_gets_the_first_answer_and_has_no_effect() {
        let mut book = Book::default();
        book.enter("x/1", Some("order-1"), &behaviour(Answer::Decline, true));
        let again = book.enter("x/1", Some("order-1"), &behaviour(Answer::Approve, true));
        assert_eq!(again, Decision { approved: false, duplicate: true });
        let entry =
            Entry { received: 2, executed: 1, reference: Some("order-1".to_owned()), approved: false };
        assert_eq!(book.executions()["x/1"], entry);
        assert_eq!(book.stats().duplicates_suppressed, 1);
    }

    #[test]
    fn a_key_without_a_number_is_its_own_id() {
        assert_eq!((id("a/b/12"), id("a")), ("a/b", "a"));
    }
}
