//! Probes in HTTP/2, of services that speak nothing else: a path that is asked for as in HTTP/1.1, or gRPC's own way to ask
//! whether a server serves (https://github.com/grpc/grpc/blob/master/doc/health-checking.md).

use anyhow::{Context as _, bail};
use bulkhead_process::connect::Stream;
use bulkhead_protocol::grpc;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::MAX_ANSWER;
use crate::service::Pod;

/// The method by which gRPC asks.
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// An empty message, which asks for the server as a whole.
const WHOLE: &[u8] = &[0; 5];
/// A message whose one field, `status`, says SERVING.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

pub(super) type Connection = SendRequest<Full<Bytes>>;

pub(super) async fn open(stream: Stream) -> anyhow::Result<Connection> {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // It ends with the sender; what went wrong with it the next probe finds.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

pub(super) async fn ask(connection: &mut Connection, pod: &Pod, path: &str) -> anyhow::Result<StatusCode> {
    connection.ready().await?;
    let is_call = path == CHECK;
    let mut request = Request::new(Full::new(Bytes::from_static(if is_call { WHOLE } else { &[] })));
    *request.uri_mut() = format!("http://{}{path}", pod.address).parse()?;
    let fields = request.headers_mut();
    fields.insert(header::USER_AGENT, header::HeaderValue::from_static("bulkhead-cell-runtime"));
    if is_call {
        fields.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(grpc::MEDIA_TYPE));
        fields.insert(header::TE, header::HeaderValue::from_static("trailers"));
        *request.method_mut() = Method::POST;
    }
    let response = connection.send_request(request).await?;
    if is_call { serving(response).await } else { answered(response).await }
}

async fn answered(response: Response<Incoming>) -> anyhow::Result<StatusCode> {
    let status = response.status();
    // A server of gRPC answers 200 to whatever it does not know.
    if response.headers().contains_key(grpc::STATUS) {
        bail!("it speaks gRPC, which is asked by readinessPath {CHECK}");
    }
    // The rest of an answer that is too long goes with its stream.
    let _ = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(status)
}

/// What it says, as a status of HTTP.
async fn serving(response: Response<Incoming>) -> anyhow::Result<StatusCode> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Ok(head.status);
    }
    let read = Limited::new(body, MAX_ANSWER).collect().await;
    let read = read.map_err(|error| anyhow::anyhow!("its answer broke off: {error}"))?;
    let said = |fields: &HeaderMap| fields.get(grpc::STATUS).cloned();
    let code = read.trailers().and_then(said).or_else(|| said(&head.headers));
    let code = code.context("its answer has no grpc-status")?;
    if code != "0" {
        bail!("its grpc-status is {code:?}");
    }
    let is_serving = read.to_bytes() == SERVING;
    Ok(if is_serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}
