//! One transaction on its way through the stops: what it carries from one to the next, how it leaves for a destination
//! and comes back, and what may be said when it can go no further. No I/O.

use bulkhead_protocol::egress::{self, ContextHead, MAX_BODY, MAX_CONTEXT, Malformed};
use bulkhead_protocol::{Continue, Egress, EgressStatus, Reason, fields as names, hop};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};

use super::context;
use super::plan::Workflow;
use crate::body::Body;
use crate::fields::{self, DEADLINE, DESTINATION_STATUS, EGRESS, STATE};
use crate::refusal::Refusal;

/// What the router says anew of each request, so that no context holds it.
const OF_THE_REQUEST: [&str; 4] = [names::TRANSACTION, names::ATTEMPT, names::CELL, names::DEADLINE];

#[derive(Debug)]
pub(super) struct Transaction {
    /// The stop that it is at.
    pub(super) at: usize,
    /// The last egress that was answered; 0 before the first.
    pub(super) egress: u32,
    /// Whether a message with effects may have reached a destination.
    pub(super) committed: bool,
    /// Whether a service answered since the request arrived.
    called: bool,
    /// Fields that every step gets: the caller's, the router's, and the state.
    headers: HeaderMap,
    /// What the next step gets: the caller's message, or what the stop before answered.
    of_body: HeaderMap,
    body: Bytes,
    /// The status code of that answer, where it is a destination's.
    answered: Option<StatusCode>,
    /// The Destination that the service before named.
    destination: Option<String>,
}

impl Transaction {
    /// At the first stop, with what the caller sent.
    pub(super) fn begin(mut headers: HeaderMap, body: Bytes) -> Self {
        hop::end_hop(&mut headers);
        let of_body = fields::of_body(&headers);
        fields::end_body(&mut headers);
        Self {
            at: 0,
            egress: 0,
            committed: false,
            called: false,
            headers,
            of_body,
            body,
            answered: None,
            destination: None,
        }
    }

    /// Behind the egress that it comes back from, with what the destination answered.
    ///
    /// # Errors
    /// When there is no answer; or untouched, so that another pod is asked, when the request makes no sense here.
    pub(super) fn resume(
        workflow: &Workflow,
        back: &Continue,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Self, Refusal> {
        let answered = match back.status {
            EgressStatus::Answered => status(back)?,
            EgressStatus::NotSent | EgressStatus::Unknown => return Err(unanswered(back)),
        };
        let (context, body) = egress::split(body, back.context.as_ref())
            .map_err(|malformed| Refusal::new(Reason::WrongCell, format!("{malformed}.")))?;
        let (at, mut carried) =
            workflow.after(back.number).zip(context::decode(&context)).ok_or_else(|| {
                let number = back.number;
                Refusal::new(Reason::WrongCell, format!("The context of egress {number} is not one of ours."))
            })?;
        for name in OF_THE_REQUEST.map(HeaderName::from_static) {
            if let Some(value) = headers.get(&name) {
                carried.insert(name, value.clone());
            }
        }
        carried.insert(EGRESS, HeaderValue::from(back.number));
        Ok(Self {
            at,
            egress: back.number,
            committed: back.committed,
            called: false,
            headers: carried,
            of_body: fields::of_body(headers),
            body,
            answered: Some(answered),
            destination: None,
        })
    }

    /// What the service at this stop gets. `left` is for how many milliseconds the router still waits.
    pub(super) fn request(&self, path: &Uri, left: Option<u64>) -> Request<Body> {
        let mut request = Request::new(Body::whole(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.extend(self.of_body.clone());
        if let Some(status) = self.answered {
            headers.insert(DESTINATION_STATUS, HeaderValue::from(status.as_u16()));
        }
        if let Some(left) = left {
            headers.insert(DEADLINE, HeaderValue::from(left));
        }
        request
    }

    /// Takes a service's answer along to the next stop.
    ///
    /// # Errors
    /// When what it names as Destination or gives as state is none.
    pub(super) fn take(&mut self, service: &str, answer: Response<Bytes>) -> Result<(), Refusal> {
        let (head, body) = answer.into_parts();
        let wrong = |what: String| Refusal::new(Reason::ServiceFailed, format!("Service {service}: {what}."));
        let malformed = |malformed: Malformed| wrong(malformed.to_string());
        self.destination = egress::destination(&head.headers).map_err(malformed)?.map(str::to_owned);
        if let Some(state) = egress::one(&head.headers, names::STATE).map_err(malformed)? {
            if state.len() > names::MAX_STATE {
                let length = state.len();
                return Err(wrong(format!(
                    "{STATE} has {length} bytes; at most {} may be",
                    names::MAX_STATE
                )));
            }
            self.headers.insert(STATE, head.headers[STATE].clone());
        }
        self.of_body = fields::of_body(&head.headers);
        self.answered = None;
        self.body = body;
        self.called = true;
        self.at += 1;
        Ok(())
    }

    /// The answer that asks the router for egress `number`, to the step's destination or the one that the service before
    /// named.
    ///
    /// # Errors
    /// When context and message are too long, which differs nowhere. Whether the cell may reach it, the router says.
    pub(super) fn leave(
        mut self,
        number: u32,
        destination: &str,
        version: &str,
    ) -> Result<Response<Body>, Refusal> {
        let destination = self.destination.take().unwrap_or_else(|| destination.to_owned());
        let context = context::encode(&self.headers);
        if context.len() > MAX_CONTEXT {
            let detail = format!(
                "The caller's fields and {STATE} have {} bytes; at most {MAX_CONTEXT} may be the context of egress {number}.",
                context.len()
            );
            return Err(ended(self.committed, Reason::ServiceFailed, detail));
        }
        let length = context.len() + self.body.len();
        if length > MAX_BODY {
            let detail = format!(
                "Context and message of egress {number} have {length} bytes; the router takes at most {MAX_BODY}."
            );
            return Err(ended(self.committed, Reason::ServiceFailed, detail));
        }
        let head = Egress {
            number,
            destination,
            context: Some(ContextHead { length: context.len(), version: version.to_owned() }),
            method: Method::POST,
            path: None,
        };
        let mut whole = BytesMut::with_capacity(length);
        whole.put(context);
        whole.put(self.body);
        let mut response = Response::new(Body::whole(whole.freeze()));
        head.write(response.headers_mut());
        response.headers_mut().extend(self.of_body);
        Ok(response)
    }

    /// The caller's answer where no service has a say behind the last destination.
    ///
    /// # Errors
    /// When the destination failed, which no other cell can mend.
    pub(super) fn arrive(self) -> Result<Response<Body>, Refusal> {
        let status = self.answered.unwrap_or_default();
        if status.is_server_error() {
            let detail = format!("The destination of egress {} answered {status}.", self.egress);
            return Err(Refusal::ending(Reason::ServiceFailed, detail));
        }
        let mut response = Response::new(Body::whole(self.body));
        *response.status_mut() = status;
        response.headers_mut().extend(self.of_body);
        Ok(response)
    }

    /// A refusal by which it is given back. What services and destinations did cannot be taken back, so that after the first
    /// of them none may say that nothing happened.
    pub(super) fn given_back(&self, refusal: Refusal) -> Refusal {
        if !self.called && self.egress == 0 {
            return refusal;
        }
        let (step, egresses) = (self.at + 1, self.egress);
        let detail =
            format!("{} This was step {step}; egresses answered before: {egresses}.", refusal.detail);
        Refusal::new(Reason::ServiceFailed, detail)
    }
}

/// Ends a transaction. Once committed it may have had effects, so that only before that the reason itself is told.
fn ended(committed: bool, reason: Reason, detail: String) -> Refusal {
    match committed {
        false => Refusal::ending(reason, detail),
        true => Refusal::ending(
            Reason::OutcomeUnknown,
            format!("Past the point of no return. {reason}: {detail}"),
        ),
    }
}

/// What follows an egress that has no answer.
fn unanswered(back: &Continue) -> Refusal {
    let number = back.number;
    match back.status {
        EgressStatus::NotSent => {
            let reason = back.reason.unwrap_or(Reason::DestinationUnavailable);
            let why = match reason {
                Reason::DestinationForbidden => {
                    " A cell reaches the http Destinations that are in its Cell's spec.destinations, and paths within theirs; an Event on the Cell names the one that was asked for."
                }
                _ => "",
            };
            // Where the first was not sent, nothing was, though a router that does not say is taken to have committed.
            ended(back.committed && number > 1, reason, format!("Egress {number} was not sent.{why}"))
        }
        EgressStatus::Answered | EgressStatus::Unknown => {
            let why = back.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let detail = format!("Egress {number} may have reached its destination; no answer came{why}.");
            // The destination has no effects where it did not commit: another cell may ask it again.
            let reason = if back.committed { Reason::OutcomeUnknown } else { Reason::ServiceFailed };
            Refusal::new(reason, detail)
        }
    }
}

fn status(back: &Continue) -> Result<StatusCode, Refusal> {
    let status = back.answer.and_then(|code| StatusCode::from_u16(code).ok());
    status.filter(|status| !status.is_informational()).ok_or_else(|| {
        let detail = format!("{DESTINATION_STATUS} is not the status code of an answer.");
        Refusal::new(Reason::WrongCell, detail)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::workflow::plan::Stop;
    use crate::workflow::plan::tests::steps;

    /// Drives a transaction to its end. Services and destinations answer with what they got and their name behind, and each
    /// egress comes back to somebody who knows nothing but what it holds.
    async fn run(workflow: &Workflow, headers: &HeaderMap) -> (String, HeaderMap) {
        let mut transaction = Transaction::begin(headers.clone(), Bytes::from_static(b"begin"));
        let mut seen = HeaderMap::new();
        while let Some(stop) = workflow.stops().get(transaction.at) {
            match stop {
                Stop::Call { service, path, .. } => {
                    let (head, body) = transaction.request(path, None).into_parts();
                    seen = head.headers;
                    let body = body.read(MAX_BODY).await.expect("is whole");
                    let mut answer =
                        Response::new(Bytes::from([&body[..], b" ", service.as_bytes()].concat()));
                    answer.headers_mut().insert(STATE, HeaderValue::from_str(service).expect("a value"));
                    transaction.take(service, answer).expect("is an answer");
                }
                Stop::Egress { number, destination } => {
                    let left = transaction.leave(*number, destination, "v");
                    transaction = somewhere_else(workflow, left.expect("leaves")).await;
                }
            }
        }
        (String::from_utf8(transaction.body.to_vec()).expect("is text"), seen)
    }

    /// Answers an egress, and resumes it from nothing but its bytes.
    async fn somewhere_else(workflow: &Workflow, left: Response<Body>) -> Transaction {
        let (head, body) = left.into_parts();
        let Egress { number, destination, context, .. } = Egress::read(&head.headers).expect("an egress");
        let body = body.read(MAX_BODY).await.expect("is whole");
        let body = Bytes::from([&body[..], b" ", destination.as_bytes()].concat());
        let answer = Some(200);
        let status = EgressStatus::Answered;
        let back = Continue { number, context, status, answer, reason: None, committed: true };
        Transaction::resume(workflow, &back, &HeaderMap::new(), body).expect("goes on")
    }

    proptest! {
        #[test]
        fn every_stop_is_passed_once_and_in_order_wherever_the_parts_of_it_run(
            stops in prop::collection::vec(prop_oneof!["[a-z]{1,5}:/x", "destination:[0-9]{1,5}"], 1..30),
        ) {
            let texts: Vec<&str> = stops.iter().map(String::as_str).collect();
            let workflow = Workflow::new(&steps(&texts)).expect("is a workflow");
            let headers: HeaderMap = [(HeaderName::from_static("x-account"), HeaderValue::from_static("7"))]
                .into_iter()
                .collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let (passed, seen) = runtime.block_on(run(&workflow, &headers));
            let name = |stop: &Stop| match stop {
                Stop::Call { service, .. } => service.clone(),
                Stop::Egress { destination, .. } => destination.clone(),
            };
            let expected: Vec<String> = workflow.stops().iter().map(name).collect();
            prop_assert_eq!(passed, format!("begin {}", expected.join(" ")));

            let calls: Vec<&str> = workflow.stops().iter().filter_map(|stop| match stop {
                Stop::Call { service, .. } => Some(service.as_str()),
                Stop::Egress { .. } => None,
            }).collect();
            if let [before @ .., _] = &calls[..] {
                prop_assert_eq!(&seen["x-account"], "7");
                prop_assert_eq!(seen.get(STATE).and_then(|state| state.to_str().ok()), before.last().copied());
            }
        }
    }
}
