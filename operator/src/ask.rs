//! Short questions over HTTP to routers and cell-runtimes: one connection each, with a time-out for the whole.

use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_process::connect::{Connector, http1};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;

const CONNECT: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(2);

/// The whole body of an answer.
///
/// # Errors
/// What went wrong, with the address.
pub(crate) async fn fetch(address: SocketAddr, path: &str, limit: usize) -> Result<Bytes, String> {
    in_time(address, async {
        let body = get(address, path).await?;
        Ok(Limited::new(body, limit)
            .collect()
            .await
            .map_err(|error| format!("{address}: {error}"))?
            .to_bytes())
    })
    .await
}

/// The first line of an answer that need not end.
///
/// # Errors
/// What went wrong, with the address.
pub(crate) async fn first_line(address: SocketAddr, path: &str, limit: usize) -> Result<Vec<u8>, String> {
    in_time(address, async {
        let mut body = get(address, path).await?;
        let mut line = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("{address}: {error}"))?;
            let Ok(data) = frame.into_data() else { continue };
            if let Some(end) = data.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&data[..end]);
                return Ok(line);
            }
            line.extend_from_slice(&data);
            if line.len() > limit {
                return Err(format!("{address}: a line of more than {limit} bytes"));
            }
        }
        Err(format!("{address} ends before its first line does"))
    })
    .await
}

async fn in_time<T>(
    address: SocketAddr,
    asking: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let timed = tokio::time::timeout(ANSWER, asking).await;
    timed.unwrap_or_else(|_| Err(format!("{address} does not answer in time")))
}

async fn get(address: SocketAddr, path: &str) -> Result<Incoming, String> {
    let text = |error: &dyn std::fmt::Display| format!("{address}: {error}");
    let stream = Connector::plain().connect(address, CONNECT).await.map_err(|error| text(&error))?;
    let mut sender = http1(stream).await.map_err(|error| text(&error))?;
    let request = Request::get(path)
        .header("host", address.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(|error| text(&error))?;
    let response = sender.send_request(request).await.map_err(|error| text(&error))?;
    if !response.status().is_success() {
        return Err(format!("{address} answers {}", response.status()));
    }
    Ok(response.into_body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::answering;

    #[tokio::test]
    async fn the_first_line_is_enough_of_a_stream_that_goes_on() {
        let address =
            answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n")
                .await;
        assert_eq!(first_line(address, "/", 100).await, Ok(b"one".to_vec()));
    }

    #[tokio::test]
    async fn a_whole_answer_is_read_up_to_its_limit_and_an_error_is_one() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(fetch(answering(answer).await, "/", 5).await, Ok(Bytes::from_static(b"hello")));
        assert!(fetch(answering(answer).await, "/", 4).await.is_err());
        let refused = fetch(answering("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await, "/", 5).await;
        assert!(refused.is_err_and(|error| error.contains("503")));
    }
}
