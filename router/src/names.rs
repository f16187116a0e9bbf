//! Addresses of endpoints that are written by name, for cells outside the cluster. Asked for when a table is built and
//! again as time passes, never by a request.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a name may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer holds, in milliseconds.
const HOLDS_MS: u64 = 30_000;
/// After how long a name that had no answer is asked for again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// What each `host:port` stood for when it was last asked for.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<String, Name>,
    asked: JoinSet<Answer>,
}

#[derive(Default)]
struct Name {
    /// None until the first answer, or until there was none.
    addresses: Option<Vec<SocketAddr>>,
    failing: bool,
    /// When to ask again; none while it is asked for.
    due_ms: Option<u64>,
}

type Answer = (String, io::Result<Vec<SocketAddr>>);

impl Names {
    /// Takes all names of a table, and waits for those that are new: without their addresses it would take cells out.
    pub(crate) async fn resolve(&mut self, endpoints: impl Iterator<Item = &String>, now_ms: u64) {
        let wanted: HashSet<&String> =
            endpoints.filter(|endpoint| endpoint.parse::<SocketAddr>().is_err()).collect();
        self.known.retain(|endpoint, _| wanted.contains(endpoint));
        for endpoint in wanted {
            if !self.known.contains_key(endpoint) {
                self.known.insert(endpoint.clone(), Name::default());
                self.asked.spawn(ask(endpoint.clone()));
            }
        }
        while self.known.values().any(|name| name.addresses.is_none())
            && let Some(Ok(answer)) = self.asked.join_next().await
        {
            self.take(answer, now_ms);
        }
    }

    /// Asks again for what is due, and takes the answers that have come. Whether any address is another now.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        for (endpoint, name) in &mut self.known {
            if name.due_ms.take_if(|due| *due <= now_ms).is_some() {
                self.asked.spawn(ask(endpoint.clone()));
            }
        }
        let mut changed = false;
        while let Some(Ok(answer)) = self.asked.try_join_next() {
            changed |= self.take(answer, now_ms);
        }
        changed
    }

    /// Takes an answer; one that did not come leaves the one before.
    fn take(&mut self, (endpoint, answer): Answer, now_ms: u64) -> bool {
        let Some(name) = self.known.get_mut(&endpoint) else { return false };
        let (addresses, holds_ms) = match answer {
            Ok(addresses) => {
                name.failing = false;
                (addresses, HOLDS_MS)
            }
            Err(error) => {
                if !std::mem::replace(&mut name.failing, true) {
                    tracing::warn!(endpoint, %error, "the name of an endpoint cannot be resolved; it is tried until it can");
                }
                (name.addresses.clone().unwrap_or_default(), RETRY_MS)
            }
        };
        name.due_ms = Some(now_ms + holds_ms);
        let changed = name.addresses.as_ref() != Some(&addresses);
        name.addresses = Some(addresses);
        changed
    }

    pub(crate) fn addresses(&self, endpoint: &str) -> Vec<SocketAddr> {
        match endpoint.parse() {
            Ok(address) => vec![address],
            Err(_) => self.known.get(endpoint).and_then(|name| name.addresses.clone()).unwrap_or_default(),
        }
    }
}

async fn ask(endpoint: String) -> Answer {
    let answer = timeout(PATIENCE, tokio::net::lookup_host(endpoint.as_str())).await;
    let found = answer.unwrap_or_else(|late| Err(late.into())).map(|found| {
        let mut found: Vec<SocketAddr> = found.collect();
        found.sort_unstable();
        found
    });
    (endpoint, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is asked for once more at that time, and what comes of it.
    async fn asks(names: &mut Names, now_ms: u64) -> bool {
        names.refresh(now_ms);
        match names.asked.join_next().await {
            Some(answer) => {
                names.take(answer.expect("is asked to the end"), now_ms);
                true
            }
            None => false,
        }
    }

    #[tokio::test]
    async fn addresses_need_no_asking_and_names_are_asked_for_again_after_a_while() {
        let mut names = Names::default();
        // The other is a name to us, which the system knows without a resolver that might take its time.
        let endpoints = ["127.0.0.1:8080", "127.1:8080"].map(str::to_owned);
        let loopback = [SocketAddr::from(([127, 0, 0, 1], 8080))];
        names.resolve(endpoints.iter(), 0).await;
        assert!(endpoints.iter().all(|endpoint| names.addresses(endpoint) == loopback));
        assert!(!asks(&mut names, HOLDS_MS - 1).await);
        assert!(asks(&mut names, HOLDS_MS).await);
        assert_eq!(names.addresses("127.1:8080"), loopback);
    }

    #[tokio::test]
    async fn a_name_that_had_no_answer_is_asked_for_again_soon_and_keeps_the_answer_before() {
        let mut names = Names::default();
        // No port, so that no resolver is needed to find no address.
        let broken = "localhost:none".to_owned();
        names.resolve([&broken].into_iter(), 0).await;
        assert_eq!(names.addresses(&broken), []);
        assert!(!asks(&mut names, RETRY_MS - 1).await);
        assert!(asks(&mut names, RETRY_MS).await);
        assert!(!asks(&mut names, 2 * RETRY_MS - 1).await);

        let address = SocketAddr::from(([127, 0, 0, 1], 8080));
        assert!(names.take((broken.clone(), Ok(vec![address])), 2 * RETRY_MS));
        assert!(!asks(&mut names, RETRY_MS + HOLDS_MS).await);
        assert!(asks(&mut names, 2 * RETRY_MS + HOLDS_MS).await);
        assert_eq!(names.addresses(&broken), [address]);
    }
}
