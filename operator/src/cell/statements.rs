//! What the status of a Cell says: pure, from what a reconcile saw and did to conditions with their sentences. The write
//! is `status`'s.

use bulkhead_crds::condition::find;
use bulkhead_crds::{Cell, CellStatus, ConditionStatus};
use jiff::Timestamp;

use super::destinations::Destinations;
use super::health::Health;
use super::served::{drained, orchestrator, serving};
use super::validate::Problem;
use crate::clock;
use crate::conditions::{Statement, state, statement};
use crate::orchestrators::Voices;
use crate::rollout::Step;
use crate::routing_status::snapshot::CellTraffic;

/// What a reconcile of one Cell came to.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub namespace: Option<String>,
    pub namespace_uid: Option<String>,
    pub current_revision: Option<String>,
    pub update_revision: Option<String>,
    pub problem: Option<Problem>,
    /// A problem that time alone may cure.
    pub passing: bool,
    /// What people must cure though it runs well: why it stays at its own revision for good, or may span regions.
    pub held: Option<Problem>,
    pub health: Health,
    pub voices: Option<Voices>,
    /// Objects that were written or removed in this pass.
    pub wrote: usize,
    pub objects: usize,
    pub step: Option<Step>,
    pub traffic: CellTraffic,
    /// Weight that spec and other people's shifts leave it.
    pub weight: u32,
    pub shifted: bool,
    pub drained: bool,
    /// A cell outside this cluster.
    pub external: bool,
    pub destinations: Destinations,
    /// Set while the Cell is being deleted: where that stands.
    pub leaving: Option<String>,
}

/// The whole status that follows.
pub(crate) fn compute(cell: &Cell, report: &Report, now: Timestamp) -> CellStatus {
    let last = cell.status.clone().unwrap_or_default();
    let statements = statements(report);
    let conditions = state(&last.conditions, statements, cell.metadata.generation, &clock::rfc3339(now));
    let draining = (report.weight == 0 || report.shifted) && !report.drained;
    let ready_since = find(&conditions, "OrchestratorReady")
        .filter(|condition| condition.status == ConditionStatus::True)
        .map(|condition| condition.last_transition_time.clone());
    CellStatus {
        observed_generation: cell.metadata.generation,
        namespace: report.namespace.clone(),
        namespace_uid: report.namespace_uid.clone(),
        current_revision: report.current_revision.clone(),
        update_revision: report.update_revision.clone(),
        effective_weight: if report.traffic.known {
            report.traffic.effective_weight
        } else {
            last.effective_weight
        },
        ready_since,
        in_flight: draining.then_some(report.traffic.in_flight),
        conditions,
    }
}

fn statements(report: &Report) -> Vec<Statement> {
    let provisioned = provisioned(report);
    let workload = workload(report);
    let orchestrator = orchestrator(report);
    let isolated = statement(
        "Isolated",
        ConditionStatus::Unknown,
        "NotProbed",
        "no probe has shown yet that the walls of this cell hold",
    );
    let first_open = [&provisioned, &workload, &orchestrator]
        .into_iter()
        .find(|statement| statement.status != ConditionStatus::True)
        .cloned();
    let ready = match (&report.leaving, first_open) {
        (Some(message), _) => statement("Ready", false, "Deleting", message.clone()),
        (None, Some(open)) => statement("Ready", false, open.reason, open.message),
        (None, None) => statement("Ready", true, "Ready", ready_message(report)),
    };
    let is_ready = ready.status == ConditionStatus::True;
    let mut statements = vec![
        ready,
        reconciling(report, is_ready),
        stalled(report),
        provisioned,
        isolated,
        workload,
        orchestrator,
        serving(report),
        drained(report),
    ];
    statements.extend(report.destinations.resolved());
    statements
}

fn ready_message(report: &Report) -> String {
    match report.traffic.effective_weight {
        _ if report.weight == 0 => "everything runs; drained, so it gets nothing".to_owned(),
        Some(weight) => format!("everything runs; routers give it {weight} % of its share"),
        None => "everything runs".to_owned(),
    }
}

fn provisioned(report: &Report) -> Statement {
    match &report.problem {
        None if report.external => {
            statement("Provisioned", true, "External", "runs outside this cluster; nothing is made for it")
        }
        Some(problem) => statement("Provisioned", false, problem.reason, problem.message.clone()),
        None => statement(
            "Provisioned",
            true,
            "Provisioned",
            format!(
                "namespace {} has its walls and {} objects",
                report.namespace.as_deref().unwrap_or_default(),
                report.objects
            ),
        ),
    }
}

fn workload(report: &Report) -> Statement {
    let health = &report.health;
    if report.external {
        return statement("WorkloadReady", true, "External", "runs outside this cluster");
    }
    if let Some((reason, message)) = &health.forbidden {
        return statement("WorkloadReady", false, *reason, message.clone());
    }
    if health.workloads == 0 {
        return statement("WorkloadReady", false, "NotCreated", "its workload is not created yet");
    }
    if health.incomplete.is_empty() {
        statement(
            "WorkloadReady",
            true,
            "Complete",
            format!("all {} workloads are complete", health.workloads),
        )
    } else {
        statement("WorkloadReady", false, "Progressing", health.incomplete.join("; "))
    }
}

fn reconciling(report: &Report, ready: bool) -> Statement {
    if let Some(message) = &report.leaving {
        return statement("Reconciling", true, "Deleting", message.clone());
    }
    let target = report.update_revision.as_deref().unwrap_or_default();
    let (reason, message) = match &report.step {
        Some(Step::Wait(why)) => ("WaitingForTurn", format!("waits to be brought to {target}: {why}")),
        Some(Step::TakeOut | Step::AwaitDrain) => {
            ("Draining", format!("is drained before it is brought to {target}"))
        }
        Some(Step::AwaitReady) => {
            ("AwaitingReady", format!("has {target} and is kept out until it is Ready"))
        }
        Some(Step::BringBack) => ("BringingBack", "is Ready and comes back".to_owned()),
        Some(Step::Update | Step::Keep) | None if !ready && (report.passing || report.problem.is_none()) => {
            ("Progressing", "is being brought to what its spec says".to_owned())
        }
        Some(Step::Keep | Step::Update) | None => {
            return statement("Reconciling", false, "UpToDate", "nothing is under way");
        }
    };
    statement("Reconciling", true, reason, message)
}

fn stalled(report: &Report) -> Statement {
    if let Some((reason, message)) = &report.health.forbidden {
        return statement("Stalled", true, *reason, message.clone());
    }
    match report.problem.as_ref().filter(|_| !report.passing).or(report.held.as_ref()) {
        Some(problem) => statement("Stalled", true, problem.reason, problem.message.clone()),
        None => statement("Stalled", false, "Moving", "nothing stands in the way"),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::CellSpec;

    use super::*;

    fn running() -> Report {
        Report {
            namespace: Some("cell-a".to_owned()),
            health: Health { workloads: 2, ..Health::default() },
            current_revision: Some("t-2".to_owned()),
            voices: Some(ready("t-2")),
            objects: 12,
            traffic: CellTraffic {
                known: true,
                routers: 2,
                sending: 2,
                effective_weight: Some(100),
                ..CellTraffic::default()
            },
            weight: 100,
            ..Report::default()
        }
    }

    /// Two pods that say ready with that revision.
    fn ready(revision: &str) -> Voices {
        Voices { pods: 2, answering: 2, ready: [(revision.to_owned(), 2)].into(), ..Voices::default() }
    }

    #[track_caller]
    fn check(report: &Report, expected: &[(&str, ConditionStatus, &str)]) {
        let status = compute(&Cell::new("a", CellSpec::default()), report, Timestamp::UNIX_EPOCH);
        for (r#type, wanted, reason) in expected {
            let condition = find(&status.conditions, r#type).expect("is stated");
            assert_eq!((condition.status, condition.reason.as_str()), (*wanted, *reason), "{condition:?}");
        }
    }

    use ConditionStatus::{False, True, Unknown};

    #[test]
    fn a_running_cell_is_ready_and_nothing_is_under_way() {
        check(
            &running(),
            &[
                ("Ready", True, "Ready"),
                ("Reconciling", False, "UpToDate"),
                ("Stalled", False, "Moving"),
                ("Isolated", Unknown, "NotProbed"),
                ("Serving", True, "InTraffic"),
                ("Drained", False, "NotAsked"),
            ],
        );
    }

    #[test]
    fn a_drained_cell_is_as_ready_as_any() {
        let traffic = CellTraffic { sending: 0, effective_weight: Some(0), ..running().traffic };
        let drained = Report { weight: 0, drained: true, traffic, ..running() };
        check(
            &drained,
            &[("Ready", True, "Ready"), ("Drained", True, "Drained"), ("Serving", False, "Drained")],
        );
    }

    #[test]
    fn a_destination_that_does_not_exist_leaves_the_cell_ready() {
        let destinations = Destinations { count: 2, missing: vec!["mastercard".to_owned()] };
        let missing = Report { destinations, ..running() };
        check(&missing, &[("Ready", True, "Ready"), ("DestinationsResolved", False, "DestinationNotFound")]);
    }

    #[test]
    fn a_problem_that_only_people_can_cure_stalls() {
        let stuck = Report { problem: Some(Problem::new("NamespaceNotOwned", "text")), ..running() };
        check(
            &stuck,
            &[
                ("Ready", False, "NamespaceNotOwned"),
                ("Provisioned", False, "NamespaceNotOwned"),
                ("Stalled", True, "NamespaceNotOwned"),
                ("Reconciling", False, "UpToDate"),
            ],
        );
        let passing = Report { passing: true, ..stuck };
        check(&passing, &[("Stalled", False, "Moving"), ("Reconciling", True, "Progressing")]);
    }

    #[test]
    fn a_cell_that_runs_well_with_its_own_revision_is_ready_though_it_cannot_go_on() {
        let held = Report { held: Some(Problem::new("TemplateNotFound", "text")), ..running() };
        check(&held, &[("Ready", True, "Ready"), ("Stalled", True, "TemplateNotFound")]);
    }

    #[test]
    fn what_pods_of_an_older_revision_said_makes_no_cell_ready() {
        let updated = Report { voices: Some(ready("t-1")), ..running() };
        check(&updated, &[("Ready", False, "NotReady"), ("OrchestratorReady", False, "NotReady")]);
    }

    #[test]
    fn what_a_quota_forbids_is_a_stall_with_that_reason() {
        let mut report = running();
        report.health.forbidden = Some(("QuotaForbidden", "pods …".to_owned()));
        check(
            &report,
            &[
                ("Stalled", True, "QuotaForbidden"),
                ("WorkloadReady", False, "QuotaForbidden"),
                ("Ready", False, "QuotaForbidden"),
            ],
        );
    }

    #[test]
    fn in_flight_shows_only_while_it_drains() {
        let cell = Cell::new("a", CellSpec::default());
        let mut report = running();
        report.traffic.in_flight = 7;
        assert_eq!(compute(&cell, &report, Timestamp::UNIX_EPOCH).in_flight, None);
        report.weight = 0;
        assert_eq!(compute(&cell, &report, Timestamp::UNIX_EPOCH).in_flight, Some(7));
        report.drained = true;
        assert_eq!(compute(&cell, &report, Timestamp::UNIX_EPOCH).in_flight, None);
    }
}
