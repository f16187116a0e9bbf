//! What the status of a RoutingPolicy says, purely: what the table builder makes of it, which router pods serve it, and
//! where its traffic goes.

use std::collections::{BTreeMap, HashSet};

use bulkhead_crds::policy::{ParentStatus, RuleStatus};
use bulkhead_crds::{ConditionStatus, RoutingPolicy, RoutingPolicyStatus};
use bulkhead_protocol::Reason;
use bulkhead_routing::table::{Outcome, ParentVerdict};

use super::snapshot::{Progress, Snapshot, Wanted};
use crate::conditions::{Statement, state, statement};

/// The status that follows for one policy; `verdicts` are those about it, `drained` the rules that nobody is left to
/// serve, of all policies.
pub(super) fn status(
    policy: &RoutingPolicy,
    verdicts: &[&ParentVerdict],
    drained: &HashSet<String>,
    snapshot: &Snapshot,
    now: &str,
) -> RoutingPolicyStatus {
    let generation = policy.metadata.generation;
    let last = policy.status.clone().unwrap_or_default();
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let key = format!("RoutingPolicy/{namespace}/{name}");
    let wanted = Wanted {
        key: &key,
        uid: policy.metadata.uid.as_deref().unwrap_or_default(),
        generation: generation.unwrap_or(0),
    };
    let mut all = Vec::new();
    let parents = policy.spec.parent_refs.iter().map(|parent| {
        let verdict = verdicts.iter().find(|verdict| verdict.parent == *parent);
        let programmed = programmed(
            &snapshot.progress(Some(&parent.router), wanted),
            &snapshot.closed(&parent.router, Some(&parent.listener)),
            wanted.generation,
        );
        let statements = parent_statements(verdict.copied(), programmed);
        all.push((format!("{}/{}", parent.router, parent.listener), statements.clone()));
        let before =
            last.parents.iter().find(|old| old.router == parent.router && old.listener == parent.listener);
        let before = before.map(|old| old.conditions.as_slice()).unwrap_or_default();
        ParentStatus {
            router: parent.router.clone(),
            listener: parent.listener.clone(),
            conditions: state(before, statements, generation, now),
        }
    });
    let parents = parents.collect();
    let statements = [ready(&all)].into_iter().chain(all_drained(policy, drained)).collect();
    RoutingPolicyStatus {
        observed_generation: generation,
        settled_generation: has_owners(policy)
            .then(|| if snapshot.has_settled(wanted) { generation } else { last.settled_generation })
            .flatten(),
        conditions: state(&last.conditions, statements, generation, now),
        parents,
        rules: rules(policy, snapshot),
    }
}

fn has_owners(policy: &RoutingPolicy) -> bool {
    policy.spec.rules.iter().any(|rule| rule.owner)
}

/// Whether routers are waited for until the keys that an edit moves may be served.
pub(super) fn is_moving(status: &RoutingPolicyStatus, policy: &RoutingPolicy, snapshot: &Snapshot) -> bool {
    has_owners(policy)
        && status.settled_generation != policy.metadata.generation
        && snapshot.routers.iter().any(|pod| !pod.gone)
}

fn outcome(r#type: &'static str, outcome: &Outcome) -> Statement {
    statement(r#type, outcome.ok, outcome.reason, outcome.message.clone())
}

fn parent_statements(verdict: Option<&ParentVerdict>, programmed: Statement) -> Vec<Statement> {
    let Some(verdict) = verdict else {
        let text = "this reference was not judged yet";
        return vec![statement("Accepted", ConditionStatus::Unknown, "Pending", text)];
    };
    vec![
        outcome("Accepted", &verdict.accepted),
        outcome("ResolvedRefs", &verdict.resolved_refs),
        if verdict.accepted.ok { programmed } else { not_accepted() },
    ]
}

/// Routers may know an object and apply nothing of it.
pub(super) fn not_accepted() -> Statement {
    statement("Programmed", false, "NotAccepted", "it is not accepted, so no router applies it")
}

/// True when every router pod that is not gone serves that generation; a silent one is named either way. `closed` names the
/// pods that do not listen where they should, and why.
pub(super) fn programmed(progress: &Progress, closed: &[String], generation: i64) -> Statement {
    let silent = if progress.silent.is_empty() {
        String::new()
    } else {
        format!("; no answer from {}", progress.silent.join(", "))
    };
    if progress.routers == 0 {
        return statement(
            "Programmed",
            false,
            "NoRouter",
            format!("no router pod serves this Router{silent}"),
        );
    }
    if !progress.behind.is_empty() {
        let text = format!("generation {generation} is waited for in {}{silent}", progress.behind.join(", "));
        return statement("Programmed", false, "Pending", text);
    }
    if !closed.is_empty() {
        return statement("Programmed", false, "ListenerNotOpen", closed.join("; "));
    }
    // Without their number, so that no status has to be written when there are more or fewer.
    let text = format!("every router pod serves generation {generation}{silent}");
    statement("Programmed", true, "Programmed", text)
}

/// Ready when every parent says yes to everything; else the first no, with its parent.
fn ready(parents: &[(String, Vec<Statement>)]) -> Statement {
    let open = parents.iter().find_map(|(parent, statements)| {
        let open = statements.iter().find(|statement| statement.status != ConditionStatus::True)?;
        Some((parent, open))
    });
    match open {
        Some((parent, open)) => statement(
            "Ready",
            false,
            open.reason.clone(),
            format!("{parent}: {}: {}", open.r#type, open.message),
        ),
        None => statement("Ready", true, "Ready", "accepted and served by every router"),
    }
}

/// True while a rule has no cell left to send to, whatever their health; else not stated. Such a policy is as Ready as
/// any: that may be just what its owner wants.
fn all_drained(policy: &RoutingPolicy, drained: &HashSet<String>) -> Option<Statement> {
    let names = policy.spec.rules.iter().map(|rule| rule.name.as_str());
    let names: Vec<&str> = names.filter(|rule| drained.contains(&rule_id(policy, rule))).collect();
    if names.is_empty() {
        return None;
    }
    let reason = Reason::AllDrained.as_str();
    let text = format!(
        "every cell of these rules has weight 0, is drained or is disabled, so all that they match is answered 503: {}; \
         give a cell of each a weight in the policy, make it Active in its spec, or end the TrafficShift that holds it",
        names.join(", ")
    );
    Some(statement(reason, true, reason, text))
}

fn rule_id(policy: &RoutingPolicy, rule: &str) -> String {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}/{rule}")
}

/// Where each rule's traffic goes: the mean over the routers, which differ only while they learn of a change.
fn rules(policy: &RoutingPolicy, snapshot: &Snapshot) -> Vec<RuleStatus> {
    let rule = |rule: &str| {
        let id = rule_id(policy, rule);
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let mut routers = 0_u64;
        for pod in snapshot.routers.iter().filter(|pod| !pod.gone) {
            let Some(shares) = pod.serving.as_ref().and_then(|serving| serving.shares.get(&id)) else {
                continue;
            };
            routers += 1;
            for (cell, share) in shares {
                *sums.entry(cell).or_default() += u64::from(*share);
            }
        }
        let shares = sums.iter().filter(|(_, sum)| **sum > 0).map(|(cell, sum)| percent(cell, *sum, routers));
        RuleStatus { name: rule.to_owned(), shares: shares.collect() }
    };
    policy.spec.rules.iter().map(|spec| rule(&spec.name)).collect()
}

/// `CELL=PERCENT`, from parts per million over that many routers; rounded to a tenth.
fn percent(cell: &str, sum: u64, routers: u64) -> String {
    let tenths = (sum + 500 * routers) / (1_000 * routers.max(1));
    format!("{cell}={}.{}%", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bulkhead_crds::condition::{find, is_true};
    use bulkhead_crds::policy::ParentRef;
    use bulkhead_crds::{RoutingPolicySpec, RoutingRule};
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::ObjectVersion;

    use super::super::snapshot::RouterPod;
    use super::*;
    use crate::fixture;

    fn policy() -> RoutingPolicy {
        let parent = ParentRef { router: "r".to_owned(), listener: "http".to_owned() };
        let rule = RoutingRule { name: "all".to_owned(), ..RoutingRule::default() };
        let spec = RoutingPolicySpec {
            parent_refs: vec![parent],
            rules: vec![rule],
            ..RoutingPolicySpec::default()
        };
        let mut policy = RoutingPolicy::new("p", spec);
        policy.metadata.namespace = Some("apps".to_owned());
        policy.metadata.uid = Some("u".to_owned());
        policy.metadata.generation = Some(3);
        policy
    }

    fn verdict(accepted: bool) -> ParentVerdict {
        let outcome =
            |ok| Outcome { ok, reason: if ok { "Accepted" } else { "Conflict" }, message: "text".to_owned() };
        ParentVerdict {
            namespace: "apps".to_owned(),
            name: "p".to_owned(),
            parent: policy().spec.parent_refs[0].clone(),
            accepted: outcome(accepted),
            resolved_refs: outcome(true),
        }
    }

    fn pod(name: &str, generation: i64, share: u32) -> RouterPod {
        let mut serving = Serving::default();
        let version = ObjectVersion { uid: "u".to_owned(), generation };
        serving.objects.insert("RoutingPolicy/apps/p".to_owned(), version);
        let shares = [("a".to_owned(), share), ("b".to_owned(), 1_000_000 - share)].into();
        serving.shares.insert("apps/p/all".to_owned(), shares);
        fixture::router_pod(name, serving)
    }

    fn made(accepted: bool, routers: Vec<RouterPod>) -> RoutingPolicyStatus {
        let snapshot = Snapshot { asked: true, routers };
        status(&policy(), &[&verdict(accepted)], &HashSet::new(), &snapshot, "now")
    }

    #[test]
    fn programmed_waits_for_every_router_that_is_not_gone() {
        let behind = made(true, vec![pod("r-0", 3, 0), pod("r-1", 2, 0)]);
        let programmed = find(&behind.parents[0].conditions, "Programmed").expect("is stated");
        assert_eq!((programmed.status, programmed.reason.as_str()), (ConditionStatus::False, "Pending"));
        assert!(programmed.message.contains("r-1") && !programmed.message.contains("r-0"), "{programmed:?}");
        assert!(!is_true(&behind.conditions, "Ready"));

        let mut gone = pod("r-1", 2, 0);
        (gone.silent, gone.gone) = (true, true);
        let served = made(true, vec![pod("r-0", 3, 0), gone]);
        let programmed = find(&served.parents[0].conditions, "Programmed").expect("is stated");
        assert_eq!(programmed.status, ConditionStatus::True);
        assert!(programmed.message.contains("no answer from r-1"), "{programmed:?}");
        assert!(is_true(&served.conditions, "Ready"));
    }

    #[test]
    fn a_generation_of_owners_is_settled_once_every_router_has_it_and_nothing_by_another_under_way() {
        let check = |pods: Vec<RouterPod>, expected: i64| {
            let mut policy = policy();
            policy.spec.rules[0].owner = true;
            let last = RoutingPolicyStatus { settled_generation: Some(2), ..RoutingPolicyStatus::default() };
            policy.status = Some(last);
            let snapshot = Snapshot { asked: true, routers: pods };
            let status = status(&policy, &[&verdict(false)], &HashSet::new(), &snapshot, "now");
            assert_eq!(status.settled_generation, Some(expected), "{snapshot:?}");
            let waits = expected != 3 && snapshot.routers.iter().any(|pod| !pod.gone);
            assert_eq!(is_moving(&status, &policy, &snapshot), waits);
        };
        let at = |name, generation| pod(name, generation, 0);
        let mut other_router = at("r-1", 2);
        other_router.router = "other".to_owned();
        let mut works = at("r-1", 3);
        let serving = works.serving.as_mut().map(Arc::make_mut).expect("it answered");
        serving.unsettled.insert("RoutingPolicy/apps/p".to_owned());
        let mut silent = at("r-1", 3);
        silent.silent = true;
        let mut gone = at("r-1", 2);
        (gone.silent, gone.gone) = (true, true);
        check(vec![at("r-0", 3), at("r-1", 3)], 3);
        check(vec![at("r-0", 3), at("r-1", 2)], 2);
        check(vec![at("r-0", 3), other_router], 2);
        check(vec![at("r-0", 3), works], 2);
        check(vec![at("r-0", 3), silent], 2);
        check(vec![at("r-0", 3), gone.clone()], 3);
        // Nobody is known to have it: a router that the operator does not see would be overlooked.
        check(vec![gone], 2);
        check(vec![], 2);
        assert_eq!(made(true, vec![at("r-0", 3)]).settled_generation, None, "it has no owner rule");
    }

    #[test]
    fn a_policy_of_a_listener_that_is_not_open_is_not_programmed_there() {
        let closed = |listener: &str| {
            let mut pod = pod("r-0", 3, 0);
            let serving = pod.serving.as_mut().map(Arc::make_mut).expect("it answered");
            serving.closed.insert(listener.to_owned(), "the port is taken".to_owned());
            made(true, vec![pod])
        };
        assert!(is_true(&closed("other").conditions, "Ready"));
        let here = closed("http");
        let programmed = find(&here.parents[0].conditions, "Programmed").expect("is stated");
        assert_eq!(
            (programmed.status, programmed.reason.as_str()),
            (ConditionStatus::False, "ListenerNotOpen")
        );
        assert_eq!(programmed.message, "r-0: the port is taken");
    }

    #[test]
    fn a_generation_that_is_waited_for_comes_before_listeners_and_every_answering_pod_is_named() {
        let closed = |name, generation, silent| {
            let mut pod = pod(name, generation, 0);
            let serving = pod.serving.as_mut().map(Arc::make_mut).expect("it answered");
            serving.closed.insert("http".to_owned(), "taken".to_owned());
            (pod.silent, pod.gone) = (silent, silent);
            pod
        };
        let check = |pods: Vec<RouterPod>, reason: &str, message: &str| {
            let status = made(true, pods);
            let programmed = find(&status.parents[0].conditions, "Programmed").expect("is stated");
            assert_eq!((programmed.reason.as_str(), programmed.message.as_str()), (reason, message));
        };
        let waited = "generation 3 is waited for in r-1";
        check(vec![closed("r-0", 3, false), closed("r-1", 2, false)], "Pending", waited);
        let both = vec![closed("r-0", 3, false), closed("r-1", 3, false), closed("r-2", 3, true)];
        check(both, "ListenerNotOpen", "r-0: taken; r-1: taken");
    }

    #[test]
    fn a_refused_policy_says_why_whatever_the_routers_do() {
        let refused = made(false, vec![pod("r-0", 3, 0)]);
        let ready = find(&refused.conditions, "Ready").expect("is stated");
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "Conflict"));
        let programmed = find(&refused.parents[0].conditions, "Programmed").expect("is stated");
        assert_eq!((programmed.status, programmed.reason.as_str()), (ConditionStatus::False, "NotAccepted"));
    }

    #[test]
    fn a_policy_with_a_rule_that_nobody_serves_is_ready_and_says_which_rule_gets_503() {
        let check = |drained: &[&str], expected: bool| {
            let snapshot = Snapshot { asked: true, routers: vec![pod("r-0", 3, 0)] };
            let drained = drained.iter().map(|rule| (*rule).to_owned()).collect();
            let status = status(&policy(), &[&verdict(true)], &drained, &snapshot, "now");
            assert!(is_true(&status.conditions, "Ready"), "{status:?}");
            assert_eq!(is_true(&status.conditions, "AllDrained"), expected, "{status:?}");
            status
        };
        let drained = check(&["apps/p/all", "apps/other/all"], true);
        let stated = find(&drained.conditions, "AllDrained").expect("is stated");
        assert!(stated.message.contains("503: all;"), "{stated:?}");
        check(&["apps/other/all", "elsewhere/p/all"], false);
        check(&[], false);
    }

    #[test]
    fn shares_are_the_mean_over_the_routers_and_nothing_is_left_out_but_zero() {
        let even = made(true, vec![pod("r-0", 3, 800_000), pod("r-1", 3, 799_000)]);
        assert_eq!(even.rules[0].shares, ["a=80.0%", "b=20.1%"]);
        let all = made(true, vec![pod("r-0", 3, 1_000_000)]);
        assert_eq!(all.rules[0].shares, ["a=100.0%"]);
    }
}
