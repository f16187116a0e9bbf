//! The health stream's server: every router that asks hears the verdict, each change of it, and beats in between.
//! What the verdict is, is decided elsewhere.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_protocol::{HealthLine, health};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::accept;
use crate::cell::Cell;

/// Lines that may wait for a slow reader; a reader that is further behind is better off with a new stream.
const QUEUE_LINES: usize = 8;
/// How long the kernel tries to deliver a line to a host that is gone.
const GONE: Duration = Duration::from_secs(5);
/// Readers at the same time.
const MAX_STREAMS: usize = 1_024;

type Lines = StreamBody<Receiver>;

/// Serves until the task is dropped, so that streams live as long as the process drains.
pub(crate) async fn serve(listener: TcpListener, cell: Arc<Cell>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = accept::accept(&listener, Some(GONE)).await;
        while connections.try_join_next().is_some() {}
        if connections.len() < MAX_STREAMS {
            connections.spawn(connection(stream, Arc::clone(&cell)));
        } else {
            tracing::warn!(limit = MAX_STREAMS, "too many readers of the health stream; one is turned away");
        }
    }
}

async fn connection(stream: TcpStream, cell: Arc<Cell>) {
    let answer = service_fn(|request| answer(request, Arc::clone(&cell)));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30))
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a health stream ended");
    }
}

async fn answer(request: Request<Incoming>, cell: Arc<Cell>) -> Result<Response<Lines>, Infallible> {
    let (sender, receiver) = mpsc::channel(QUEUE_LINES);
    let mut response = Response::new(StreamBody::new(Receiver(receiver)));
    if request.uri().path() == health::PATH && request.method() == Method::GET {
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/x-ndjson"));
        fields.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        tokio::spawn(speak(cell, sender));
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

/// Writes lines until the reader is gone or too far behind.
async fn speak(cell: Arc<Cell>, sender: mpsc::Sender<Bytes>) {
    let mut spoken = cell.spoken.subscribe();
    let mut beats = tokio::time::interval(health::BEAT_INTERVAL);
    // Beats keep to their own deadlines: a late one does not make the next late.
    beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
    beats.tick().await;
    let mut line = HealthLine::Verdict(cell.verdict());
    let mut counted = None;
    loop {
        let Ok(text) = line.to_line() else { return };
        if sender.try_send(text.into()).is_err() {
            return;
        }
        line = tokio::select! {
            biased;
            changed = spoken.changed() => match changed {
                Ok(()) => HealthLine::Verdict(cell.verdict()),
                Err(_) => return,
            },
            _ = beats.tick() => {
                // Who stays for a beat is a router; one look at the verdict is somebody else's.
                counted.get_or_insert_with(|| Counted::new(&cell));
                HealthLine::Beat(cell.beat())
            }
            () = sender.closed() => return,
        };
    }
}

/// A reader, counted while it reads.
struct Counted(Arc<Cell>);

impl Counted {
    fn new(cell: &Arc<Cell>) -> Self {
        cell.routers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(cell))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.routers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lines as a stream of frames.
struct Receiver(mpsc::Receiver<Bytes>);

impl futures::Stream for Receiver {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_comes_every_250_ms_and_a_change_at_once() {
        let cell = Cell::of_web();
        let (sender, mut lines) = mpsc::channel(QUEUE_LINES);
        tokio::spawn(speak(Arc::clone(&cell), sender));
        let start = Instant::now();
        let mut next = async || {
            let line = lines.recv().await.expect("the stream goes on");
            let line = HealthLine::from_line(&line).expect("a line").expect("of a known type");
            (start.elapsed().as_millis(), matches!(line, HealthLine::Verdict(_)))
        };
        assert_eq!([next().await, next().await, next().await], [(0, true), (250, false), (500, false)]);
        sleep(Duration::from_millis(100)).await;
        cell.spoken.send_modify(|spoken| spoken.judgement.ready = true);
        assert_eq!([next().await, next().await], [(600, true), (750, false)]);
    }
}
