//! The way to the Kubernetes API, which gives up on a server that does not answer. What is asked is decided elsewhere.

use std::time::Duration;

use anyhow::Context as _;
use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapFutureLayer;

use crate::watches::WATCH_TIMEOUT;

/// Shorter than the margin of the lease, so that a write is with the server before others may lead.
const CONNECT: Duration = Duration::from_secs(2);
/// Between two parts of an answer. A quiet watch may have none before it ends: nobody promises it bookmarks.
const SILENCE: Duration = Duration::from_secs(WATCH_TIMEOUT as u64 + 10);
/// Until an answer begins, the time of slow webhooks included. That of a watch begins at once, however quiet it is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The client that the surroundings describe, which waits so long for an answer to begin.
///
/// # Errors
/// Nothing says where the API server is, or what says so cannot be read.
pub(crate) async fn connect(patience: Duration) -> anyhow::Result<Client> {
    let config = Config::infer().await.context("no way to the Kubernetes API is configured")?;
    Ok(client(config, patience)?)
}

fn client(mut config: Config, patience: Duration) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    // Else the time that a connection lay unused would count.
    config.reset_reader_on_write = true;
    // A write is tried again only where it is asked again whether this process leads.
    config.default_retry = false;
    let in_time = MapFutureLayer::new(move |answer| in_time(patience, answer));
    Ok(ClientBuilder::try_from(config)?.with_layer(&in_time).build())
}

async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    tokio::time::timeout(patience, answer).await?
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::{Api, WatchParams};

    use super::*;
    use crate::fixture;

    /// A client of a server that says these bytes and then nothing.
    async fn client_of(answer: &'static str, patience: Duration) -> Api<Namespace> {
        let address = fixture::answering(answer).await;
        let url = format!("http://{address}").parse().expect("a URL");
        Api::all(client(Config::new(url), patience).expect("is configured"))
    }

    #[tokio::test]
    async fn a_server_that_accepts_and_never_answers_is_given_up() {
        let asked = client_of("", Duration::from_millis(50)).await;
        let ended = tokio::time::timeout(PATIENCE, asked.get("x")).await;
        assert!(ended.expect("it ends").is_err());
    }

    #[tokio::test]
    async fn a_watch_may_be_quiet_for_longer_than_an_answer_takes_but_not_for_ever() {
        let quiet = client_of("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", PATIENCE).await;
        let mut events = quiet.watch(&WatchParams::default(), "0").await.expect("it begins").boxed();
        // Nothing comes any more that would take real time.
        tokio::time::pause();
        let heard = tokio::time::timeout(PATIENCE * 4, events.next()).await;
        assert!(heard.is_err(), "it ended: {heard:?}");
        let heard =
            tokio::time::timeout(SILENCE, events.next()).await.expect("a dead connection is given up");
        assert!(heard.is_none_or(|event| event.is_err()), "nothing was said");
    }
}
