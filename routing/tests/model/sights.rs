//! What many runs together have to show: a promise that nothing ever tempted anybody to break proves little.

use std::collections::BTreeSet;

use crate::history::{End, History, Told};

/// Each sight, and whether that run showed it.
pub(crate) fn sights(history: &History) -> Vec<(&'static str, bool)> {
    let told = |is: fn(&Told) -> bool| {
        history.requests.iter().any(|request| request.told.as_ref().is_some_and(|(told, _)| is(told)))
    };
    let ended = |end: End| history.runs.iter().any(|run| run.end == Some(end));
    vec![
        ("an answer", told(|told| matches!(told, Told::Answer(_)))),
        ("a refusal", told(|told| matches!(told, Told::Refused(_)))),
        ("an effect decided before", told(|told| *told == Told::Decided)),
        ("an unknown outcome", told(|told| *told == Told::Unknown)),
        ("a transaction under way", told(|told| *told == Told::InFlight)),
        ("a caller who was told nothing", told(|told| *told == Told::Nothing)),
        ("a transaction cancelled", ended(End::Cancelled)),
        ("a transaction lost", ended(End::Lost)),
        ("callers who joined", joined(history)),
        ("an effect in a run that was lost", effect_in_a_lost_run(history)),
        ("an unchecked effect through both routers", repeated(history)),
        ("an egress that a duplicate check absorbed", absorbed(history)),
    ]
}

fn joined(history: &History) -> bool {
    let mut runs = BTreeSet::new();
    history.requests.iter().filter_map(|request| request.run).any(|run| !runs.insert(run))
}

fn effect_in_a_lost_run(history: &History) -> bool {
    history.executions.iter().any(|effect| history.runs[effect.run].end == Some(End::Lost))
}

fn repeated(history: &History) -> bool {
    let mut names = BTreeSet::new();
    let effects = history.executions.iter().filter(|effect| !effect.checked);
    effects.map(|effect| (effect.id, effect.number)).any(|name| !names.insert(name))
}

/// Sent through both routers and executed once.
fn absorbed(history: &History) -> bool {
    history.executions.iter().filter(|effect| effect.checked).any(|effect| {
        let sendings = history.sendings.iter();
        sendings.filter(|sent| (sent.id, sent.number) == (effect.id, effect.number)).count() > 1
    })
}
