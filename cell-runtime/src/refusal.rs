//! Answers that the cell-runtime makes itself: problem documents, with the outcome beside them that lets a router
//! start the transaction elsewhere.

use bulkhead_protocol::{Problem, Reason, fields};
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::Body;
use crate::call::CallError;
use crate::fields::{OUTCOME, REASON};

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    /// Whether another cell might do better: not with a request that is itself at fault.
    fn restarts(&self) -> bool {
        !matches!(self.reason, Reason::WrongCell | Reason::Malformed | Reason::BodyTooLarge)
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
        if self.restarts() {
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
    }
}
