//! Hands whole transactions to the entry service, and its answers back. A service that speaks `bulkhead` may give one back
//! or send it to a destination by the fields of its answer; of any other, such fields mean nothing.

use std::mem;
use std::sync::Arc;

use bulkhead_crds::template::{Entry, EntryProtocol};
use bulkhead_protocol::egress::{self, MAX_BODY};
use bulkhead_protocol::{Egress, Reason, fields as names, hop};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header};

use crate::body::Body;
use crate::call::{call, send};
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
    let mut response = match entry.protocol {
        EntryProtocol::Http1 | EntryProtocol::Bulkhead => call(cell, service, request).await?,
        EntryProtocol::H2c => {
            in_http2(service, &mut request)?;
            send(cell, service, EntryProtocol::H2c, request).await?
        }
    };
    *response.version_mut() = Version::HTTP_11;
    hop::end_hop(response.headers_mut());
    let outcome = match entry.protocol {
        EntryProtocol::Http1 | EntryProtocol::H2c => Ok(None),
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

/// Says who is asked in the target, where HTTP/2 has it (RFC 9113, section 8.3.1).
fn in_http2(service: &Service, request: &mut Request<Body>) -> Result<(), Refusal> {
    let host = request.headers_mut().remove(header::HOST);
    let host = host.as_ref().map(HeaderValue::as_bytes).filter(|host| !host.is_empty());
    let mut target = mem::take(request.uri_mut()).into_parts();
    target.scheme = Some(Scheme::HTTP);
    target.authority = Authority::try_from(host.unwrap_or(service.spec.name.as_bytes())).ok();
    *request.uri_mut() = Uri::from_parts(target)
        .map_err(|wrong| Refusal::new(Reason::Malformed, format!("No target for HTTP/2: {wrong}.")))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
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
