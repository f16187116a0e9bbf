//! What follows a failed attempt: another pod of the same cell, another cell, or an answer. Pure.

use bulkhead_crds::policy::RestartPolicy;
use bulkhead_protocol::Reason;
use http::{HeaderValue, Method, StatusCode};

/// Why an attempt brought no answer, as far as restarting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Provably not processed: no connection could be made, or the pod said that it is of another cell.
    NotProcessed(Reason),
    /// The cell gave the transaction back. Only a reason of status 503 promises that nothing happened there.
    GivenBack(Reason),
    /// It may have been processed: the connection broke, time ran out, or the answer made no sense.
    Unknown(Reason),
}

impl Failure {
    /// What an orchestrator means that gives a transaction back. A word that this router does not know yet is judged by
    /// its status: 503 promises that nothing happened, whatever the reason.
    pub(crate) fn given_back(status: StatusCode, word: Option<&HeaderValue>) -> Self {
        let Some(word) = word else { return Self::GivenBack(Reason::CellRestart) };
        let known = word.to_str().ok().and_then(|word| word.parse().ok());
        let untouched = status == StatusCode::SERVICE_UNAVAILABLE;
        let unknown = if untouched { Reason::CellRestart } else { Reason::ServiceFailed };
        Self::GivenBack(known.unwrap_or(unknown))
    }

    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::NotProcessed(reason) | Self::GivenBack(reason) | Self::Unknown(reason) => reason,
        }
    }

    pub(crate) fn may_have_effects(self) -> bool {
        match self {
            Self::NotProcessed(_) => false,
            Self::GivenBack(reason) => reason.status() != StatusCode::SERVICE_UNAVAILABLE,
            Self::Unknown(_) => true,
        }
    }
}

/// What is known when an attempt has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    pub(crate) failure: Failure,
    pub(crate) policy: RestartPolicy,
    pub(crate) idempotent: bool,
    /// Whether the body is held whole, so that it can be sent again.
    pub(crate) repeatable: bool,
    /// Attempts counted so far, the failed one among them.
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    /// Milliseconds until the deadline.
    pub(crate) left_ms: u64,
    /// Pods of the same cell that this transaction has not tried.
    pub(crate) other_pods: bool,
    /// Whether the rule's restart budget has a token.
    pub(crate) budget: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another pod of the same cell, which counts as the same attempt.
    AnotherPod,
    /// Another cell, for a token of the budget.
    AnotherCell,
    Answer,
}

/// Methods that may be sent twice without a second effect (RFC 9110, section 9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

pub(crate) fn decide(now: &Situation) -> Next {
    let safe = now.idempotent || !now.failure.may_have_effects();
    if !safe || !now.repeatable || now.left_ms == 0 || now.policy == RestartPolicy::Never {
        return Next::Answer;
    }
    if matches!(now.failure, Failure::NotProcessed(_)) && now.other_pods {
        return Next::AnotherPod;
    }
    // What was not processed loaded nobody, so it cannot multiply anything and costs no token.
    let afforded = now.budget || matches!(now.failure, Failure::NotProcessed(_));
    if now.attempts < now.max_attempts && afforded { Next::AnotherCell } else { Next::Answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST_RESET: Situation = Situation {
        failure: Failure::Unknown(Reason::UpstreamReset),
        policy: RestartPolicy::SafeOnly,
        idempotent: false,
        repeatable: true,
        attempts: 1,
        max_attempts: 3,
        left_ms: 1_000,
        other_pods: false,
        budget: true,
    };
    const REFUSED: Situation =
        Situation { failure: Failure::NotProcessed(Reason::ConnectFailed), ..POST_RESET };

    #[track_caller]
    fn check(situation: Situation, expected: Next) {
        assert_eq!(decide(&situation), expected, "{situation:?}");
    }

    #[test]
    fn what_may_have_been_processed_is_tried_again_only_if_idempotent() {
        check(POST_RESET, Next::Answer);
        check(Situation { idempotent: true, ..POST_RESET }, Next::AnotherCell);
        check(
            Situation { idempotent: true, failure: Failure::Unknown(Reason::Timeout), ..POST_RESET },
            Next::AnotherCell,
        );
    }

    #[test]
    fn what_was_not_processed_goes_to_another_pod_and_then_to_another_cell() {
        check(Situation { other_pods: true, ..REFUSED }, Next::AnotherPod);
        check(REFUSED, Next::AnotherCell);
        // Uncounted: neither attempts nor budget stand in the way of a pod of the same cell.
        check(Situation { other_pods: true, attempts: 3, budget: false, ..REFUSED }, Next::AnotherPod);
    }

    #[test]
    fn what_the_cell_gave_back_untouched_goes_to_another_cell_whatever_the_method() {
        let given =
            |reason| Situation { failure: Failure::GivenBack(reason), other_pods: true, ..POST_RESET };
        check(given(Reason::Draining), Next::AnotherCell);
        check(given(Reason::ServiceFailed), Next::Answer);
        check(Situation { idempotent: true, ..given(Reason::ServiceFailed) }, Next::AnotherCell);
    }

    #[test]
    fn a_word_that_is_not_known_yet_promises_what_its_status_does() {
        let check = |status, word: Option<&'static str>, expected| {
            let word = word.map(HeaderValue::from_static);
            let failure = Failure::given_back(status, word.as_ref());
            assert_eq!(failure, Failure::GivenBack(expected), "{status} {word:?}");
        };
        check(StatusCode::SERVICE_UNAVAILABLE, Some("Draining"), Reason::Draining);
        check(StatusCode::BAD_GATEWAY, Some("ServiceFailed"), Reason::ServiceFailed);
        check(StatusCode::SERVICE_UNAVAILABLE, Some("Crowded"), Reason::CellRestart);
        check(StatusCode::INTERNAL_SERVER_ERROR, Some("Overheated"), Reason::ServiceFailed);
        check(StatusCode::OK, None, Reason::CellRestart);
    }

    #[test]
    fn attempts_time_budget_body_and_policy_each_end_it() {
        check(Situation { attempts: 3, ..REFUSED }, Next::Answer);
        check(Situation { left_ms: 0, ..REFUSED }, Next::Answer);
        check(Situation { idempotent: true, budget: false, ..POST_RESET }, Next::Answer);
        check(Situation { budget: false, ..REFUSED }, Next::AnotherCell);
        check(Situation { repeatable: false, ..REFUSED }, Next::Answer);
        check(Situation { policy: RestartPolicy::Never, other_pods: true, ..REFUSED }, Next::Answer);
    }
}
