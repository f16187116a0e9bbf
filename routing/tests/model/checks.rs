//! What the protocol promises, each promise as a function of what happened.

use std::collections::BTreeMap;

use bulkhead_protocol::{EgressStatus, Reason};

use crate::destination::{DESTINATIONS, plan};
use crate::history::{End, Execution, History, Id, Request, Run, Told};

/// Err says what happened that must not.
pub(crate) type Check = fn(&History) -> Result<(), String>;

pub(crate) const ALL: &[(&str, Check)] = &[
    ("every run ends", every_run_ends),
    ("a checked effect happens once", a_checked_effect_happens_once),
    ("one router sends an effect once", one_router_sends_an_effect_once),
    ("two routers repeat only what nobody was told of", two_routers_repeat_only_what_nobody_was_told_of),
    ("a refusal is true", a_refusal_is_true),
    ("an answer is true", an_answer_is_true),
    ("intents are on the disk before the first byte", intents_are_on_the_disk_before_the_first_byte),
    ("effects are found in the ledger", effects_are_found_in_the_ledger),
    ("nothing is sent for nobody", nothing_is_sent_for_nobody),
    ("what was given up is over", what_was_given_up_is_over),
    ("numbers count from one", numbers_count_from_one),
    ("no cell begins twice", no_cell_begins_twice),
    ("restarts carry nothing over", restarts_carry_nothing_over),
    ("what is committed is settled", what_is_committed_is_settled),
    ("what is committed is finished", what_is_committed_is_finished),
    ("unknown is only what may have been sent", unknown_is_only_what_may_have_been_sent),
];

/// More questions than this no run can need: each failure costs a pod of at most six, and between two failures a plan
/// has at most four questions.
const MOST_QUESTIONS: u32 = 28;

/// Time, attempts and callers are bounded: nothing waits or tries for ever.
fn every_run_ends(history: &History) -> Result<(), String> {
    if !history.ended {
        return Err("a caller waits for ever".to_owned());
    }
    for (index, run) in history.runs.iter().enumerate() {
        if run.end.is_none() || run.questions > MOST_QUESTIONS {
            return Err(format!("run {index} has no end or too many questions: {run:?}"));
        }
    }
    Ok(())
}

/// With a duplicate check each `(id, n)` is executed once at most, over all routers and whatever crashes.
fn a_checked_effect_happens_once(history: &History) -> Result<(), String> {
    none_twice(
        history.executions.iter().filter(|effect| effect.checked).map(|effect| (effect.id, effect.number)),
    )
}

/// Through one router no effect is sent twice for one `(id, n)`, crashes and restarts of that router included: from the
/// first byte on it is unknown until it is known, and what is unknown is a person's to decide (DESIGN.md, invariant 4).
/// This holds without a duplicate check.
fn one_router_sends_an_effect_once(history: &History) -> Result<(), String> {
    let sent = history.sendings.iter().filter(|sending| sending.effects);
    none_twice(sent.map(|sending| (sending.router, sending.id, sending.number)))
}

/// Two routers know nothing of each other. Without a duplicate check an effect happens in both only where its caller
/// asked the second before it had a definite word from the first: an answer or a refusal. It was told that the outcome
/// is unknown, or nothing.
fn two_routers_repeat_only_what_nobody_was_told_of(history: &History) -> Result<(), String> {
    let mut effects: BTreeMap<(Id, u32), Vec<&Execution>> = BTreeMap::new();
    for effect in history.executions.iter().filter(|effect| !effect.checked) {
        effects.entry((effect.id, effect.number)).or_default().push(effect);
    }
    for (name, twice) in effects {
        for (one, other) in pairs(&twice) {
            if requests_of(history, other).any(|later| was_told_before(history, one, later)) {
                return Err(format!("{name:?} happened again after a definite word: {one:?}, {other:?}"));
            }
        }
    }
    Ok(())
}

/// Who is refused (every answer of the router's own but 409 and an unknown outcome) can try again without a second
/// thought: no effect of its id has happened through that router, and none of its own request happens later.
fn a_refusal_is_true(history: &History) -> Result<(), String> {
    for request in &history.requests {
        let Some((Told::Refused(_), at)) = &request.told else { continue };
        let broken = history.executions.iter().find(|effect| {
            let before = effect.router == request.router && effect.id == request.id && effect.at <= *at;
            before || request.run == Some(effect.run)
        });
        if let Some(effect) = broken {
            return Err(format!("{request:?} was refused, and yet there is {effect:?}"));
        }
    }
    Ok(())
}

/// What an answer says that a destination answered has happened, and through that router once. What it says that was not
/// sent has not happened.
fn an_answer_is_true(history: &History) -> Result<(), String> {
    for request in &history.requests {
        let Some((Told::Answer(claims), _)) = &request.told else { continue };
        for (claim, (step, number)) in claims.iter().zip(plan(request.id).into_iter().zip(1..)) {
            let through = history.executions.iter().filter(|effect| {
                let same = (effect.id, effect.number) == (request.id, number);
                same && (effect.checked || effect.router == request.router)
            });
            let through = through.count();
            let is_true = match claim {
                EgressStatus::Answered => !DESTINATIONS[step].effects || through == 1,
                EgressStatus::NotSent => !executed_by(history, request, number),
                EgressStatus::Unknown => true,
            };
            if !is_true {
                return Err(format!(
                    "{request:?} was told {claim:?} of {number}, which happened {through} times"
                ));
            }
        }
    }
    Ok(())
}

fn intents_are_on_the_disk_before_the_first_byte(history: &History) -> Result<(), String> {
    all(&history.sendings, |sending| sending.on_record)
}

/// Whatever happened outside can be found by a person: its intent is on the disk of the router that sent it, after any
/// loss of power.
fn effects_are_found_in_the_ledger(history: &History) -> Result<(), String> {
    all(&history.executions, |effect| {
        history.ledgers.get(effect.router).is_some_and(|ledger| ledger.contains(&(effect.id, effect.number)))
    })
}

/// The fence at the first byte: a caller waits and time is left, or the transaction is past the point of no return.
fn nothing_is_sent_for_nobody(history: &History) -> Result<(), String> {
    all(&history.sendings, |sending| sending.awaited)
}

/// A pod that was given up changes nothing by speaking late, and one that speaks twice nothing by its second word.
fn what_was_given_up_is_over(history: &History) -> Result<(), String> {
    if history.late_answers > 0 {
        return Err("a caller got the answer of an attempt that was given up".to_owned());
    }
    all(&history.sendings, |sending| sending.current)
}

/// Every number is the last one plus one, from 1 on after a restart. That one is outstanding at most, the signature of
/// `Hands::send` says: it borrows the hands until it is over.
fn numbers_count_from_one(history: &History) -> Result<(), String> {
    all(&history.sendings, |sending| sending.number == sending.due)
}

/// No cell gets a transaction's original bytes twice, unless it had provably not begun.
fn no_cell_begins_twice(history: &History) -> Result<(), String> {
    all(&history.runs, |run| none_twice(run.began_in.iter()).is_ok())
}

/// Before the point of no return every pod but the one that asked begins from the original bytes.
fn restarts_carry_nothing_over(history: &History) -> Result<(), String> {
    all(&history.runs, |run| !run.carried_over)
}

/// Callers come and go: what a router sent, that router puts on record to its end, unless it crashes.
fn what_is_committed_is_settled(history: &History) -> Result<(), String> {
    all(&history.sendings, |sending| {
        !sending.effects || sending.settled || history.runs[sending.run].end == Some(End::Lost)
    })
}

/// Past the point of no return there is an answer as long as a pod is left to ask.
fn what_is_committed_is_finished(history: &History) -> Result<(), String> {
    let unknown = |run: &Run| run.end == Some(End::Refused(Reason::OutcomeUnknown));
    all(&history.runs, |run| !unknown(run) || run.pods_left == 0)
}

/// A person has to look at what is unknown, so that a router that never crashed says it only of an id with a message that
/// it sent: an intent whose caller left before the first byte is settled as not sent.
fn unknown_is_only_what_may_have_been_sent(history: &History) -> Result<(), String> {
    all(&history.requests, |request| {
        let mut sendings = history.sendings.iter().filter(|sent| sent.effects);
        let is_unknown = request.told.as_ref().is_some_and(|(told, _)| *told == Told::Unknown);
        !is_unknown
            || history.crashes.contains(&request.router)
            || sendings.any(|sent| (sent.router, sent.id) == (request.router, request.id))
    })
}

fn all<T: std::fmt::Debug>(facts: &[T], holds: impl Fn(&T) -> bool) -> Result<(), String> {
    match facts.iter().find(|fact| !holds(fact)) {
        None => Ok(()),
        Some(fact) => Err(format!("{fact:?}")),
    }
}

fn none_twice<T: Ord + std::fmt::Debug>(names: impl Iterator<Item = T>) -> Result<(), String> {
    let mut names: Vec<T> = names.collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(format!("twice: {:?}", pair[0])),
    }
}

fn pairs<'a>(effects: &'a [&'a Execution]) -> impl Iterator<Item = (&'a Execution, &'a Execution)> {
    effects
        .iter()
        .flat_map(|one| effects.iter().map(move |other| (*one, *other)))
        .filter(|(one, other)| one.run != other.run)
}

fn requests_of<'a>(history: &'a History, effect: &'a Execution) -> impl Iterator<Item = &'a Request> {
    history.requests.iter().filter(|request| request.run == Some(effect.run))
}

fn was_told_before(history: &History, effect: &Execution, later: &Request) -> bool {
    requests_of(history, effect).any(|earlier| {
        earlier.told.as_ref().is_some_and(|(told, at)| told.is_definite() && *at < later.began)
    })
}

fn executed_by(history: &History, request: &Request, number: u32) -> bool {
    history.executions.iter().any(|effect| request.run == Some(effect.run) && effect.number == number)
}
