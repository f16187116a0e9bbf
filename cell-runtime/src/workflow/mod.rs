//! Runs a cell's workflow: services in turn, the body of each answer being the body of the next call, and out through the
//! router where a destination comes between. Whole bodies only, since a step that fails must leave nothing with the router.

mod context;
pub(crate) mod plan;
mod step;
mod transaction;

use std::sync::Arc;

use bulkhead_protocol::{Continue, Reason, hop};
use bytes::Bytes;
use http::{Request, Response};

pub(crate) use self::plan::{Stop, Workflow};
use self::transaction::Transaction;
use crate::body::{Body, Broken};
use crate::cell::Cell;
use crate::fields;
use crate::refusal::Refusal;

/// Begins a transaction, or goes on with one that comes back from a destination. The answer is an egress, the last stop's,
/// or that of the first service which says that the request is at fault.
pub(crate) async fn run(
    cell: &Arc<Cell>,
    request: Request<Body>,
    back: Option<Continue>,
) -> Result<Response<Body>, Refusal> {
    let begun = cell.clock.millis();
    let (parts, body) = request.into_parts();
    let deadline = fields::deadline(&parts.headers).ok().flatten();
    let body = body.read(cell.body_limit).await;
    let workflow = &cell.workflow;
    let mut transaction = match back {
        None => Transaction::begin(parts.headers, body.map_err(|broken| refused(&broken))?),
        Some(back) => {
            Transaction::resume(workflow, &back, &parts.headers, body.map_err(|broken| lost(&broken))?)?
        }
    };
    while let Some(stop) = workflow.stops().get(transaction.at) {
        // Once committed it is finished here while a single pod is left: there may be nobody else.
        if !transaction.committed
            && let Some(lacking) = cell.lacking(transaction.at)
        {
            return Err(transaction.given_back(Refusal::new(Reason::ServiceNotReady, lacking)));
        }
        let (service, path, timeout) = match stop {
            Stop::Call { service, path, timeout } => (service, path, *timeout),
            Stop::Egress { number, destination } => {
                return transaction.leave(*number, destination, workflow.version());
            }
        };
        let left = deadline.map(|millis| millis.saturating_sub(cell.clock.millis().saturating_sub(begun)));
        let call = step::run(cell, service, timeout, transaction.request(path, left));
        let answer = unless_halted(cell, &transaction, call).await;
        let answer = answer.map_err(|refusal| transaction.given_back(refusal))?;
        if transaction.at + 1 == workflow.stops().len() || !answer.status().is_success() {
            return Ok(callers(answer));
        }
        transaction.take(service, answer)?;
    }
    transaction.arrive()
}

/// The answer of a call. Until it is committed a transaction does not wait for it when a required service that it needs
/// afterwards loses its pods: it is given back at once, to begin again elsewhere.
async fn unless_halted(
    cell: &Cell,
    transaction: &Transaction,
    call: impl Future<Output = Result<Response<Bytes>, Refusal>>,
) -> Result<Response<Bytes>, Refusal> {
    if transaction.committed {
        return call.await;
    }
    tokio::select! {
        biased;
        answer = call => answer,
        lacking = cell.until_lacking(transaction.at + 1) => {
            // The service that is called may have done its part.
            Err(Refusal::new(Reason::ServiceFailed, format!("Halted during a call. {lacking}")))
        }
    }
}

/// A service's answer as the caller gets it.
fn callers(answer: Response<Bytes>) -> Response<Body> {
    let mut answer = answer.map(Body::whole);
    hop::end_hop(answer.headers_mut());
    hop::drop_ours(answer.headers_mut());
    answer
}

fn refused(broken: &Broken) -> Refusal {
    let reason = match broken {
        Broken::TooLong(_) => Reason::BodyTooLarge,
        Broken::Off(_) => Reason::Malformed,
    };
    Refusal::new(reason, format!("The request's body {broken}."))
}

/// What a destination answered cannot be asked for again, but another pod may take it whole.
fn lost(broken: &Broken) -> Refusal {
    Refusal::new(Reason::WrongCell, format!("What came back from the destination {broken}."))
}
