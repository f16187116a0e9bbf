//! Addresses of endpoints that are written by name, for cells outside the cluster. Asked for when a table is built, never
//! by a request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

/// How long a name may take. What is not known by then is asked for again with the next table.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer holds, in milliseconds.
const HOLDS_MS: u64 = 30_000;

/// What each `host:port` stood for when it was last asked for.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<String, (Vec<SocketAddr>, u64)>,
}

impl Names {
    /// Asks for every name that is not known or was asked for too long ago. An answer that does not come leaves the
    /// one before.
    pub(crate) async fn resolve(&mut self, endpoints: impl Iterator<Item = &String>, now_ms: u64) {
        let wanted: Vec<&String> =
            endpoints.filter(|endpoint| endpoint.parse::<SocketAddr>().is_err()).collect();
        self.known.retain(|endpoint, _| wanted.contains(&endpoint));
        let asked: Vec<&String> = wanted
            .into_iter()
            .filter(|endpoint| self.known.get(*endpoint).is_none_or(|(_, at)| now_ms - at >= HOLDS_MS))
            .collect();
        let answers = asked.into_iter().map(|endpoint| async move {
            let answer = timeout(PATIENCE, tokio::net::lookup_host(endpoint.as_str())).await;
            let found: Option<Vec<SocketAddr>> = match answer {
                Ok(Ok(found)) => Some(found.collect()),
                Ok(Err(error)) => {
                    tracing::warn!(endpoint, %error, "the name of an endpoint cannot be resolved");
                    None
                }
                Err(_) => {
                    tracing::warn!(endpoint, "the name of an endpoint was not resolved in time");
                    None
                }
            };
            (endpoint.clone(), found)
        });
        for (endpoint, found) in join_all(answers).await {
            let known = self.known.entry(endpoint).or_default();
            known.1 = now_ms;
            if let Some(mut found) = found {
                found.sort_unstable();
                known.0 = found;
            }
        }
    }

    /// Whether an answer is due to be asked for again.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.known.values().any(|(_, at)| now_ms - at >= HOLDS_MS)
    }

    pub(crate) fn addresses(&self, endpoint: &str) -> Vec<SocketAddr> {
        match endpoint.parse() {
            Ok(address) => vec![address],
            Err(_) => self.known.get(endpoint).map(|(found, _)| found.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_asking_and_names_are_asked_for_again_after_a_while() {
        let mut names = Names::default();
        let endpoints = ["127.0.0.1:8080".to_owned(), "localhost:8080".to_owned()];
        names.resolve(endpoints.iter(), 0).await;
        assert_eq!(names.addresses("127.0.0.1:8080"), [SocketAddr::from(([127, 0, 0, 1], 8080))]);
        assert!(names.addresses("localhost:8080").iter().all(|address| address.port() == 8080));
        assert!(!names.is_due(HOLDS_MS - 1));
        assert!(names.is_due(HOLDS_MS));
    }
}
