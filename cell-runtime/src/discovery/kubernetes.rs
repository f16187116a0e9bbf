//! Watches the EndpointSlices of one namespace. Without the API server the last known endpoints stay, and the probes
//! go on judging them.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};

use super::slices::{self, Slices};
use crate::cell::Cell;

/// The server ends each watch then, long before load balancers cut one that is silent, without a word.
const WATCH_TIMEOUT_SECONDS: u32 = 60;
/// A connection on which the server is due to speak is given up after this time. A quiet watch may say nothing before it
/// ends: nobody promises it bookmarks.
pub(crate) const SILENCE: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS as u64 + 10);
const LOOK: Duration = Duration::from_secs(5);

/// A client that gives up a connection on which the server is due to speak and says nothing for `silence`: it may be
/// dead without anybody having said so.
///
/// # Errors
/// When the configuration is none that a client can be made of.
pub(crate) fn client(mut config: kube::Config, silence: Duration) -> kube::Result<kube::Client> {
    config.read_timeout = Some(silence);
    // What a connection was idle for is no silence of the server's.
    config.reset_reader_on_write = true;
    // The watch tries again itself, and says so.
    config.default_retry = false;
    kube::Client::try_from(config)
}

pub(crate) async fn watch(cell: Arc<Cell>, client: kube::Client, namespace: &str) {
    let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let config = watcher::Config::default().timeout(WATCH_TIMEOUT_SECONDS);
    let events = watcher::watcher(api, config).default_backoff();
    pin_mut!(events);
    let mut lists = Lists::default();
    let mut heard = cell.clock.elapsed();
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    heard = cell.clock.elapsed();
                    if lists.take(event) {
                        tell(&cell, &lists.whole);
                    }
                }
                Some(Err(error)) => tracing::warn!(
                    error = %error,
                    namespace,
                    "cannot watch EndpointSlices; the last known pods stay"
                ),
                None => return,
            },
            _ = look.tick() => {
                let age = cell.clock.elapsed().saturating_sub(heard).as_secs();
                cell.metrics.watch_age.set(i64::try_from(age).unwrap_or(i64::MAX));
            }
        }
    }
}

fn tell(cell: &Arc<Cell>, slices: &Slices) {
    for service in cell.services.values() {
        let spec = &service.spec;
        cell.set_pods(&spec.name, &slices::pods(slices, &spec.name, spec.port));
    }
    cell.set_peers(slices::peers(slices, &cell.pod));
}

/// What the watch said: the list in use, and the one that is not whole yet.
#[derive(Default)]
struct Lists {
    whole: Slices,
    coming: Slices,
}

impl Lists {
    /// True when the list in use changed. Between `Init` and `InitDone` it does not.
    fn take(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Init => {
                self.coming.clear();
                false
            }
            Event::InitApply(slice) => {
                self.coming.insert(slice.name_any(), slice);
                false
            }
            Event::InitDone => {
                self.whole = std::mem::take(&mut self.coming);
                true
            }
            Event::Apply(slice) => {
                self.whole.insert(slice.name_any(), slice);
                true
            }
            Event::Delete(slice) => self.whole.remove(&slice.name_any()).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    fn slice(name: &str) -> EndpointSlice {
        let mut slice = EndpointSlice::default();
        slice.metadata.name = Some(name.to_owned());
        slice
    }

    #[tokio::test]
    async fn a_server_that_takes_connections_and_says_nothing_is_given_up() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let url = format!("http://{}", server.local_addr().expect("is bound"));
        let config = kube::Config::new(url.parse().expect("is a URL"));
        let client = client(config, Duration::from_millis(50)).expect("is a client");
        let api: Api<EndpointSlice> = Api::namespaced(client, "cell-a");
        let params = kube::api::ListParams::default();
        let listed = timeout(Duration::from_secs(10), api.list(&params)).await;
        assert!(listed.expect("is given up").is_err());
    }

    #[test]
    fn a_list_that_is_not_whole_replaces_nothing() {
        let mut lists = Lists::default();
        assert!(lists.take(Event::Apply(slice("old"))));
        assert!(!lists.take(Event::Init));
        assert!(!lists.take(Event::InitApply(slice("new"))));
        assert_eq!(lists.whole.keys().collect::<Vec<_>>(), ["old"]);
        assert!(lists.take(Event::InitDone));
        assert_eq!(lists.whole.keys().collect::<Vec<_>>(), ["new"]);
        assert!(lists.take(Event::Delete(slice("new"))));
        assert!(!lists.take(Event::Delete(slice("new"))));
    }
}
