//! One call of a service on the way: POST with a whole body, a whole answer back. A server error is the service's
//! failure, not an answer.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::Reason;
use bytes::Bytes;
use http::{Request, Response};

use crate::body::Body;
use crate::call::{CallError, call};
use crate::cell::Cell;
use crate::refusal::Refusal;

/// Waits no longer than `timeout` for the whole answer.
pub(super) async fn run(
    cell: &Arc<Cell>,
    service: &str,
    timeout: Duration,
    request: Request<Body>,
) -> Result<Response<Bytes>, Refusal> {
    match tokio::time::timeout(timeout, exchange(cell, service, request)).await {
        Ok(answer) => answer,
        Err(_) => Err(CallError::TooLate { service: service.to_owned(), timeout }.into()),
    }
}

async fn exchange(cell: &Arc<Cell>, name: &str, request: Request<Body>) -> Result<Response<Bytes>, Refusal> {
    // Checked when the configuration was read.
    let Some(service) = cell.services.get(name) else {
        return Err(Refusal::new(Reason::Internal, format!("No service {name}.")));
    };
    let path = request.uri().clone();
    let (head, body) = call(cell, service, request).await?.into_parts();
    if head.status.is_server_error() {
        let status = head.status.as_u16();
        return Err(Refusal::new(
            Reason::ServiceFailed,
            format!("Service {name} answered {status} to {path}."),
        ));
    }
    let body = body.read(cell.body_limit).await.map_err(|broken| {
        Refusal::new(Reason::ServiceFailed, format!("The answer of service {name} to {path} {broken}."))
    })?;
    Ok(Response::from_parts(head, body))
}
