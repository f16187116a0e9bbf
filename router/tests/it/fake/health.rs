//! A fake cell's health stream: it says what the test wants, and counts who listens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_protocol::health::BEAT_INTERVAL;
use bulkhead_protocol::{Beat, HealthLine, Verdict};
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::ask::CONTEXT;
use super::{Answer, Inner};

/// A health stream that is counted as open for as long as its connection holds it.
struct OpenStream(Arc<Inner>);

impl OpenStream {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.streams.fetch_add(1, Ordering::SeqCst);
        inner.open_streams.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(inner))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) fn stream_of(inner: &Arc<Inner>) -> Answer {
    let open = OpenStream::new(inner);
    let (lines, receiver) = mpsc::channel::<HealthLine>(16);
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let mut says = inner.says.subscribe();
        loop {
            let (ready, reason) = says.borrow_and_update().clone();
            let capacity = *inner.capacity.lock().expect("no test panics here");
            let verdict = Verdict {
                cell: inner.name.clone(),
                pod: "fake".to_owned(),
                ready,
                reason,
                message: capacity.map(|most| format!("takes {most}")).unwrap_or_default(),
                ready_for_ms: 1_000_000,
                capacity,
                routers: 1,
                context_versions: vec![CONTEXT.to_owned()],
                ..Verdict::default()
            };
            if !inner.mute.load(Ordering::SeqCst) && lines.send(HealthLine::Verdict(verdict)).await.is_err() {
                return;
            }
            while let Err(_elapsed) = tokio::time::timeout(BEAT_INTERVAL, says.changed()).await {
                let beat = Beat { ready_for_ms: 1_000_000, routers: 1, ..Beat::default() };
                if !inner.mute.load(Ordering::SeqCst) && lines.send(HealthLine::Beat(beat)).await.is_err() {
                    return;
                }
            }
        }
    });
    let frames = futures::stream::unfold((receiver, open), |(mut receiver, open)| async move {
        let line = receiver.recv().await?;
        let text = line.to_line().expect("lines are JSON");
        Some((Ok(Frame::data(Bytes::from(text))), (receiver, open)))
    });
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream(Box::pin(frames)))))
}

/// A stream that is only ever polled by one task.
struct SyncStream<S>(std::pin::Pin<Box<S>>);

impl<S: futures::Stream> futures::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.0.as_mut().poll_next(context)
    }
}
