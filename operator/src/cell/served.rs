//! What the status of a Cell says of those who front it and those who send to it: `OrchestratorReady`, `Serving` and `Drained`.
//! Pure.

use bulkhead_crds::ConditionStatus;

use super::statements::Report;
use crate::conditions::{Statement, statement};

pub(super) fn orchestrator(report: &Report) -> Statement {
    if report.external {
        return match &report.traffic.out_reason {
            _ if report.traffic.sending > 0 => {
                statement("OrchestratorReady", true, "Ready", "routers send it transactions")
            }
            Some(reason) if reason == "Ready" => {
                statement("OrchestratorReady", true, "Ready", "routers hear that it is ready")
            }
            Some(reason) => statement(
                "OrchestratorReady",
                false,
                reason.clone(),
                format!("the routers cannot send to it: {reason}"),
            ),
            None => {
                statement("OrchestratorReady", ConditionStatus::Unknown, "NoRouter", "no router hears of it")
            }
        };
    }
    let revision = report.current_revision.as_deref().unwrap_or_default();
    match &report.voices {
        None => statement("OrchestratorReady", false, "NoEndpoints", "no orchestrator has an address yet"),
        Some(voices) if voices.ready_with(revision) > 0 => {
            let count = format!("{} of {} orchestrators say ready", voices.ready_with(revision), voices.pods);
            statement("OrchestratorReady", true, "Ready", count)
        }
        // The operator may have no way to the orchestrators where routers have one.
        Some(voices) if voices.answering == 0 && report.traffic.healthy > 0 => {
            let count =
                format!("{} of {} routers hear ready", report.traffic.healthy, report.traffic.routers);
            statement("OrchestratorReady", true, "Ready", count)
        }
        Some(voices) => {
            let reason = if voices.reason.is_empty() { "NotReady" } else { &voices.reason };
            let message = if voices.message.is_empty() {
                "no orchestrator of its revision says ready"
            } else {
                &voices.message
            };
            statement("OrchestratorReady", false, reason, message)
        }
    }
}

pub(super) fn serving(report: &Report) -> Statement {
    let traffic = &report.traffic;
    if !traffic.known || traffic.routers == 0 {
        return statement(
            "Serving",
            ConditionStatus::Unknown,
            "NoRouter",
            "no router answers, so nobody is known to send to it",
        );
    }
    if traffic.sending > 0 {
        let message = format!("{} of {} routers send it transactions", traffic.sending, traffic.routers);
        return statement(
            "Serving",
            true,
            if traffic.sending == traffic.routers { "InTraffic" } else { "PartlyInTraffic" },
            message,
        );
    }
    let reason = match &traffic.out_reason {
        _ if report.drained && (report.weight == 0 || report.shifted) => "Drained".to_owned(),
        Some(reason) if reason != "Ready" => reason.clone(),
        Some(_) => "Drained".to_owned(),
        None => "NotInTable".to_owned(),
    };
    statement("Serving", false, reason, format!("none of {} routers sends it transactions", traffic.routers))
}

pub(super) fn drained(report: &Report) -> Statement {
    let traffic = &report.traffic;
    if !traffic.known {
        return statement(
            "Drained",
            ConditionStatus::Unknown,
            "RoutersNotAsked",
            "the routers were not asked yet",
        );
    }
    let asked = report.weight == 0 || report.shifted || report.leaving.is_some();
    if report.drained && asked {
        return statement(
            "Drained",
            true,
            "Drained",
            "no router sends it anything, and nothing is under way",
        );
    }
    if asked {
        let message = format!("{} under way; waiting for {}", traffic.in_flight, traffic.holding.join(", "));
        return statement("Drained", false, "Draining", message);
    }
    statement("Drained", false, "NotAsked", "nobody drains it")
}
