//! What became of each call, and what the issuer says that it did for it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use bulkhead_samples::issuer::{Entry, book};
use bulkhead_samples::load::Outcome;

/// One transaction as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The caller's own name for it, which the issuer hears too.
    pub(crate) reference: String,
    /// Where it was sent; `None` when nobody took the connection.
    pub(crate) target: Option<SocketAddr>,
    /// From when it was due to its end, by the wall clock.
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    pub(crate) latency_micros: u64,
    pub(crate) end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the answer to this very transaction.
    Answered,
    /// Status and reason.
    Failed(u16, String),
    /// Refused, reset or silent.
    NoAnswer(String),
}

/// A time by the wall clock, in milliseconds since 1970; both ends belong to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

/// What one run comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// Of the failed, those that got no answer at all.
    pub(crate) unanswered: u64,
    pub(crate) executed_twice: u64,
    /// Answered although the issuer never executed them.
    pub(crate) invented: u64,
    /// Told with 503 that nothing happened, although the issuer executed them.
    pub(crate) denied: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Of those under way at any moment of the fault, as the next.
    pub(crate) p99_during_ms: f64,
    pub(crate) max_during_ms: f64,
    pub(crate) failures: BTreeMap<String, u64>,
}

impl Figures {
    /// By how much p99 during the fault is above what two attempts take: whoever was in a cell that died starts over, and
    /// waits for nothing before that.
    pub(crate) fn over_two_attempts_ms(&self) -> u64 {
        (self.p99_during_ms - 2.0 * self.p50_ms).max(0.0).ceil() as u64
    }
}

impl Call {
    pub(crate) fn of(reference: String, outcome: &Outcome) -> Self {
        let end = match (&outcome.failure, outcome.status) {
            (None, _) if answers(&outcome.body, &reference) => End::Answered,
            (None, status) => End::Failed(status.unwrap_or_default(), "WrongAnswer".to_owned()),
            (Some(failure), Some(status)) => End::Failed(status, failure.kind.clone()),
            (Some(failure), None) => End::NoAnswer(failure.kind.clone()),
        };
        let lateness_ms = outcome.lateness_micros / 1_000;
        Self {
            reference,
            target: outcome.target,
            from_ms: outcome.sent_unix_ms.saturating_sub(lateness_ms),
            to_ms: outcome.answered_unix_ms,
            latency_micros: outcome.latency_micros,
            end,
        }
    }

    fn within(&self, window: Window) -> bool {
        self.from_ms <= window.to_ms && self.to_ms >= window.from_ms
    }
}

/// Whether it is an approval of that transaction and of no other.
pub(crate) fn answers(body: &[u8], reference: &str) -> bool {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    body["approved"] == true && body["reference"] == reference
}

/// Matches callers with executions by the name that both know.
pub(crate) fn figures(calls: &[Call], book: &BTreeMap<String, Entry>, fault: Window) -> Figures {
    let executed = executions(book);
    let times = |call: &Call| executed.get(call.reference.as_str()).copied().unwrap_or_default();
    let mut figures = Figures { sent: calls.len() as u64, ..Figures::default() };
    let (mut latencies, mut during) = (Vec::new(), Vec::new());
    for call in calls {
        figures.executed_twice += u64::from(times(call) > 1);
        match &call.end {
            End::Answered => {
                figures.answered += 1;
                figures.invented += u64::from(times(call) == 0);
                latencies.push(call.latency_micros);
                if call.within(fault) {
                    during.push(call.latency_micros);
                }
            }
            End::Failed(_, why) | End::NoAnswer(why) => {
                figures.failed += 1;
                figures.unanswered += u64::from(matches!(call.end, End::NoAnswer(_)));
                figures.denied += u64::from(matches!(call.end, End::Failed(503, _)) && times(call) > 0);
                *figures.failures.entry(why.clone()).or_default() += 1;
            }
        }
    }
    latencies.sort_unstable();
    during.sort_unstable();
    figures.p50_ms = quantile(&latencies, 0.5);
    figures.p99_ms = quantile(&latencies, 0.99);
    figures.p99_during_ms = quantile(&during, 0.99);
    figures.max_during_ms = quantile(&during, 1.0);
    figures
}

/// How often the issuer executed what callers call so, whatever the keys it came under.
fn executions(book: &BTreeMap<String, Entry>) -> HashMap<&str, u64> {
    let mut executed = HashMap::new();
    for entry in book.values() {
        *executed.entry(entry.reference.as_deref().unwrap_or_default()).or_default() += entry.executed;
    }
    executed
}

/// The ids under which the issuer executed something for callers that did not get its answer: past the point of no return.
pub(crate) fn unanswered_effects<'a>(
    calls: &[Call],
    book: &'a BTreeMap<String, Entry>,
) -> BTreeMap<String, &'a str> {
    let by_reference: HashMap<&str, &str> = book
        .iter()
        .filter(|(_, entry)| entry.executed > 0)
        .filter_map(|(key, entry)| Some((entry.reference.as_deref()?, book::id(key))))
        .collect();
    calls
        .iter()
        .filter(|call| call.end != End::Answered)
        .filter_map(|call| Some((call.reference.clone(), *by_reference.get(call.reference.as_str())?)))
        .collect()
}

/// Of several runs of the same, the worst of each figure.
pub(crate) fn worst(runs: &[Figures]) -> Figures {
    let highest = |figure: fn(&Figures) -> u64| runs.iter().map(figure).max().unwrap_or_default();
    let slowest = |figure: fn(&Figures) -> f64| runs.iter().map(figure).fold(0.0, f64::max);
    let mut failures = BTreeMap::new();
    for (why, count) in runs.iter().flat_map(|run| &run.failures) {
        let most: &mut u64 = failures.entry(why.clone()).or_default();
        *most = (*most).max(*count);
    }
    Figures {
        sent: highest(|run| run.sent),
        answered: runs.iter().map(|run| run.answered).min().unwrap_or_default(),
        failed: highest(|run| run.failed),
        unanswered: highest(|run| run.unanswered),
        executed_twice: highest(|run| run.executed_twice),
        invented: highest(|run| run.invented),
        denied: highest(|run| run.denied),
        p50_ms: slowest(|run| run.p50_ms),
        p99_ms: slowest(|run| run.p99_ms),
        p99_during_ms: slowest(|run| run.p99_during_ms),
        max_during_ms: slowest(|run| run.max_during_ms),
        failures,
    }
}

fn quantile(sorted_micros: &[u64], at: f64) -> f64 {
    let last = sorted_micros.len().saturating_sub(1);
    let index = (last as f64 * at).ceil() as usize;
    sorted_micros.get(index).copied().map_or(0.0, millis)
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(reference: &str, from_ms: u64, latency_ms: u64, end: End) -> Call {
        Call {
            reference: reference.to_owned(),
            target: None,
            from_ms,
            to_ms: from_ms + latency_ms,
            latency_micros: latency_ms * 1_000,
            end,
        }
    }

    fn book(entries: &[(&str, &str, u64)]) -> BTreeMap<String, Entry> {
        let entry = |reference: &str, executed| Entry {
            received: executed,
            executed,
            reference: Some(reference.to_owned()),
            approved: true,
        };
        entries
            .iter()
            .map(|(key, reference, executed)| ((*key).to_owned(), entry(reference, *executed)))
            .collect()
    }

    #[test]
    fn a_second_attempt_is_allowed_while_something_is_broken_and_a_wait_before_it_is_not() {
        let check = |p99_during_ms, expected| {
            let figures = Figures { p50_ms: 60.0, p99_during_ms, ..Figures::default() };
            assert_eq!(figures.over_two_attempts_ms(), expected, "{p99_during_ms}");
        };
        check(61.0, 0);
        check(120.0, 0);
        check(120.5, 1);
        check(620.0, 500);
    }

    #[test]
    fn callers_are_matched_with_executions_under_any_key() {
        let calls = [
            call("a", 100, 60, End::Answered),
            call("b", 100, 90, End::Answered),
            call("c", 500, 70, End::Answered),
            call("d", 100, 10, End::NoAnswer("reset".to_owned())),
            call("e", 100, 10, End::Failed(503, "503 NoCell".to_owned())),
            call("f", 100, 10, End::Failed(503, "503 NoCell".to_owned())),
        ];
        // `b` came under two ids, `d` twice under one; `c` was answered out of thin air, and `f` denied.
        let executed = [("1/1", "a", 1), ("2/1", "b", 1), ("3/1", "b", 1), ("4/1", "d", 2), ("5/1", "f", 1)];
        let book = book(&executed);
        let figures = figures(&calls, &book, Window { from_ms: 150, to_ms: 200 });
        let expected = Figures {
            sent: 6,
            answered: 3,
            failed: 3,
            unanswered: 1,
            executed_twice: 2,
            invented: 1,
            denied: 1,
            p50_ms: 70.0,
            p99_ms: 90.0,
            p99_during_ms: 90.0,
            max_during_ms: 90.0,
            failures: BTreeMap::from([("503 NoCell".to_owned(), 2), ("reset".to_owned(), 1)]),
        };
        assert_eq!(figures, expected);
        let effects = BTreeMap::from([("d".to_owned(), "4"), ("f".to_owned(), "5")]);
        assert_eq!(unanswered_effects(&calls, &book), effects);
    }

    #[test]
    fn an_answer_counts_only_for_the_transaction_that_it_names() {
        assert!(answers(br#"{"approved": true, "reference": "a"}"#, "a"));
        assert!(!answers(br#"{"approved": true, "reference": "b"}"#, "a"));
        assert!(!answers(br#"{"approved": false, "reference": "a"}"#, "a"));
        assert!(!answers(b"ok", "a"));
    }

    #[test]
    fn several_runs_are_as_bad_as_the_worst_of_each_figure() {
        let run =
            |failed, answered, p99_ms| Figures { sent: 10, failed, answered, p99_ms, ..Figures::default() };
        let worst = worst(&[run(0, 10, 9.0), run(2, 8, 5.0)]);
        assert_eq!((worst.failed, worst.answered, worst.p99_ms), (2, 8, 9.0));
    }

    #[test]
    fn nothing_measured_is_no_latency() {
        assert_eq!(figures(&[], &BTreeMap::new(), Window::default()), Figures::default());
    }
}
