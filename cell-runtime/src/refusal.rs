//! Answers that the cell-runtime makes itself: problem documents, with the outcome beside them that lets a router
//! start the transaction elsewhere.

use bulkhead_protocol::{Problem, Reason, fields, grpc};
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::Body;
use crate::call::CallError;
use crate::fields::{OUTCOME, REASON};

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
    /// Whether the transaction is given back: another cell might do better.
    restarts: bool,
}

impl Refusal {
    /// Gives the transaction back, unless the reason is one that no other cell could mend: the request is itself at fault,
    /// or goes to the wrong place, or nobody can tell what became of it.
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        let restarts = !matches!(
            reason,
            Reason::WrongCell
                | Reason::Malformed
                | Reason::BodyTooLarge
                | Reason::DestinationForbidden
                | Reason::OutcomeUnknown
        );
        Self { reason, detail: detail.into(), restarts }
    }

    /// Ends the transaction, whatever the reason.
    pub(crate) fn ending(reason: Reason, detail: impl Into<String>) -> Self {
        Self { restarts: false, ..Self::new(reason, detail) }
    }

    /// As [`Self::answer`], to a call of gRPC. What a router takes for its own stays as it reads it.
    pub(crate) fn answer_call(&self, transaction: Option<&HeaderValue>) -> Response<Body> {
        if self.restarts || self.reason == Reason::WrongCell {
            return self.answer(transaction);
        }
        let mut response = Response::new(Body::whole(""));
        for (name, value) in grpc::refusal(self.reason, &self.detail) {
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    pub(crate) fn answer(&self, transaction: Option<&HeaderValue>) -> Response<Body> {
        let mut problem = Problem::new(self.reason, &self.detail);
        problem.transaction = transaction.and_then(|id| id.to_str().ok()).map(str::to_owned);
        // A problem is strings and a number, which always have a JSON form.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Body::whole(body));
        *response.status_mut() =
            StatusCode::from_u16(self.reason.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(fields::PROBLEM_JSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REASON, HeaderValue::from_static(self.reason.as_str()));
        if self.restarts {
            headers.insert(OUTCOME, HeaderValue::from_static(fields::OUTCOME_RESTART));
        }
        response
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let mut detail = error.to_string();
        let mut source = std::error::Error::source(&error).and_then(std::error::Error::source);
        while let Some(cause) = source {
            detail = format!("{detail}: {cause}");
            source = cause.source();
        }
        Self::new(error.reason(), detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reason: Reason, status: u16, restarts: bool) {
        let response = Refusal::new(reason, "why").answer(None);
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()[REASON], reason.as_str());
        assert_eq!(response.headers().contains_key(OUTCOME), restarts, "{reason}");
    }

    #[test]
    fn what_another_cell_could_serve_is_given_back() {
        check(Reason::Capacity, 503, true);
        check(Reason::ServiceNotReady, 503, true);
        check(Reason::ServiceFailed, 502, true);
        check(Reason::Timeout, 504, true);
    }

    #[test]
    fn what_is_the_requests_own_fault_is_not() {
        check(Reason::WrongCell, 421, false);
        check(Reason::Malformed, 400, false);
        check(Reason::BodyTooLarge, 413, false);
        check(Reason::DestinationForbidden, 403, false);
    }

    #[test]
    fn what_may_have_had_an_effect_is_neither_given_back_nor_kept() {
        check(Reason::OutcomeUnknown, 500, false);
        let response = Refusal::new(Reason::OutcomeUnknown, "why").answer(None);
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    }

    #[test]
    fn an_end_is_not_given_back_whatever_its_reason() {
        let response = Refusal::ending(Reason::DestinationUnavailable, "why").answer(None);
        assert_eq!((response.status().as_u16(), response.headers().get(OUTCOME)), (503, None));
    }
}
