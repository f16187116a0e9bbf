//! The life of one request, told in order: is it meant for this cell, is there room, who serves it, by when. Nothing
//! goes to the router before the answer's head is certain.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{Continue, Reason, egress, fields as names, grpc};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version, header};
use hyper::body::Incoming;

use crate::body::Body;
use crate::cell::{Cell, Place};
use crate::fields::{self, CELL, OUTCOME};
use crate::refusal::Refusal;
use crate::{entry, workflow};

/// Serves one request; every end of it is an answer.
pub(crate) async fn serve(cell: Arc<Cell>, request: Request<Incoming>) -> Response<Body> {
    let begun = cell.clock.micros();
    let transaction = request.headers().get(names::TRANSACTION).cloned();
    let is_call = request.version() == Version::HTTP_2
        && grpc::is_grpc(request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes));
    let mut request = request.map(Body::stream);
    as_in_http1(&mut request);
    let served = attempt(&cell, request).await;
    let outcome = served.as_ref().map_or_else(|refusal| refusal.reason.as_str(), outcome);
    cell.metrics.request(outcome, cell.clock.micros().saturating_sub(begun));
    served.unwrap_or_else(|refusal| {
        tracing::debug!(
            reason = refusal.reason.as_str(),
            detail = refusal.detail,
            "a request was not served"
        );
        match is_call {
            true => refusal.answer_call(transaction.as_ref()),
            false => refusal.answer(transaction.as_ref()),
        }
    })
}

/// What comes in HTTP/2 says in its target who is asked, and HTTP/1.1 in a field, as everybody here reads it.
fn as_in_http1(request: &mut Request<Body>) {
    let Some(authority) = request.uri().authority() else { return };
    let host = HeaderValue::from_str(authority.as_str());
    let path = request.uri().path_and_query().cloned();
    if let Ok(host) = host {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
}

/// What became of a request that was answered.
fn outcome(response: &Response<Body>) -> &'static str {
    match response.headers().get(OUTCOME) {
        Some(word) if word == names::OUTCOME_EGRESS => "Egress",
        // By an entry that speaks for itself.
        Some(_) => Reason::CellRestart.as_str(),
        None => "Served",
    }
}

async fn attempt(cell: &Arc<Cell>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    meant_for_us(&cell.config.cell, request.headers())?;
    let back = coming_back(request.headers())?;
    let deadline = match back {
        None => fields::deadline(request.headers()).map_err(|text| {
            Refusal::new(
                Reason::Malformed,
                format!("bulkhead-deadline is {text:?}, not a number of milliseconds"),
            )
        })?,
        // It is finished, late or not: steps have their own time-outs, and the router hangs up when it must.
        Some(_) => None,
    };
    let place = match &back {
        None => begin(cell)?,
        Some(back) => resume(cell, back)?,
    };
    let served = async {
        match &cell.config.entry {
            Some(entry) => entry::pass(cell, entry, request).await,
            None => workflow::run(cell, request, back).await,
        }
    };
    let late = |millis| {
        let detail = format!("No answer within the {millis} ms that the router gives this attempt.");
        Refusal::new(Reason::Timeout, detail)
    };
    let response = match deadline {
        None => served.await?,
        // A timer looks after the work has begun.
        Some(0) => return Err(late(0)),
        Some(millis) => {
            let within = tokio::time::timeout(Duration::from_millis(millis), served);
            within.await.map_err(|_| late(millis))??
        }
    };
    Ok(response.map(|body| body.holding(place)))
}

fn meant_for_us(ours: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(CELL) {
        Some(meant) if meant.as_bytes() != ours.as_bytes() => Err(Refusal::new(
            Reason::WrongCell,
            format!(
                "The request is meant for cell {}, this is {ours}.",
                String::from_utf8_lossy(meant.as_bytes())
            ),
        )),
        _ => Ok(()),
    }
}

/// What a request says of the egress that it comes back from; `None` for one that begins a transaction. One that comes back
/// and cannot be read is not the client's fault, and something may have happened: it is refused untouched, so that another
/// pod is asked.
fn coming_back(headers: &HeaderMap) -> Result<Option<Continue>, Refusal> {
    let mut outcomes = headers.get_all(names::OUTCOME).iter();
    let comes_back = outcomes.any(|word| word == names::OUTCOME_CONTINUE);
    let reason = if comes_back { Reason::WrongCell } else { Reason::Malformed };
    let malformed = |what: String| Refusal::new(reason, format!("{what}."));
    match egress::one(headers, names::OUTCOME).map_err(|wrong| malformed(wrong.to_string()))? {
        None => Ok(None),
        Some(names::OUTCOME_CONTINUE) => {
            Continue::read(headers).map(Some).map_err(|wrong| malformed(wrong.to_string()))
        }
        Some(other) => Err(malformed(format!("{OUTCOME} is {other:?}; a request continues or says nothing"))),
    }
}

/// Lets a new transaction in, where it could be served as things are.
fn begin(cell: &Arc<Cell>) -> Result<Place, Refusal> {
    if let Some(lacking) = cell.lacking(0) {
        return Err(Refusal::new(Reason::ServiceNotReady, lacking));
    }
    cell.begin().ok_or_else(|| {
        Refusal::new(Reason::Capacity, format!("Cell {} is at its capacity.", cell.config.cell))
    })
}

/// Lets one in that has to be finished, where somebody here can read its context. What is refused with
/// [`Reason::WrongCell`] was not touched, and may be asked of another pod.
fn resume(cell: &Arc<Cell>, back: &Continue) -> Result<Place, Refusal> {
    let version = back.context.as_ref().map(|context| context.version.as_str());
    // Without a context there is nothing to read, and an entry may know by the id alone.
    let known = match version {
        Some(version) => cell.context_versions().any(|known| known == version),
        None => cell.speaks(),
    };
    if known {
        return Ok(cell.resume());
    }
    let version = version.unwrap_or("none");
    let known: Vec<_> = cell.context_versions().collect();
    let detail = format!("The context's version is {version}; this pod goes on from {known:?}.");
    Err(Refusal::new(Reason::WrongCell, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_another_cell_is_refused_and_one_for_nobody_is_taken() {
        let check = |meant: Option<&'static str>, ok: bool| {
            let mut headers = HeaderMap::new();
            if let Some(meant) = meant {
                headers.insert(CELL, HeaderValue::from_static(meant));
            }
            assert_eq!(meant_for_us("a", &headers).is_ok(), ok, "{meant:?}");
        };
        check(None, true);
        check(Some("a"), true);
        check(Some("b"), false);
        check(Some("A"), false);
    }

    #[test]
    fn a_request_begins_or_comes_back_and_what_cannot_be_read_is_refused_untouched() {
        let check = |fields: &[(&'static str, &'static str)], expected: Result<Option<u32>, Reason>| {
            let headers = fields
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
            let back = coming_back(&headers.collect());
            let told = back.map(|back| back.map(|back| back.number)).map_err(|refusal| refusal.reason);
            assert_eq!(told, expected, "{fields:?}");
        };
        let answered = [("bulkhead-egress", "2"), ("bulkhead-egress-status", "answered")];
        check(&[], Ok(None));
        check(&answered, Ok(None));
        check(&[("bulkhead-outcome", "continue"), answered[0], answered[1]], Ok(Some(2)));
        check(&[("bulkhead-outcome", "continue"), answered[0]], Err(Reason::WrongCell));
        check(&[("bulkhead-outcome", "restart")], Err(Reason::Malformed));
        check(&[("bulkhead-outcome", "continue"), ("bulkhead-outcome", "continue")], Err(Reason::WrongCell));
    }
}
