//! The life of one request, told in order: is it meant for this cell, is there room, who serves it, by when. Nothing
//! goes to the router before the answer's head is certain.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{Reason, fields as names};
use http::{HeaderMap, Request, Response, Version, header};
use hyper::body::Incoming;

use crate::body::Body;
use crate::call::call;
use crate::cell::Cell;
use crate::fields::{self, CELL};
use crate::refusal::Refusal;
use crate::service::Service;
use crate::steps;

/// Serves one request; every end of it is an answer.
pub(crate) async fn serve(cell: Arc<Cell>, request: Request<Incoming>) -> Response<Body> {
    let begun = cell.clock.micros();
    let transaction = request.headers().get(names::TRANSACTION).cloned();
    let served = attempt(&cell, request.map(Body::stream)).await;
    let outcome = served.as_ref().map_or_else(|refusal| refusal.reason.as_str(), |_| "Served");
    cell.metrics.request(outcome, cell.clock.micros().saturating_sub(begun));
    served.unwrap_or_else(|refusal| {
        tracing::debug!(
            reason = refusal.reason.as_str(),
            detail = refusal.detail,
            "a request was not served"
        );
        refusal.answer(transaction.as_ref())
    })
}

async fn attempt(cell: &Arc<Cell>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    meant_for_us(&cell.config.cell, request.headers())?;
    let deadline = fields::deadline(request.headers()).map_err(|text| {
        Refusal::new(
            Reason::Malformed,
            format!("bulkhead-deadline is {text:?}, not a number of milliseconds"),
        )
    })?;
    let place = cell.begin().ok_or_else(|| {
        Refusal::new(Reason::Capacity, format!("Cell {} is at its capacity.", cell.config.cell))
    })?;
    let served = async {
        match entry(cell) {
            Some(service) => pass(cell, service, request).await,
            None => steps::run(cell, request).await,
        }
    };
    let response = match deadline {
        None => served.await?,
        Some(millis) => {
            tokio::time::timeout(Duration::from_millis(millis), served).await.map_err(|_| {
                Refusal::new(
                    Reason::Timeout,
                    format!("No answer within the {millis} ms that the caller waits."),
                )
            })??
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

fn entry(cell: &Cell) -> Option<&Service> {
    let entry = cell.config.entry.as_ref()?;
    cell.services.get(&entry.service).map(|service| &**service)
}

/// Hands the request to the entry service and its answer back, both streamed.
async fn pass(
    cell: &Arc<Cell>,
    service: &Service,
    mut request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    fields::end_hop(request.headers_mut());
    // The server at our edge answers 100-continue itself, as the body is read.
    request.headers_mut().remove(header::EXPECT);
    *request.version_mut() = Version::HTTP_11;
    let mut response = call(cell, service, request).await?;
    *response.version_mut() = Version::HTTP_11;
    fields::end_hop(response.headers_mut());
    fields::drop_ours(response.headers_mut());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
}
