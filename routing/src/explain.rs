//! Why a request goes where it goes, as a structure for people's tools. It decides with the very functions that serve,
//! and then tells of each group and cell what spoke for it and against it.

use bulkhead_protocol::TransactionId;
use serde::{Deserialize, Serialize};

use crate::decide::{
    self, CellStates, CellView, Choice, Doubt, Key, Named, Refusal, Scene, key_value, score,
};
use crate::health::Fault;
use crate::request::RequestView;
use crate::table::{GroupCell, Rule, Table};

/// The life of one decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub listener: String,
    /// `NAMESPACE/POLICY/RULE` of the first rule that matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyExplained>,
    /// In order of priority.
    #[serde(default)]
    pub groups: Vec<GroupExplained>,
    /// Name of the cell that gets the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Place of its group in the rule, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalExplained>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyExplained {
    /// Such as `header x-account`; `transaction` where the rule has no key, or the request none of its name.
    pub source: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupExplained {
    /// Percent of its policy weight that is in; none when all of its cells are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_percent: Option<u32>,
    pub min_healthy_percent: u32,
    /// A sentence: why it serves or does not.
    pub why: String,
    pub candidates: Vec<Candidate>,
}

/// A cell of a group, and what spoke for it and against it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    pub cell: String,
    /// After TrafficShifts of the rule.
    pub policy_weight: u32,
    /// Percent after spec, state and TrafficShifts of the cell.
    pub cell_weight: u32,
    /// Percent that the ramp gives it.
    pub ramp_percent: u32,
    /// The least score has the key; none for a cell that cannot have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// A sentence: why it is chosen or not.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalExplained {
    pub status: u16,
    pub reason: String,
    pub detail: String,
}

/// Explains the decision for one request at one moment.
pub fn explain(
    table: &Table,
    listener: &str,
    view: &impl RequestView,
    transaction: &TransactionId,
    states: &impl CellStates,
) -> Explanation {
    let mut explanation = Explanation { listener: listener.to_owned(), ..Explanation::default() };
    if let Err(refusal) = fill(&mut explanation, table, view, transaction, states) {
        explanation.refusal = Some(RefusalExplained {
            status: refusal.reason.status(),
            reason: refusal.reason().to_owned(),
            detail: refusal.detail,
        });
    }
    explanation
}

fn fill(
    explanation: &mut Explanation,
    table: &Table,
    view: &impl RequestView,
    transaction: &TransactionId,
    states: &impl CellStates,
) -> Result<(), Refusal> {
    let rule = decide::match_rule(table, &explanation.listener, view)?;
    explanation.rule = Some(rule.id.as_str().to_owned());
    explanation.key = Some(key_of(rule, view, transaction)?);
    let key = decide::key(rule, view, transaction)?;
    let choice = decide::choose(rule, key, states, &[]);
    let scene = Scene::new(rule, states);
    let groups = 0..rule.groups.len();
    explanation.groups =
        groups.map(|group| group_of(&scene, group, key, choice.as_ref().ok().copied())).collect();
    let choice = choice?;
    explanation.cell = Some(table.cell(choice.cell).name.as_ref().to_owned());
    explanation.group = Some(choice.group);
    Ok(())
}

fn key_of(
    rule: &Rule,
    view: &impl RequestView,
    transaction: &TransactionId,
) -> Result<KeyExplained, Refusal> {
    let value = key_value(rule, view)?;
    Ok(match (&rule.key, value) {
        (Some(key), Some(value)) => KeyExplained {
            source: key.source.to_string(),
            value: String::from_utf8_lossy(&value).into_owned(),
        },
        _ => KeyExplained { source: "transaction".to_owned(), value: transaction.to_string() },
    })
}

fn group_of<S: CellStates>(
    scene: &Scene<'_, S>,
    group: usize,
    key: Key,
    choice: Option<Choice>,
) -> GroupExplained {
    let look = scene.look(group);
    let health = look.health();
    let healthy_percent = (health.is_in * 100).checked_div(health.wanted).map(|percent| percent as u32);
    let min = scene.rule.groups[group].min_healthy_percent;
    let why = match (choice, healthy_percent) {
        (Some(choice), _) if choice.group == group && look.is_healthy() => {
            "serves: the first that is healthy enough".to_owned()
        }
        (Some(choice), _) if choice.group == group && scene.rule.owner => {
            "serves: it has the owner".to_owned()
        }
        (Some(choice), _) if choice.group == group => {
            "serves: no group is healthy enough, and it is the first that can".to_owned()
        }
        (Some(choice), _) if choice.group < group => "waits: a group before it serves".to_owned(),
        (_, None) => "cannot serve: each of its cells is drained, missing or of weight 0".to_owned(),
        (_, Some(0)) => "cannot serve: each of its cells that is not drained is out".to_owned(),
        (None, Some(_)) if scene.rule.owner => {
            "cannot serve: only the owner of the key may, and the refusal says why it does not".to_owned()
        }
        (_, Some(percent)) => format!("gives way: {percent} % of it is in, and it needs {min} %"),
    };
    let candidates = candidates(scene, group, key, choice);
    GroupExplained { healthy_percent, min_healthy_percent: min, why, candidates }
}

fn candidates<S: CellStates>(
    scene: &Scene<'_, S>,
    group: usize,
    key: Key,
    choice: Option<Choice>,
) -> Vec<Candidate> {
    let look = scene.look(group);
    // What the rendezvous weighs: policy weights alone under `owner`, and without the ramp where nothing is warm.
    let is_warm = look.weights(true).next().is_some();
    let doubted = |cell: &GroupCell| {
        let (_, _, view) = scene.named(group).find(|(other, ..)| other.name == cell.name)?;
        view?.doubt
    };
    let explain = |&(cell, policy_weight, view): &Named<'_>| {
        let ramp_percent = view.map_or(0, |view| look.ramp(view));
        let weight = if scene.rule.owner {
            u64::from(policy_weight)
        } else {
            let weighed = look.weights(is_warm).find(|(other, ..)| other.name == cell.name);
            weighed.map_or(0, |(.., weight)| weight)
        };
        let is_chosen = choice.is_some_and(|choice| choice.group == group && Some(choice.cell) == cell.cell);
        Candidate {
            cell: cell.name.as_ref().to_owned(),
            policy_weight,
            cell_weight: view.map_or(0, |view| view.weight),
            ramp_percent,
            score: (weight > 0).then(|| score(key, cell.digest, weight)),
            why: why(policy_weight, view, weight, is_chosen, doubted(cell)),
        }
    };
    look.cells.iter().map(explain).collect()
}

/// `doubt` is what is against the cell, whether or not it has a part in `view`.
fn why(
    policy_weight: u32,
    view: Option<CellView>,
    weight: u64,
    is_chosen: bool,
    doubt: Option<Doubt>,
) -> String {
    let word = doubt.map_or("", |doubt| Fault::of_rank(doubt.rank).as_str());
    let suspected = doubt.is_some_and(|doubt| doubt.age_ms.is_none());
    let why = match view {
        _ if is_chosen => "chosen: it has the least score",
        None => "does not exist",
        _ if policy_weight == 0 => "has weight 0 in the policy",
        Some(view) if view.is_drained() => "is drained",
        Some(view) if !view.is_in && view.doubt.is_some() => {
            return format!("is kept out by evidence against it: {word}");
        }
        Some(view) if !view.is_in => "is out",
        Some(_) if weight == 0 => "is held down after its return",
        Some(_) if suspected => {
            return format!("could serve: too few others are left to keep it out for {word}");
        }
        Some(_) => "could serve",
    };
    why.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{States, World, request};
    use serde_json::json;

    fn transaction() -> TransactionId {
        TransactionId::new_v7(1, [7; 10])
    }

    fn world() -> World {
        World::with_groups(&[&[("a", 80), ("b", 20), ("gone", 5)], &[("c", 0), ("d", 1)]]).rule(|rule| {
            rule.key = serde_json::from_value(json!({"header": "x-account"})).ok();
            rule.groups[0].min_healthy_percent = 50;
        })
    }

    fn whys(explanation: &Explanation) -> Vec<(&str, &str)> {
        let candidates = explanation.groups.iter().flat_map(|group| &group.candidates);
        candidates.map(|candidate| (candidate.cell.as_str(), candidate.why.as_str())).collect()
    }

    #[test]
    fn what_is_explained_is_what_is_decided() {
        let mut world = world();
        world.cells.retain(|cell| cell.name() != "gone");
        let table = world.table();
        let states = States::of(&table);
        for n in 0..100 {
            let request = request("x-account", &n.to_string());
            let explanation = explain(&table, "http", &request, &transaction(), &states);
            let rule = &table.rules()[0];
            let key = decide::key(rule, &request, &transaction()).expect("a key");
            let choice = decide::choose(rule, key, &states, &[]).expect("a cell");
            assert_eq!(explanation.cell.as_deref(), Some(&*table.cell(choice.cell).name));
            let group = &explanation.groups[0].candidates;
            let least = group.iter().filter(|candidate| candidate.score.is_some());
            let least = least.min_by(|a, b| a.score.partial_cmp(&b.score).expect("numbers")).expect("one");
            assert_eq!(Some(&least.cell), explanation.cell.as_ref(), "the least score is the chosen one's");
        }
    }

    #[test]
    fn each_cell_and_group_is_told_why() {
        let mut world = world();
        world.cells.retain(|cell| cell.name() != "gone");
        let table = world.table();
        let states = States::of(&table).out(&table, &["a"]);
        let explanation = explain(&table, "http", &request("x-account", "7"), &transaction(), &states);
        assert_eq!(explanation.key.as_ref().map(|key| key.source.as_str()), Some("header x-account"));
        assert_eq!(explanation.groups[0].healthy_percent, Some(20));
        assert_eq!(explanation.groups[0].why, "gives way: 20 % of it is in, and it needs 50 %");
        assert_eq!(explanation.groups[1].why, "serves: the first that is healthy enough");
        let expected = [
            ("a", "is out"),
            ("b", "could serve"),
            ("gone", "does not exist"),
            ("c", "has weight 0 in the policy"),
            ("d", "chosen: it has the least score"),
        ];
        assert_eq!(whys(&explanation), expected);
        let text = serde_json::to_string(&explanation).expect("serialises");
        assert_eq!(serde_json::from_str::<Explanation>(&text).expect("reads"), explanation);
    }

    #[test]
    fn evidence_is_told_whether_or_not_it_keeps_a_cell_out() {
        let groups: &[&[(&str, u32)]] = &[&[("a", 1), ("b", 1), ("c", 1)]];
        let table = World::with_groups(groups).table();
        let mut states = States::of(&table);
        for (cell, rank) in [("a", 1_500), ("b", 900)] {
            states.view(&table, cell).doubt = Some(Doubt { rank, age_ms: None });
        }
        let whys_of = |states: &States, n: u32| {
            let request = request("x", "1");
            let transaction = TransactionId::new_v7(n.into(), [7; 10]);
            let explanation = explain(&table, "http", &request, &transaction, states);
            whys(&explanation).into_iter().map(|(_, why)| why.to_owned()).collect::<Vec<_>>()
        };
        let told: Vec<_> = (0..20).map(|n| whys_of(&states, n)).collect();
        assert!(told.iter().all(|whys| whys[0] == "is kept out by evidence against it: HighErrorRate"));
        let stays = "could serve: too few others are left to keep it out for HighLatency";
        assert!(told.iter().any(|whys| whys[1] == stays), "{told:?}");
        states.view(&table, "a").doubt = Some(Doubt { rank: 1_500, age_ms: Some(0) });
        assert_eq!(whys_of(&states, 1)[0], "is held down after its return");
    }

    #[test]
    fn a_refusal_is_explained_as_far_as_it_got() {
        let mut world = world();
        world.cells.iter_mut().for_each(|cell| cell.spec.weight = 0);
        let table = world.table();
        let states = States::of(&table);
        let drained = explain(&table, "http", &request("x", "1"), &transaction(), &states);
        assert_eq!(drained.key.map(|key| key.source).as_deref(), Some("transaction"));
        let refusal = drained.refusal.expect("a refusal");
        assert_eq!((refusal.status, refusal.reason.as_str()), (503, "AllDrained"));
        assert!(drained.groups[0].why.contains("drained"));
        let nowhere = explain(&table, "other", &request("x", "1"), &transaction(), &states);
        assert_eq!(nowhere.refusal.map(|refusal| refusal.status), Some(404));
        assert_eq!(nowhere.rule, None);
    }
}
