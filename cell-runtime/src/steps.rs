//! Runs the steps of a cell's workflow in turn: the body of each answer is the body of the next call. Whole bodies
//! only, since a step that fails must leave nothing with the router.

use std::sync::Arc;

use bulkhead_crds::template::Step;
use bulkhead_protocol::Reason;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::body::Body;
use crate::call::{CallError, call};
use crate::cell::Cell;
use crate::fields::{self, DEADLINE};
use crate::refusal::Refusal;
use crate::service::Service;

/// What goes from step to step.
struct Carried {
    /// The caller's fields, the same for every step.
    headers: HeaderMap,
    content_type: Option<HeaderValue>,
    body: Bytes,
}

/// Calls every step with POST. The answer is the last step's, or the first that says the request is at fault.
pub(crate) async fn run(cell: &Arc<Cell>, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let begun = cell.clock.millis();
    let (mut parts, body) = request.into_parts();
    let deadline = fields::deadline(&parts.headers).ok().flatten();
    let body = collect(cell.body_limit, body).await.map_err(|broken| match broken {
        Broken::TooLong => Refusal::new(
            Reason::BodyTooLarge,
            format!("The request's body is longer than the {} bytes that steps pass on.", cell.body_limit),
        ),
        Broken::Off(error) => {
            Refusal::new(Reason::Malformed, format!("The request's body broke off: {error}"))
        }
    })?;
    fields::end_hop(&mut parts.headers);
    fields::end_body(&mut parts.headers);
    let content_type = parts.headers.remove(header::CONTENT_TYPE);
    let mut carried = Carried { headers: parts.headers, content_type, body };
    let mut answer = Response::new(Body::whole(Bytes::new()));
    for (done, step) in cell.config.steps.iter().enumerate() {
        if let Some(millis) = deadline {
            let left = millis.saturating_sub(cell.clock.millis().saturating_sub(begun));
            carried.headers.insert(DEADLINE, HeaderValue::from(left));
        }
        let outcome = one(cell, step, &carried).await;
        let (head, body) = outcome.map_err(|refusal| after(done, refusal))?.into_parts();
        carried.content_type = head.headers.get(header::CONTENT_TYPE).cloned();
        carried.body = body.clone();
        let at_fault = !head.status.is_success();
        answer = Response::from_parts(head, Body::whole(body));
        if at_fault {
            break;
        }
    }
    fields::end_hop(answer.headers_mut());
    fields::drop_ours(answer.headers_mut());
    Ok(answer)
}

/// A refusal after `done` steps: what they did cannot be taken back, so none may say that nothing happened.
fn after(done: usize, refusal: Refusal) -> Refusal {
    if done == 0 {
        return refusal;
    }
    Refusal::new(Reason::ServiceFailed, format!("{} Steps done before: {done}.", refusal.detail))
}

/// One step, with its whole answer. A server error is the service's failure, not an answer.
async fn one(cell: &Arc<Cell>, step: &Step, carried: &Carried) -> Result<Response<Bytes>, Refusal> {
    let Step { service: Some(name), path: Some(path), timeout, .. } = step else {
        return Err(Refusal::new(Reason::Internal, "A step without a service cannot be run yet."));
    };
    // Checked when the configuration was read.
    let Some(service) = cell.services.get(name) else {
        return Err(Refusal::new(Reason::Internal, format!("No service {name}.")));
    };
    let timeout = timeout.get();
    match tokio::time::timeout(timeout, exchange(cell, service, path, carried)).await {
        Ok(answer) => answer,
        Err(_) => Err(CallError::TooLate { service: name.clone(), timeout }.into()),
    }
}

async fn exchange(
    cell: &Arc<Cell>,
    service: &Service,
    path: &str,
    carried: &Carried,
) -> Result<Response<Bytes>, Refusal> {
    let name = &service.spec.name;
    let uri: Uri = path.parse().map_err(|error| {
        Refusal::new(Reason::Internal, format!("The step's path {path:?} is no path: {error}"))
    })?;
    let mut request = Request::new(Body::whole(carried.body.clone()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    request.headers_mut().clone_from(&carried.headers);
    if let Some(content_type) = &carried.content_type {
        request.headers_mut().insert(header::CONTENT_TYPE, content_type.clone());
    }
    let (head, body) = call(cell, service, request).await?.into_parts();
    if head.status.is_server_error() {
        let status = head.status.as_u16();
        return Err(Refusal::new(
            Reason::ServiceFailed,
            format!("Service {name} answered {status} to {path}."),
        ));
    }
    let body = collect(cell.body_limit, body).await.map_err(|broken| {
        let what = match broken {
            Broken::TooLong => format!("is longer than the {} bytes that steps pass on", cell.body_limit),
            Broken::Off(error) => format!("broke off: {error}"),
        };
        Refusal::new(Reason::ServiceFailed, format!("The answer of service {name} to {path} {what}."))
    })?;
    Ok(Response::from_parts(head, body))
}

/// Why a body did not become whole.
enum Broken {
    TooLong,
    Off(String),
}

/// In one piece from the start: a body in chunks of a byte would take many times its length.
async fn collect(limit: usize, body: Body) -> Result<Bytes, Broken> {
    let mut body = Limited::new(body, limit);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => whole.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Err(error) if error.is::<LengthLimitError>() => return Err(Broken::TooLong),
            Err(error) => return Err(Broken::Off(error.to_string())),
        }
    }
    Ok(whole.freeze())
}
