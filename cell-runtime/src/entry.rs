//! Hands whole transactions to the entry service, and its answers back. A service that speaks `bulkhead` may give one back
//! or send it to a destination by the fields of its answer; of any other, such fields mean nothing.

use std::sync::Arc;

use bulkhead_crds::template::{Entry, EntryProtocol};
use bulkhead_protocol::egress::{self, MAX_BODY};
use bulkhead_protocol::{Egress, Reason, fields as names, hop};
use http::{HeaderValue, Request, Response, StatusCode, Version, header};

use crate::body::Body;
use crate::call::call;
use crate::cell::Cell;
use crate::fields::{OUTCOME, REASON};
use crate::refusal::Refusal;
use crate::service::Service;

/// Streams the request and, unless it is an egress, its answer.
pub(crate) async fn pass(
    cell: &Arc<Cell>,
    entry: &Entry,
    mut request: Request<Body>,
) -> Result<Response<Body>, Refusal> {
    // Checked when the configuration was read.
    let Some(service) = cell.services.get(&entry.service) else {
        return Err(Refusal::new(Reason::Internal, format!("No service {}.", entry.service)));
    };
    hop::end_hop(request.headers_mut());
    // The server at our edge answers 100-continue itself, as the body is read.
    request.headers_mut().remove(header::EXPECT);
    *request.version_mut() = Version::HTTP_11;
    let mut response = call(cell, service, request).await?;
    *response.version_mut() = Version::HTTP_11;
    hop::end_hop(response.headers_mut());
    let outcome = match entry.protocol {
        EntryProtocol::Http1 => Ok(None),
        EntryProtocol::Bulkhead => egress::one(response.headers(), names::OUTCOME),
    };
    match outcome.map_err(|wrong| failed(service, &wrong.to_string()))? {
        None => {
            hop::drop_ours(response.headers_mut());
            Ok(response)
        }
        Some(names::OUTCOME_RESTART) => Ok(given_back(response)),
        Some(names::OUTCOME_EGRESS) => leave(service, response).await,
        Some(other) => Err(failed(service, &format!("{OUTCOME} is {other:?}, neither restart nor egress"))),
    }
}

/// Leaves of our fields those that give a transaction back.
fn given_back(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    let reason = headers.get(REASON).cloned();
    hop::drop_ours(headers);
    headers.insert(OUTCOME, HeaderValue::from_static(names::OUTCOME_RESTART));
    if let Some(reason) = reason {
        headers.insert(REASON, reason);
    }
    response
}

/// An egress, whole and as it must be, so that to a router none that a cell-runtime passed on is malformed.
async fn leave(service: &Service, response: Response<Body>) -> Result<Response<Body>, Refusal> {
    let (mut head, body) = response.into_parts();
    let egress = Egress::read(&head.headers).map_err(|wrong| failed(service, &wrong.to_string()))?;
    if head.status != StatusCode::OK {
        return Err(failed(service, &format!("an egress has status 200, not {}", head.status.as_u16())));
    }
    let body = body
        .read(MAX_BODY)
        .await
        .map_err(|broken| failed(service, &format!("the body of an egress {broken}")))?;
    egress::split(body.clone(), egress.context.as_ref())
        .map_err(|wrong| failed(service, &wrong.to_string()))?;
    hop::drop_ours(&mut head.headers);
    egress.write(&mut head.headers);
    Ok(Response::from_parts(head, Body::whole(body)))
}

fn failed(service: &Service, what: &str) -> Refusal {
    Refusal::new(Reason::ServiceFailed, format!("The answer of service {}: {what}.", service.spec.name))
}
