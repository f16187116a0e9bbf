//! One rule of a policy, read and checked by itself: what the API server would refuse is refused here again, because
//! tables are built from files too.

use std::collections::HashSet;
use std::sync::Arc;

use bulkhead_crds::policy::{self, CellWeight, RestartPolicy, RoutingRule};

use super::fence::Fence;
use super::{Failback, Group, GroupCell, KeySource, Restart, Rule, RuleId, Table};
use crate::condition::{Condition, Source};
use crate::json::Pointers;

/// Weights above this say nothing more, and keep products within 53 bits.
pub(super) const MAX_WEIGHT: u32 = 1_000_000;

/// A rule that can serve, and what is to be said of it.
pub(crate) struct Draft {
    pub(crate) rule: Rule,
    /// Each alternative in normal form; a rule without `matches` has one that is empty.
    pub(crate) arms: Vec<Vec<Condition>>,
    /// Names of cells that do not exist.
    pub(crate) missing: Vec<String>,
    /// Names that one group has twice; the first mention counts.
    pub(crate) repeated: Vec<String>,
    /// Cell and Destination for which the rule's restart policy is not kept: what happens in a tunnel cannot be fenced.
    pub(crate) unsafe_restart: Option<(String, String)>,
}

/// Reads the rule, or says in a sentence why it cannot serve.
pub(crate) fn read(id: RuleId, spec: &RoutingRule, table: &Table) -> Result<Draft, String> {
    if spec.groups.is_empty() || spec.groups.iter().any(|group| group.cells.is_empty()) {
        return Err("it needs at least one group, and each group at least one cell".to_owned());
    }
    if spec.owner && spec.groups.len() != 1 {
        return Err("owner: true takes exactly one group".to_owned());
    }
    if spec.owner && spec.key.is_none() {
        return Err("owner: true needs a key".to_owned());
    }
    let key = spec.key.as_ref().map(read_key).transpose().map_err(|error| format!("key: {error}"))?;
    let arms = arms(&spec.matches)?;
    let mut restart = restart(&spec.restart)?;
    let (mut missing, mut repeated) = (Vec::new(), Vec::new());
    let groups: Vec<Group> =
        spec.groups.iter().map(|group| read_group(group, table, &mut missing, &mut repeated)).collect();
    let cells = || groups.iter().flat_map(|group| &group.cells).filter_map(|cell| cell.cell);
    let effects = cells().any(|cell| table.has_effects(cell));
    let unsafe_restart = match restart.policy {
        RestartPolicy::UntilPointOfNoReturn => cells().find_map(|cell| table.unfenced(cell)),
        RestartPolicy::SafeOnly | RestartPolicy::Never => None,
    };
    if unsafe_restart.is_some() {
        restart.policy = RestartPolicy::SafeOnly;
    }
    missing.sort();
    missing.dedup();
    let failback = failback(&spec.failback);
    let (owner, fence, shifts) = (spec.owner, Fence::Open, Vec::new());
    // The place is given with the table.
    let rule = Rule { id, place: 0, key, groups, owner, fence, restart, failback, effects, shifts };
    Ok(Draft { rule, arms, missing, repeated, unsafe_restart })
}

fn read_key(spec: &policy::Source) -> Result<KeySource, String> {
    let source = Source::parse(spec)?;
    let pointers = match &source {
        Source::Pointer(pointer) => Pointers::new([pointer.as_str()]),
        Source::Method | Source::Path | Source::Host | Source::Header(_) | Source::Query(_) => {
            Pointers::default()
        }
    };
    Ok(KeySource { source, pointers })
}

fn arms(matches: &[policy::Match]) -> Result<Vec<Vec<Condition>>, String> {
    if matches.is_empty() {
        return Ok(vec![Vec::new()]);
    }
    let mut arms: Vec<Vec<Condition>> = Vec::with_capacity(matches.len());
    for (place, one) in matches.iter().enumerate() {
        let complain = |error: String| format!("matches[{place}]: {error}");
        if !(1..=16).contains(&one.all.len()) {
            return Err(complain("it needs 1 to 16 conditions".to_owned()));
        }
        let conditions: Result<Vec<_>, _> = one.all.iter().map(Condition::parse).collect();
        let mut conditions = conditions.map_err(complain)?;
        conditions.sort();
        conditions.dedup();
        if !arms.contains(&conditions) {
            arms.push(conditions);
        }
    }
    Ok(arms)
}

fn read_group(
    group: &policy::Group,
    table: &Table,
    missing: &mut Vec<String>,
    repeated: &mut Vec<String>,
) -> Group {
    let cells = read_cells(&group.cells, table, missing, repeated);
    Group { cells, min_healthy_percent: group.min_healthy_percent.min(100) }
}

/// The cells of one group with their weights; of two mentions of a name the first counts.
pub(super) fn read_cells(
    cells: &[CellWeight],
    table: &Table,
    missing: &mut Vec<String>,
    repeated: &mut Vec<String>,
) -> Vec<GroupCell> {
    let mut seen = HashSet::new();
    let mut read = Vec::with_capacity(cells.len());
    for cell in cells {
        if !seen.insert(cell.name.as_str()) {
            repeated.push(cell.name.clone());
            continue;
        }
        let weight = cell.weight.min(MAX_WEIGHT);
        let (name, place) = match table.cell_places.get_key_value(cell.name.as_str()) {
            Some((name, place)) => (Arc::clone(name), Some(*place)),
            None => {
                missing.push(cell.name.clone());
                (cell.name.as_str().into(), None)
            }
        };
        read.push(GroupCell { digest: crate::decide::digest_name(&name), name, cell: place, weight });
    }
    read
}

fn restart(spec: &policy::Restart) -> Result<Restart, String> {
    let deadline = spec.deadline.get();
    let per_attempt = spec.per_attempt.map_or(deadline, |limit| limit.get().min(deadline));
    if per_attempt.is_zero() {
        return Err("restart.deadline and restart.perAttempt must be above 0s".to_owned());
    }
    let buffer_limit = bytes(&spec.buffer_limit).ok_or_else(|| {
        format!("restart.bufferLimit {:?} is no size: write bytes, or such as 256Ki, 1Mi", spec.buffer_limit)
    })?;
    Ok(Restart {
        policy: spec.policy,
        max_attempts: spec.max_attempts.max(1),
        deadline,
        per_attempt,
        buffer_limit,
        too_large: spec.too_large,
    })
}

/// A number of bytes with a binary unit or none.
pub fn bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let shift = match &text[digits..] {
        "" => 0,
        "Ki" => 10,
        "Mi" => 20,
        "Gi" => 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Steps never fall: a step below the one before it counts as that one, so that age only ever adds share.
fn failback(spec: &policy::Failback) -> Failback {
    let millis = |span: bulkhead_crds::Duration| u64::try_from(span.get().as_millis()).unwrap_or(u64::MAX);
    let mut highest = 0;
    let steps = spec.steps.iter().map(|step| {
        highest = highest.max((*step).min(100));
        highest
    });
    Failback {
        steps: steps.collect(),
        hold_down_ms: millis(spec.hold_down),
        interval_ms: millis(spec.interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("256Ki", Some(256 << 10)),
            ("1Mi", Some(1 << 20)),
            ("2Gi", Some(2 << 30)),
            ("", None),
            ("Ki", None),
            ("1K", None),
            ("-1", None),
            ("99999999999999999999", None),
            ("999999999999Gi", None.or(999_999_999_999_u64.checked_mul(1 << 30))),
        ] {
            assert_eq!(bytes(text), expected, "{text:?}");
        }
    }
}
