//! The way of a deleted Cell, purely: which step comes next, and what is said of it.

use bulkhead_crds::DeletionPolicy;

use crate::routing_status::snapshot::CellTraffic;

/// What a deleted Cell looks like now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// The namespace is ours and exists.
    pub(super) owned: bool,
    pub(super) terminating: bool,
    pub(super) retained: bool,
    pub(super) policy: DeletionPolicy,
    pub(super) shifted: bool,
    pub(super) drained: bool,
    /// Objects of ours that hold no data.
    pub(super) objects: usize,
    /// Names of the cell's own pods that have not ended.
    pub(super) pods: Vec<String>,
    /// Runs elsewhere, so that there is nothing here to remove.
    pub(super) external: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    MakeShift,
    AwaitDrain,
    RemoveWorkload,
    AwaitPods,
    MarkRetained,
    DeleteNamespace,
    AwaitNamespace,
    Finish,
}

pub(super) fn next(view: &View) -> Step {
    // A cell without pods has nothing under way, whatever the routers say or fail to say.
    let serves = view.external || (view.owned && !view.pods.is_empty() && !view.terminating);
    if serves && !view.drained {
        return if view.shifted { Step::AwaitDrain } else { Step::MakeShift };
    }
    if !view.owned {
        return Step::Finish;
    }
    if view.terminating {
        return Step::AwaitNamespace;
    }
    if view.objects > 0 {
        return Step::RemoveWorkload;
    }
    // Whatever the policy: they end by themselves now, and the walls must outlast them.
    if !view.pods.is_empty() {
        return Step::AwaitPods;
    }
    match view.policy {
        DeletionPolicy::Delete => Step::DeleteNamespace,
        DeletionPolicy::Retain if view.retained => Step::Finish,
        DeletionPolicy::Retain => Step::MarkRetained,
    }
}

pub(super) fn explain(step: Step, view: &View, traffic: &CellTraffic) -> String {
    match step {
        Step::MakeShift | Step::AwaitDrain => {
            let holding = if traffic.holding.is_empty() {
                "the routers".to_owned()
            } else {
                traffic.holding.join(", ")
            };
            format!("deletion waits for {holding}: {} under way", traffic.in_flight)
        }
        Step::RemoveWorkload => "deletion waits for the workload to be removed".to_owned(),
        Step::AwaitPods => format!("deletion waits for pods to end: {}", few(&view.pods)),
        Step::MarkRetained | Step::Finish => "deletion is at its end".to_owned(),
        Step::DeleteNamespace | Step::AwaitNamespace => "deletion waits for the namespace to end".to_owned(),
    }
}

/// The first names, and how many more there are.
fn few(names: &[String]) -> String {
    const NAMED: usize = 5;
    match names.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving() -> View {
        View { owned: true, objects: 9, pods: vec!["web-1".to_owned()], ..View::default() }
    }

    #[track_caller]
    fn check(view: &View, expected: Step) {
        assert_eq!(next(view), expected, "{view:?}");
    }

    #[test]
    fn a_cell_leaves_traffic_before_anything_of_it_is_removed() {
        check(&serving(), Step::MakeShift);
        check(&View { shifted: true, ..serving() }, Step::AwaitDrain);
        check(&View { shifted: true, drained: true, ..serving() }, Step::RemoveWorkload);
        check(&View { shifted: true, drained: true, objects: 0, ..serving() }, Step::AwaitPods);
    }

    #[test]
    fn the_namespace_is_kept_or_removed_as_the_policy_says() {
        let empty = View { shifted: true, drained: true, objects: 0, pods: vec![], ..serving() };
        check(&empty, Step::MarkRetained);
        check(&View { retained: true, ..empty.clone() }, Step::Finish);
        let delete = View { policy: DeletionPolicy::Delete, ..empty };
        check(&delete, Step::DeleteNamespace);
        check(&View { terminating: true, ..delete.clone() }, Step::AwaitNamespace);
        check(&View { owned: false, terminating: false, ..delete }, Step::Finish);
    }

    #[test]
    fn a_cell_whose_pods_are_gone_is_not_waited_for() {
        check(&View { pods: vec![], ..serving() }, Step::RemoveWorkload);
        check(&View { terminating: true, ..serving() }, Step::AwaitNamespace);
    }

    #[test]
    fn the_pods_that_are_waited_for_are_named() {
        let pods = (1..=7).map(|number| format!("web-{number}")).collect();
        let waiting = View { shifted: true, drained: true, objects: 0, pods, ..serving() };
        let text = explain(next(&waiting), &waiting, &Default::default());
        assert_eq!(text, "deletion waits for pods to end: web-1, web-2, web-3, web-4, web-5 and 2 more");
        let last = View { pods: vec!["web-7".to_owned()], ..waiting };
        assert_eq!(explain(next(&last), &last, &Default::default()), "deletion waits for pods to end: web-7");
    }

    #[test]
    fn a_namespace_that_is_not_ours_is_never_touched() {
        check(&View { owned: false, ..serving() }, Step::Finish);
    }

    #[test]
    fn a_cell_elsewhere_is_drained_and_nothing_more() {
        let external = View { external: true, ..View::default() };
        check(&external, Step::MakeShift);
        check(&View { shifted: true, ..external.clone() }, Step::AwaitDrain);
        check(&View { shifted: true, drained: true, ..external }, Step::Finish);
    }
}
