//! One watch: how it waits, which store it fills, and when that store has its first whole list. What is watched, and who
//! is told, is `stores`'.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use kube::api::Api;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Seconds after which the server ends a watch: below what load balancers allow an idle connection.
pub(crate) const WATCH_TIMEOUT: u32 = 200;

/// How long a watch that failed waits: never long, because an API server that is back must be noticed within seconds.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(Duration::from_millis(250 << self.failures.clamp(1, 3)))
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

pub(crate) type Touched<K> = BoxStream<'static, Result<K, watcher::Error>>;

/// True once a store has its first whole list.
pub(crate) type Filled = watch::Receiver<bool>;

/// A store, and the stream of touched objects that fills it while it is polled.
pub(crate) fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    dynamic: K::DynamicType,
) -> (Store<K>, Touched<K>, Filled)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + Hash + Send + Sync + Unpin,
{
    let writer = reflector::store::Writer::<K>::new(dynamic);
    let reader = writer.as_reader();
    let (fill, filled) = watch::channel(false);
    let stream = watcher(api, config.timeout(WATCH_TIMEOUT))
        .backoff(Backoff::default())
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .inspect(move |event| {
            if matches!(event, Ok(watcher::Event::InitDone)) || is_of_unknown_kind(event) {
                fill.send_replace(true);
            }
        })
        .touched_objects()
        .boxed();
    (reader, stream, filled)
}

/// Of a kind whose definition somebody removed there are no objects, so nobody waits for them.
fn is_of_unknown_kind<K>(event: &watcher::Result<watcher::Event<K>>) -> bool {
    match event {
        Err(watcher::Error::InitialListFailed(error)) => crate::writer::code(error) == Some(404),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::TrafficShift;
    use kube::core::DeserializeGuard;

    use super::*;
    use crate::fixture;

    #[tokio::test]
    async fn a_store_of_a_kind_that_the_cluster_does_not_know_is_full_and_one_that_fails_is_not() {
        for (code, full) in [(404, true), (403, false), (500, false)] {
            let (client, _) = fixture::api_server(move |_| Some(fixture::failure(code, "no")));
            let (store, mut stream, filled) =
                reflect(Api::<DeserializeGuard<TrafficShift>>::all(client), watcher::Config::default(), ());
            assert!(stream.next().await.expect("it never ends").is_err());
            assert_eq!(*filled.borrow(), full, "{code}");
            assert!(store.state().is_empty());
        }
    }
}
