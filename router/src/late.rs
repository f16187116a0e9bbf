//! What a cell says after its attempt was given up: it is refused, counted, and read to its end so that the connection can
//! be used again. Closing at once would be as safe, but would cost a pod that is merely slow all its connections.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use crate::attempt::{Kind, Lease, discard};
use crate::edge::Sending;
use crate::worker::Worker;

/// How long a late word is waited for. The attempt counts in its cell until then: it may well be at work there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes over an attempt that its transaction has given up.
pub(crate) fn refuse(worker: &Rc<Worker>, sent: Sending, lease: Lease) {
    // What still reads a client's body, or is past the thread's limits, is dropped, which closes the connection.
    if !sent.is_sent() {
        return;
    }
    let Some(place) = worker.late_place(lease.memory()) else { return };
    let metrics = worker.metrics().clone();
    tokio::task::spawn_local(async move {
        if let Ok(Ok(head)) = timeout(PATIENCE, sent).await {
            metrics.late(&lease.cell().name, Kind::of(&head).as_str());
            discard(head, lease);
        }
        drop(place);
    });
}
