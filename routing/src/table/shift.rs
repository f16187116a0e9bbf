//! TrafficShifts laid over a table: those of cells beside the cell, those of rules beside the rule, each with its end.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bulkhead_crds::cell::CellState;
use bulkhead_crds::policy::CellWeight;
use bulkhead_crds::shift::{ShiftOwner, TrafficShiftSpec};
use bulkhead_crds::{RoutingPolicy, TrafficShift};

use super::{CellShift, Outcome, Rule, RuleId, RuleShift, ShiftVerdict, Table};

/// A shift of a rule, before it is laid over each copy of that rule.
struct Override<'a> {
    weights: &'a [CellWeight],
    expires_at_ms: Option<u64>,
}

/// Lays every legal shift over the table. One that is not is left out, and its verdict says why.
pub(crate) fn apply(
    table: &mut Table,
    policies: &[&RoutingPolicy],
    shifts: &[&TrafficShift],
) -> Vec<ShiftVerdict> {
    if shifts.is_empty() {
        return Vec::new();
    }
    let known = known_rules(policies);
    let mut overrides: HashMap<RuleId, Vec<Override<'_>>> = HashMap::new();
    let mut verdicts = Vec::with_capacity(shifts.len());
    for shift in newest_first(shifts) {
        let name = shift.metadata.name.clone().unwrap_or_default();
        let accepted = match read(&name, &shift.spec, table, &known) {
            Ok(Target::Cell(place, read)) => {
                table.cells[place].shifts.push(read);
                Outcome::accepted()
            }
            Ok(Target::Rule(id, expires_at_ms)) => {
                let weights = &shift.spec.weights;
                overrides.entry(id).or_default().push(Override { weights, expires_at_ms });
                Outcome::accepted()
            }
            Err(refused) => refused,
        };
        verdicts.push(ShiftVerdict { name, accepted });
    }
    for rule in &mut table.rules {
        if let Some(overrides) = overrides.get(&rule.id) {
            let shifts = overrides.iter().map(|one| lay_over(rule, one)).collect();
            Arc::make_mut(rule).shifts = shifts;
        }
    }
    verdicts
}

enum Target {
    Cell(usize, CellShift),
    Rule(RuleId, Option<u64>),
}

/// Of two for one rule the newer holds; names decide between those of one second.
fn newest_first<'a>(shifts: &[&'a TrafficShift]) -> Vec<&'a TrafficShift> {
    let mut sorted = shifts.to_vec();
    sorted.sort_by_cached_key(|shift| {
        let created = shift.metadata.creation_timestamp.as_ref().map(|time| time.0.as_millisecond());
        (std::cmp::Reverse(created), shift.metadata.name.clone())
    });
    sorted
}

/// Each rule of each policy, whatever Router it is attached to, and whether it is an owner rule.
fn known_rules(policies: &[&RoutingPolicy]) -> HashMap<RuleId, bool> {
    let mut known = HashMap::new();
    for policy in policies {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        known.extend(
            policy.spec.rules.iter().map(|rule| (RuleId::new(namespace, name, &rule.name), rule.owner)),
        );
    }
    known
}

fn read(
    name: &str,
    spec: &TrafficShiftSpec,
    table: &Table,
    known: &HashMap<RuleId, bool>,
) -> Result<Target, Outcome> {
    let invalid = |message: &str| Outcome::refused("InvalidShift", message);
    let expires_at_ms = expiry(spec)?;
    match (&spec.cell, &spec.policy) {
        (Some(cell), None) => {
            if spec.weight.is_none() && spec.state.is_none() {
                return Err(invalid("a shift of a cell needs weight or state"));
            }
            let Some(place) = table.cell_named(cell) else {
                let message = format!("there is no Cell {cell:?}; the shift waits for it");
                return Err(Outcome::refused("CellNotFound", message));
            };
            let shift = CellShift {
                name: name.to_owned(),
                percent: spec.weight.unwrap_or(100),
                state: spec.state.unwrap_or(CellState::Active),
                expires_at_ms,
                by_operator: spec.owner == ShiftOwner::Operator,
            };
            Ok(Target::Cell(place.0 as usize, shift))
        }
        (None, Some(rule)) => {
            let id = RuleId::new(&rule.namespace, &rule.name, &rule.rule);
            match known.get(&id) {
                Some(false) => Ok(Target::Rule(id, expires_at_ms)),
                Some(true) => {
                    let message = format!(
                        "rule {id} has owner: true, and its keys move only with the policy itself; edit the policy"
                    );
                    Err(Outcome::refused("OwnerRule", message))
                }
                None => {
                    let message = format!("there is no rule {id}; the shift waits for it");
                    Err(Outcome::refused("RuleNotFound", message))
                }
            }
        }
        _ => Err(invalid("set either cell (with weight or state) or policy (with weights)")),
    }
}

/// Milliseconds since 1970. Only the operator's shifts may go without an end: nothing of a person's is forgotten.
fn expiry(spec: &TrafficShiftSpec) -> Result<Option<u64>, Outcome> {
    let Some(text) = &spec.expires_at else {
        return match spec.owner {
            ShiftOwner::Operator => Ok(None),
            ShiftOwner::User => {
                Err(Outcome::refused("InvalidShift", "expiresAt is needed, such as 2030-01-31T12:00:00Z"))
            }
        };
    };
    let time: jiff::Timestamp = text.parse().map_err(|_| {
        Outcome::refused(
            "InvalidShift",
            format!("expiresAt {text:?} is no RFC 3339 time, such as 2030-01-31T12:00:00Z"),
        )
    })?;
    Ok(Some(u64::try_from(time.as_millisecond()).unwrap_or(0)))
}

fn lay_over(rule: &Rule, shift: &Override<'_>) -> RuleShift {
    let named: BTreeMap<&str, u32> =
        shift.weights.iter().map(|cell| (cell.name.as_str(), cell.weight.min(1_000_000))).collect();
    let weights = rule.groups.iter().map(|group| {
        let weight = |cell: &super::GroupCell| named.get(&*cell.name).copied().unwrap_or(cell.weight);
        group.cells.iter().map(weight).collect()
    });
    RuleShift { expires_at_ms: shift.expires_at_ms, weights: weights.collect() }
}
