//! When each kind was last heard of, bookmarks included, for the metric that shows a deaf watch. The watcher keeps
//! bookmarks to itself, so bytes are noted as they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bulkhead_process::Monotonic;
use bytes::Bytes;
use futures::TryFutureExt;
use futures::future::BoxFuture;
use hyper::body::{Body, Frame, SizeHint};
use kube::client::Body as KubeBody;
use tower::{Layer, Service, layer::layer_fn};

/// Kinds by the last part of their path at the API server.
const KINDS: [(&str, &str); 6] = [
    ("routers", "Router"),
    ("cells", "Cell"),
    ("routingpolicies", "RoutingPolicy"),
    ("trafficshifts", "TrafficShift"),
    ("destinations", "Destination"),
    ("endpointslices", "EndpointSlice"),
];

/// Cheap to clone; all clones note in the same place.
#[derive(Clone)]
pub(crate) struct Freshness {
    clock: Monotonic,
    heard: Arc<[AtomicU64; KINDS.len()]>,
}

impl Freshness {
    pub(crate) fn new(clock: Monotonic) -> Self {
        Self { clock, heard: Arc::new([const { AtomicU64::new(0) }; KINDS.len()]) }
    }

    /// Seconds since each kind was last heard of.
    pub(crate) fn ages(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let now = self.clock.millis();
        KINDS.iter().zip(self.heard.iter()).map(move |((_, kind), heard)| {
            (*kind, now.saturating_sub(heard.load(Ordering::Relaxed)) as f64 / 1000.0)
        })
    }

    /// Wraps a client so that whatever arrives is noted.
    pub(crate) fn layer<S>(&self) -> impl Layer<S, Service = Noted<S>> + Clone {
        let freshness = self.clone();
        layer_fn(move |inner| Noted { inner, freshness: freshness.clone() })
    }

    fn note(&self, place: usize) {
        if let Some(heard) = self.heard.get(place) {
            heard.store(self.clock.millis(), Ordering::Relaxed);
        }
    }
}

/// A client whose answers are noted as they arrive.
#[derive(Clone)]
pub(crate) struct Noted<S> {
    inner: S,
    freshness: Freshness,
}

impl<S, B> Service<http::Request<KubeBody>> for Noted<S>
where
    S: Service<http::Request<KubeBody>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<NotedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<KubeBody>) -> Self::Future {
        let plural = request.uri().path().rsplit('/').next().unwrap_or_default();
        let place = KINDS.iter().position(|(known, _)| *known == plural).unwrap_or(KINDS.len());
        let freshness = self.freshness.clone();
        let answered = self.inner.call(request).map_ok(move |response| {
            // An answer that is an error says nothing of the objects.
            let place = if response.status().is_success() { place } else { KINDS.len() };
            response.map(|inner| NotedBody { inner, freshness, place })
        });
        Box::pin(answered)
    }
}

/// A body whose bytes are noted.
pub(crate) struct NotedBody<B> {
    inner: B,
    freshness: Freshness,
    place: usize,
}

impl<B: Body<Data = Bytes> + Unpin> Body for NotedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(_))) = polled {
            self.freshness.note(self.place);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn what_arrives_is_noted_for_its_kind_alone() {
        let freshness = Freshness::new(Monotonic::start());
        freshness.heard.iter().for_each(|heard| heard.store(u64::MAX, Ordering::Relaxed));
        let answer = service_fn(async |_: http::Request<KubeBody>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(Bytes::from_static(b"{}"))))
        });
        let client = freshness.layer().layer(answer);
        let request = http::Request::get("/apis/bulkhead.dev/v1alpha1/cells?watch=true")
            .body(KubeBody::empty())
            .expect("a legal request");
        let response = client.oneshot(request).await.expect("is answered");
        response.into_body().collect().await.expect("arrives");
        let noted: Vec<bool> =
            freshness.heard.iter().map(|heard| heard.load(Ordering::Relaxed) != u64::MAX).collect();
        assert_eq!(noted, [false, true, false, false, false, false]);
    }
}
