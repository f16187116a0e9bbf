//! What follows a failed attempt: another pod of the same cell, another cell, or an answer.

pub use bulkhead_crds::policy::RestartPolicy;
use bulkhead_protocol::Reason;
use http::{Method, StatusCode};

/// Why an attempt brought no answer, as far as restarting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
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
    pub fn given_back(status: StatusCode, word: Option<&[u8]>) -> Self {
        let Some(word) = word else { return Self::GivenBack(Reason::CellRestart) };
        let known = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        let untouched = status == StatusCode::SERVICE_UNAVAILABLE;
        let unknown = if untouched { Reason::CellRestart } else { Reason::ServiceFailed };
        Self::GivenBack(known.unwrap_or(unknown))
    }

    pub fn reason(self) -> Reason {
        match self {
            Self::NotProcessed(reason) | Self::GivenBack(reason) | Self::Unknown(reason) => reason,
        }
    }

    /// Whether somebody may have worked on it. Only then does another attempt cost a token of the budget: what loaded nobody
    /// cannot multiply anything.
    pub fn may_have_effects(self) -> bool {
        match self {
            Self::NotProcessed(_) => false,
            Self::GivenBack(reason) => reason.status() != StatusCode::SERVICE_UNAVAILABLE,
            Self::Unknown(_) => true,
        }
    }
}

/// Whether a transaction may still start over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing outside the cells can have happened: from the original bytes, anywhere.
    #[default]
    Restartable,
    /// A message may have reached a destination with effects, which is the point of no return: from the last context,
    /// anywhere, and never from the beginning.
    Committed,
}

/// What is known when an attempt has failed.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    pub failure: Failure,
    pub stage: Stage,
    /// Only the cell that owns the key may serve it.
    pub owner: bool,
    pub policy: RestartPolicy,
    pub idempotent: bool,
    /// Whether the body is held whole, so that it can be sent again.
    pub repeatable: bool,
    /// Attempts counted so far, the failed one among them.
    pub attempts: u32,
    pub max_attempts: u32,
    /// Milliseconds until the deadline.
    pub left_ms: u64,
    /// Pods of the same cell that this transaction has not tried.
    pub other_pods: bool,
    /// Whether the rule's restart budget has a token.
    pub budget: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another pod of the same cell, which counts as the same attempt.
    AnotherPod,
    /// Another cell, for a token of the budget.
    AnotherCell,
    Answer,
}

/// Methods that may be sent twice without a second effect (RFC 9110, section 9.2.2).
pub fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

pub fn decide(now: &Situation) -> Next {
    match now.stage {
        Stage::Restartable => start_over(now),
        Stage::Committed => finish(now),
    }
}

fn start_over(now: &Situation) -> Next {
    let allowed = match now.policy {
        RestartPolicy::UntilPointOfNoReturn => true,
        RestartPolicy::SafeOnly => now.idempotent || !now.failure.may_have_effects(),
        RestartPolicy::Never => false,
    };
    if !allowed || !now.repeatable || now.left_ms == 0 {
        return Next::Answer;
    }
    if matches!(now.failure, Failure::NotProcessed(_)) && now.other_pods {
        return Next::AnotherPod;
    }
    let afforded = now.budget || !now.failure.may_have_effects();
    if now.attempts < now.max_attempts && afforded { Next::AnotherCell } else { Next::Answer }
}

/// Whoever can read the context may finish it: neither the deadline nor the number of attempts nor the budget stands in
/// the way, since nobody else will. It ends because no pod and no cell is asked twice.
fn finish(now: &Situation) -> Next {
    match (now.other_pods, now.owner) {
        (true, _) => Next::AnotherPod,
        (false, false) => Next::AnotherCell,
        (false, true) => Next::Answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST_RESET: Situation = Situation {
        failure: Failure::Unknown(Reason::UpstreamReset),
        stage: Stage::Restartable,
        owner: false,
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
        // Nobody worked on it.
        check(Situation { budget: false, ..given(Reason::ServiceNotReady) }, Next::AnotherCell);
        check(Situation { idempotent: true, budget: false, ..given(Reason::ServiceFailed) }, Next::Answer);
    }

    #[test]
    fn a_word_that_is_not_known_yet_promises_what_its_status_does() {
        let check = |status, word: Option<&'static str>, expected| {
            let failure = Failure::given_back(status, word.map(str::as_bytes));
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

    #[test]
    fn until_the_point_of_no_return_whatever_failed_starts_over_elsewhere() {
        let until = Situation { policy: RestartPolicy::UntilPointOfNoReturn, ..POST_RESET };
        for reason in [Reason::UpstreamReset, Reason::Timeout, Reason::UpstreamProtocol, Reason::CellDisabled]
        {
            check(Situation { failure: Failure::Unknown(reason), ..until }, Next::AnotherCell);
        }
        check(Situation { failure: Failure::GivenBack(Reason::ServiceFailed), ..until }, Next::AnotherCell);
        // One cell is not asked twice, also by another of its pods, where it may have begun.
        check(Situation { other_pods: true, ..until }, Next::AnotherCell);
        check(Situation { budget: false, ..until }, Next::Answer);
        check(Situation { attempts: 3, ..until }, Next::Answer);
        check(Situation { left_ms: 0, ..until }, Next::Answer);
    }

    #[test]
    fn past_the_point_of_no_return_it_is_finished_wherever_its_context_is_read() {
        let late =
            Situation { stage: Stage::Committed, left_ms: 0, attempts: 9, budget: false, ..POST_RESET };
        check(Situation { other_pods: true, ..late }, Next::AnotherPod);
        check(late, Next::AnotherCell);
        check(Situation { policy: RestartPolicy::Never, ..late }, Next::AnotherCell);
        check(Situation { owner: true, ..late }, Next::Answer);
        check(Situation { owner: true, other_pods: true, ..late }, Next::AnotherPod);
    }
}
