//! Asks one pod's readiness path, again and again, over a connection of its own. What follows from the answers is
//! the verdict's.

mod http2;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_process::connect::http1;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::SendRequest;
use tokio::time::MissedTickBehavior;

use crate::cell::Cell;
use crate::service::{Pod, State};

/// Between two probes of one pod.
const INTERVAL: Duration = Duration::from_millis(200);
/// Longest answer that a probe reads to keep its connection.
const MAX_ANSWER: usize = 64 * 1024;

enum Connection {
    Http1(SendRequest<Empty<Bytes>>),
    Http2(http2::Connection),
}

/// Probes until the pod is no longer known, in HTTP/1.1 unless the service speaks HTTP/2.
pub(crate) fn spawn(cell: &Arc<Cell>, pod: &Arc<Pod>, path: &str, is_http2: bool) {
    let (mut connection, asked) = (None, path.to_owned());
    let probe = async move |cell: &Cell, pod: &Pod| probe(cell, pod, &asked, is_http2, &mut connection).await;
    tokio::spawn(watch(Arc::downgrade(cell), Arc::downgrade(pod), path.to_owned(), probe));
}

async fn watch(
    cell: Weak<Cell>,
    pod: Weak<Pod>,
    path: String,
    mut probe: impl AsyncFnMut(&Cell, &Pod) -> anyhow::Result<StatusCode>,
) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (Some(cell), Some(pod)) = (cell.upgrade(), pod.upgrade()) else { return };
        tokio::select! {
            _ = interval.tick() => {}
            () = pod.wake.notified() => {}
        }
        let timeout = cell.probe_timeout;
        let state = match tokio::time::timeout(timeout, probe(&cell, &pod)).await {
            Ok(Ok(status)) if status.as_u16() < 400 => State::Ready,
            Ok(Ok(status)) => State::NotReady { why: format!("answered {} to {path}", status.as_u16()) },
            Ok(Err(error)) => State::NotReady { why: format!("did not answer {path}: {error:#}") },
            Err(_) => {
                State::NotReady { why: format!("did not answer {path} within {} ms", timeout.as_millis()) }
            }
        };
        if pod.set_state(state) {
            cell.changed.notify_one();
        }
    }
}

/// One probe. A kept connection that fails is no evidence: the service may close idle ones. One that does not answer in
/// time goes with the probe.
async fn probe(
    cell: &Cell,
    pod: &Pod,
    path: &str,
    is_http2: bool,
    kept: &mut Option<Connection>,
) -> anyhow::Result<StatusCode> {
    if let Some(mut connection) = kept.take()
        && let Ok(status) = ask(&mut connection, pod, path).await
    {
        *kept = Some(connection);
        return Ok(status);
    }
    let stream = cell.connector.connect(pod.address, cell.probe_timeout).await?;
    let mut connection = match is_http2 {
        true => Connection::Http2(http2::open(stream).await?),
        false => Connection::Http1(http1(stream).await?),
    };
    let status = ask(&mut connection, pod, path).await?;
    *kept = Some(connection);
    Ok(status)
}

async fn ask(connection: &mut Connection, pod: &Pod, path: &str) -> anyhow::Result<StatusCode> {
    let connection = match connection {
        Connection::Http1(connection) => connection,
        Connection::Http2(connection) => return http2::ask(connection, pod, path).await,
    };
    connection.ready().await?;
    let request = Request::get(path)
        .header(header::HOST, pod.address.to_string())
        .header(header::USER_AGENT, "bulkhead-cell-runtime")
        .body(Empty::new())?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    // The rest of an answer that is too long goes with its connection.
    let _ = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::cell::Spoken;
    use crate::speaker;

    /// What a pod answers, and when it was asked, in milliseconds.
    struct Answers {
        start: Instant,
        status: Option<StatusCode>,
        asked: Vec<u128>,
    }

    /// A judged cell whose only pod answers like this; `None` is silence.
    fn cell(status: Option<StatusCode>) -> (Arc<Cell>, Arc<Mutex<Answers>>) {
        let cell = Cell::of_web();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let pod = cell.services["web"].set_pods(&[address]).remove(0);
        let answers = Arc::new(Mutex::new(Answers { start: Instant::now(), status, asked: Vec::new() }));
        let given = Arc::clone(&answers);
        let probe = async move |_: &Cell, _: &Pod| {
            let status = {
                let mut given = given.lock().expect("not poisoned");
                let now = given.start.elapsed().as_millis();
                given.asked.push(now);
                given.status
            };
            match status {
                Some(status) => Ok(status),
                None => std::future::pending().await,
            }
        };
        tokio::spawn(watch(Arc::downgrade(&cell), Arc::downgrade(&pod), "/readyz".to_owned(), probe));
        tokio::spawn(speaker::run(Arc::clone(&cell)));
        (cell, answers)
    }

    fn lacks_web(spoken: &Spoken) -> bool {
        spoken.judgement.reason == "ServiceNotReady"
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_asked_every_200_ms_and_the_first_bad_answer_is_told_at_once() {
        let (cell, answers) = cell(Some(StatusCode::OK));
        let mut spoken = cell.spoken.subscribe();
        spoken.wait_for(|spoken| spoken.judgement.ready).await.expect("is told");
        sleep(Duration::from_millis(450)).await;
        // The judge has looked now, and would not look by itself when the next probe comes.
        cell.changed.notify_one();
        answers.lock().expect("not poisoned").status = Some(StatusCode::SERVICE_UNAVAILABLE);
        let told = spoken.wait_for(lacks_web).await.expect("is told").clone();
        let Answers { start, asked, .. } = &*answers.lock().expect("not poisoned");
        assert_eq!((start.elapsed().as_millis(), &asked[..]), (600, &[0, 200, 400, 600][..]));
        assert!(told.judgement.message.contains("answered 503 to /readyz"), "{}", told.judgement.message);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_says_nothing_is_not_ready_after_the_time_out_and_is_asked_again_at_once() {
        let (cell, answers) = cell(None);
        let mut spoken = cell.spoken.subscribe();
        let told = spoken.wait_for(lacks_web).await.expect("is told").clone();
        assert!(told.judgement.message.contains("within 500 ms"), "{}", told.judgement.message);
        answers.lock().expect("not poisoned").status = Some(StatusCode::OK);
        spoken.wait_for(|spoken| spoken.judgement.ready).await.expect("is told");
        assert_eq!(answers.lock().expect("not poisoned").asked, [0, 500, 1000]);
    }
}
