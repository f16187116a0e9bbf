//! One call of a service: chooses a pod, takes a kept connection or makes one, sends, and says what became of it.
//! What provably reached no service is sent to another pod; nothing else is ever sent twice.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_crds::template::EntryProtocol;
use bulkhead_process::connect::say_chunked;
use bulkhead_protocol::Reason;
use http::{Request, Response};

use crate::body::Body;
use crate::cell::Cell;
use crate::sender::{Sender, is_untouched};
use crate::service::{Pod, Service, State};

/// Pods within a cell answer or refuse in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pods tried for one call.
const MAX_TRIES: usize = 4;
/// A kept connection becomes free a moment after its last answer was read; past this it is not waited for.
const BECOMES_FREE: Duration = Duration::from_millis(5);

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("no pod of service {service} is ready{detail}")]
    NoPod { service: String, detail: String },
    #[error("service {service} at {pod} broke off before it answered: {source}")]
    Broken { service: String, pod: SocketAddr, source: hyper::Error },
    #[error("service {service} at {pod} refused the call untouched: {source}")]
    Refused { service: String, pod: SocketAddr, source: hyper::Error },
    #[error("service {service} did not answer within {timeout:?}")]
    TooLate { service: String, timeout: Duration },
}

impl CallError {
    /// [`Reason::ServiceNotReady`] promises that no service saw the request.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::NoPod { .. } | Self::Refused { .. } => Reason::ServiceNotReady,
            Self::Broken { .. } | Self::TooLate { .. } => Reason::ServiceFailed,
        }
    }
}

/// Sends to one pod of `service`, in HTTP/1.1. The answer's body gives the connection back when it has been read.
pub(crate) async fn call(
    cell: &Arc<Cell>,
    service: &Service,
    mut request: Request<Body>,
) -> Result<Response<Body>, CallError> {
    say_chunked(&mut request);
    send(cell, service, EntryProtocol::Http1, request).await
}

/// As [`call`], in what the entry speaks.
pub(crate) async fn send(
    cell: &Arc<Cell>,
    service: &Service,
    protocol: EntryProtocol,
    mut request: Request<Body>,
) -> Result<Response<Body>, CallError> {
    let mut tried = Vec::new();
    let mut detail = String::new();
    for _ in 0..MAX_TRIES {
        let Some(pod) = service.choose(&tried) else { break };
        let mut lease = match Lease::open(cell, &pod, protocol).await {
            Ok(lease) => lease,
            Err(error) => {
                detail = format!("; the last tried, {}, could not be reached: {error}", pod.address);
                tried.push(pod.address);
                continue;
            }
        };
        match lease.sender_mut().send(request).await {
            Ok(response) => return Ok(response.map(|body| Body::leased(body, lease))),
            Err(mut error) => match error.take_message() {
                // Not a byte of it left this process.
                Some(unsent) => request = unsent,
                None => {
                    lease.failed();
                    let (service, pod, source) = (service.spec.name.clone(), pod.address, error.into_error());
                    return Err(match is_untouched(&source) {
                        true => CallError::Refused { service, pod, source },
                        false => CallError::Broken { service, pod, source },
                    });
                }
            },
        }
    }
    Err(CallError::NoPod { service: service.spec.name.clone(), detail })
}

/// A connection in use, and a count among the pod's transactions.
pub(crate) struct Lease {
    cell: Arc<Cell>,
    pod: Arc<Pod>,
    sender: Option<Sender>,
}

impl Lease {
    async fn open(cell: &Arc<Cell>, pod: &Arc<Pod>, protocol: EntryProtocol) -> io::Result<Self> {
        pod.in_flight.fetch_add(1, Ordering::Relaxed);
        let mut lease = Self { cell: Arc::clone(cell), pod: Arc::clone(pod), sender: None };
        lease.sender = Some(lease.connection(protocol).await?);
        Ok(lease)
    }

    async fn connection(&self, protocol: EntryProtocol) -> io::Result<Sender> {
        let is_http2 = protocol == EntryProtocol::H2c;
        let kept = || match is_http2 {
            true => self.pod.multiplexed.take(),
            false => self.pod.idle.take(self.cell.clock.millis()),
        };
        while let Some(mut sender) = kept() {
            if let Ok(Ok(())) = tokio::time::timeout(BECOMES_FREE, sender.ready()).await {
                return Ok(sender);
            }
        }
        match self.cell.connector.connect(self.pod.address, CONNECT_TIMEOUT).await {
            Ok(stream) if is_http2 => self.pod.multiplexed.open(stream).await,
            Ok(stream) => Sender::http1(stream).await,
            Err(error) => {
                self.unreachable(&error);
                Err(error)
            }
        }
    }

    /// A refusal is as good as a probe. Anything else might be this side's fault, so that a probe decides at once.
    fn unreachable(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            self.pod.set_state(State::NotReady { why: "refused a connection".to_owned() });
            self.cell.changed.notify_one();
        }
        self.pod.wake.notify_one();
    }

    fn sender_mut(&mut self) -> &mut Sender {
        self.sender.as_mut().expect("a lease loses its connection only when it ends")
    }

    /// Something went wrong with this pod; a probe finds out at once.
    pub(crate) fn failed(&self) {
        self.pod.wake.notify_one();
    }

    /// Gives the connection back; its last answer has been read to the end.
    pub(crate) fn keep(mut self) {
        if let Some(sender) = self.sender.take() {
            self.pod.idle.keep(sender, self.cell.clock.millis());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pod.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
