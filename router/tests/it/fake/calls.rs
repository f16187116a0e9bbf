//! Calls of gRPC at a fake cell, which come in HTTP/2. Their messages are bytes like any other.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_protocol::{Reason, fields};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Behaviour, Inner, Seen};

/// Whether the other side begins as HTTP/2 does.
pub(super) async fn are_calls(stream: &TcpStream) -> bool {
    let mut first = [0; 3];
    matches!(stream.peek(&mut first).await, Ok(3)) && &first == b"PRI"
}

pub(super) async fn serve(stream: TcpStream, inner: Arc<Inner>) {
    if *inner.behaviour.borrow() == Behaviour::GoAway {
        return leave(stream).await;
    }
    let most = *inner.most_streams.lock().expect("no test panics here");
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(most).initial_window_size(1 << 20);
    builder.initial_connection_window_size(1 << 24).max_send_buffer_size(1 << 20);
    let Ok(mut connection) = builder.handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(call(Arc::clone(&inner), request, respond));
    }
}

/// Says that it looks at no stream, once one has come, and that the client may ask elsewhere.
async fn leave(mut stream: TcpStream) {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut preface = [0; 24];
    let _ = stream.write_all(&settings).await;
    let _ = stream.read_exact(&mut preface).await;
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        let _ = stream.read_exact(&mut payload).await;
        if head[3] == 1 {
            let _ = stream.write_all(&goaway).await;
        }
    }
}

fn head(inner: &Inner) -> Response<()> {
    let head = Response::builder().header("content-type", "application/grpc").header("x-cell", &inner.name);
    head.body(()).expect("is legal")
}

fn trailers() -> HeaderMap {
    let ends = [("grpc-status", "0"), (fields::OUTCOME, fields::OUTCOME_RESTART), ("x-sum", "3")];
    ends.into_iter()
        .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
        .collect::<HeaderMap>()
}

async fn call(
    inner: Arc<Inner>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Option<()> {
    if request.method() == Method::GET {
        // Is asked whether it is ready, and is no call.
        return respond.send_response(Response::new(()), true).ok().map(drop);
    }
    let number = inner.hits.fetch_add(1, Ordering::SeqCst);
    let behaviour = inner.behaviour.borrow().clone();
    let (parts, mut body) = request.into_parts();
    let mut whole = BytesMut::new();
    let seen = |body: &BytesMut| Seen {
        target: parts.uri.to_string(),
        headers: parts.headers.clone(),
        body: body.clone().freeze(),
    };
    let saw = |seen| inner.seen.lock().expect("no test panics here").push_back(seen);
    match behaviour {
        Behaviour::Echo => {
            let mut stream = respond.send_response(head(&inner), false).ok()?;
            while let Some(Ok(data)) = body.data().await {
                body.flow_control().release_capacity(data.len()).ok()?;
                whole.extend_from_slice(&data);
                send(&mut stream, data).await?;
            }
            saw(seen(&whole));
            stream.send_trailers(trailers()).ok()
        }
        Behaviour::Endless => {
            let mut stream = respond.send_response(head(&inner), false).ok()?;
            loop {
                inner.sent.fetch_add(64 * 1024, Ordering::SeqCst);
                send(&mut stream, Bytes::from_static(&[b'x'; 64 * 1024])).await?;
            }
        }
        Behaviour::Hang => {
            let mut behaves = inner.behaviour.subscribe();
            tokio::select! {
                _ = behaves.wait_for(|other| *other != Behaviour::Hang) => {}
                _ = poll_fn(|context| respond.poll_reset(context)) => return None,
            }
            respond.send_response(head(&inner), false).ok()?.send_trailers(trailers()).ok()
        }
        // All that it has to say is in its head.
        Behaviour::Say(text) => {
            let mut head = head(&inner);
            head.headers_mut().insert("grpc-status", "5".parse().expect("legal"));
            head.headers_mut().insert("grpc-message", text.parse().expect("legal"));
            respond.send_response(head, true).ok().map(drop)
        }
        Behaviour::BreakOff => {
            let mut stream = respond.send_response(head(&inner), false).ok()?;
            stream.send_data(Bytes::from_static(b"thr"), false).ok()?;
            tokio::task::yield_now().await;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            Some(())
        }
        Behaviour::RefuseStreams => {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            Some(())
        }
        Behaviour::FailHalf if number.is_multiple_of(2) => {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            Some(())
        }
        Behaviour::Restart => {
            let reason = Reason::ServiceNotReady.as_str();
            let head = Response::builder().status(503).header(fields::OUTCOME, fields::OUTCOME_RESTART);
            let head = head.header(fields::REASON, reason).body(()).expect("is legal");
            respond.send_response(head, true).ok().map(drop)
        }
        _ => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            Some(())
        }
    }
}

async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Option<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
        stream.send_data(data.split_to(room.min(data.len())), false).ok()?;
    }
    Some(())
}
