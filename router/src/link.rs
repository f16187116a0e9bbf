//! What an attempt is sent over: a connection of its own in HTTP/1.1, or a place on one in HTTP/2.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bulkhead_protocol::Reason;
use bulkhead_routing::transaction::Failure;

use crate::edge::{Connection, Message, NoPlace, Outgoing, Place, Sending};
use crate::pool::Pool;
use crate::worker::Worker;

/// How long a connection to a pod may take: it is in the same cluster, and another pod may answer sooner.
const CONNECT: Duration = Duration::from_secs(1);

pub(crate) enum Link {
    Http1(Connection),
    Http2(Place),
}

impl Link {
    /// One to that pod, as the message wants it, and whether it was made for this.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent.
    pub(crate) async fn take(
        worker: &Worker,
        pool: &Rc<Pool>,
        message: &Message,
        until: Duration,
    ) -> Result<(Self, bool), Failure> {
        let left = until.saturating_sub(worker.clock().elapsed()).min(CONNECT);
        let (connector, pod) = (&pool.connector, pool.pod.at);
        let error = if message.is_over_http2() {
            match pool.channels.place(connector, pod.traffic, left).await {
                Ok((place, fresh)) => return Ok((Self::Http2(place), fresh)),
                Err(NoPlace::Full) => return Err(Failure::NotProcessed(Reason::Capacity)),
                Err(NoPlace::Io(error)) => error,
            }
        } else {
            if let Some(connection) = pool.take() {
                return Ok((Self::Http1(connection), false));
            }
            match Connection::open(connector, pod.traffic, left).await {
                Ok(connection) => return Ok((Self::Http1(connection), true)),
                Err(error) => error,
            }
        };
        tracing::debug!(pod = %pod.traffic, %error, "no connection");
        if error.kind() == io::ErrorKind::ConnectionRefused {
            worker.tell_refused(pod);
        }
        Err(Failure::NotProcessed(Reason::ConnectFailed))
    }

    /// It was not used.
    pub(crate) fn give_back(self, pool: &Pool, now_ms: u64) {
        if let Self::Http1(connection) = self {
            pool.give_back(connection, now_ms);
        }
    }

    /// Sends the message. A connection that is the attempt's own is to be kept until the answer is read.
    pub(crate) fn send(self, message: &Message, body: Outgoing) -> (Sending, Option<Connection>) {
        match self {
            Self::Http1(connection) => (Sending::over_http1(&connection, message, body), Some(connection)),
            Self::Http2(place) => (Sending::over_http2(place, message, body), None),
        }
    }
}
