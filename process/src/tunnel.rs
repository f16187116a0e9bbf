//! Tunnels (CONNECT; RFC 9110, section 9.3.6): being asked for one, asking a proxy for one, and carrying bytes until it
//! ends. Who may have a tunnel, and where to, is the caller's.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use crate::connect::{Stream, http1};

/// How long the head that asks for a tunnel may take.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of that head.
const HEAD_BYTES: usize = 16 * 1024;
/// Bytes of a refusal that are passed on.
const REFUSAL_BYTES: usize = 64 * 1024;
/// Bytes that are carried at once.
const BUFFER: usize = 16 * 1024;
/// Looks at whether anything moved, in one idle time.
const LOOKS: u32 = 8;

/// Where a tunnel leads.
pub struct Far<S, H> {
    pub stream: S,
    /// How long it may carry nothing before it is closed; up to an eighth more.
    pub idle: Option<Duration>,
    /// Let go of at the end of the tunnel.
    pub held: H,
}

/// Serves one connection: reads what is asked for, lets `open` decide, and carries bytes until either side ends or nothing
/// moves. One tunnel a connection; what asks for anything else, `open` has to refuse.
pub async fn serve<I, S, H, F>(stream: I, open: impl Fn(Parts) -> F)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<Far<S, H>, Response<String>>>,
{
    let opened: Mutex<Option<(OnUpgrade, Far<S, H>)>> = Mutex::new(None);
    let connection = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|mut request: Request<Incoming>| {
                let near = hyper::upgrade::on(&mut request);
                let asked = open(request.into_parts().0);
                let opened = &opened;
                async move {
                    Ok::<_, Infallible>(match asked.await {
                        Err(refusal) => refusal,
                        Ok(far) => {
                            if let Ok(mut opened) = opened.lock() {
                                *opened = Some((near, far));
                            }
                            Response::new(String::new())
                        }
                    })
                }
            }),
        )
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection that may ask for a tunnel ended with an error");
    }
    let Some((near, far)) = opened.into_inner().unwrap_or_default() else { return };
    let Ok(near) = near.await else { return };
    if let Err(error) = carry(TokioIo::new(near), far.stream, far.idle).await {
        tracing::debug!(%error, "a tunnel ended with an error");
    }
    drop(far.held);
}

/// What is asked for, `host:port`, where it is a tunnel.
pub fn target(asked: &Parts) -> Option<&str> {
    let authority = asked.uri.authority().filter(|_| asked.method == Method::CONNECT)?;
    authority.port().is_some().then(|| authority.as_str())
}

/// What a proxy says to who asks for a tunnel.
pub enum Answer {
    Open(TokioIo<Upgraded>),
    Refused(Response<String>),
}

/// Asks the proxy at the other end of that connection for a tunnel to `target`, which is `host:port`.
///
/// # Errors
/// When the target is none, or what comes back is no HTTP.
pub async fn ask(proxy: Stream, target: &str, headers: HeaderMap) -> io::Result<Answer> {
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = Uri::try_from(target).map_err(io::Error::other)?;
    *request.headers_mut() = headers;
    let host = target.try_into().map_err(io::Error::other)?;
    request.headers_mut().insert(hyper::header::HOST, host);
    let mut sender = http1(proxy).await.map_err(io::Error::other)?;
    let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
    if response.status().is_success() {
        let opened = hyper::upgrade::on(&mut response).await.map_err(io::Error::other)?;
        return Ok(Answer::Open(TokioIo::new(opened)));
    }
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, REFUSAL_BYTES).collect().await.map_err(io::Error::other)?.to_bytes();
    Ok(Answer::Refused(Response::from_parts(parts, String::from_utf8_lossy(&body).into_owned())))
}

/// Carries bytes both ways until both sides have ended.
///
/// # Errors
/// When either side breaks, or nothing moves for so long: `TimedOut`.
async fn carry<A, B>(near: A, far: B, idle: Option<Duration>) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let moved = AtomicU64::new(0);
    let (near_reads, near_writes) = tokio::io::split(near);
    let (far_reads, far_writes) = tokio::io::split(far);
    let both = async {
        tokio::try_join!(one_way(near_reads, far_writes, &moved), one_way(far_reads, near_writes, &moved))
    };
    let both = pin!(both);
    tokio::select! {
        ended = both => ended.map(|((), ())| ()),
        () = quiet(&moved, idle) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moved for too long")),
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let mut left = &buffer[..length];
        while !left.is_empty() {
            let written = to.write(left).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            moved.fetch_add(1, Ordering::Relaxed);
            left = &left[written..];
        }
        to.flush().await?;
    }
}

/// Comes back once nothing has moved for so long.
async fn quiet(moved: &AtomicU64, idle: Option<Duration>) {
    let Some(idle) = idle else { return std::future::pending().await };
    let mut seen = moved.load(Ordering::Relaxed);
    let mut quiet = 0;
    while quiet < LOOKS {
        sleep(idle / LOOKS).await;
        let now = moved.load(Ordering::Relaxed);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn bytes_are_carried_both_ways_and_an_end_is_passed_on() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(carry(near, far, None));
        client.write_all(b"ping").await.expect("writes");
        client.shutdown().await.expect("ends");
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.expect("hears it, and the end");
        server.write_all(b"pong").await.expect("writes");
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("hears the answer");
        assert_eq!((heard, answer), (b"ping".to_vec(), b"pong".to_vec()));
        carried.await.expect("ends").expect("ends well");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_closed_when_nothing_moves_and_not_before() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(carry(near, far, Some(Duration::from_secs(60))));
        for _ in 0..5 {
            sleep(Duration::from_secs(50)).await;
            client.write_all(b"x").await.expect("is open");
            assert_eq!(server.read_u8().await.expect("is open"), b'x');
        }
        sleep(Duration::from_secs(59)).await;
        assert!(!carried.is_finished());
        sleep(Duration::from_secs(10)).await;
        let ended = carried.await.expect("ends").expect_err("ends for a reason");
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn only_connect_with_host_and_port_asks_for_a_tunnel() {
        let check = |method: Method, uri: &'static str, expected: Option<&str>| {
            let (mut parts, ()) = Request::new(()).into_parts();
            (parts.method, parts.uri) = (method, Uri::from_static(uri));
            assert_eq!(target(&parts), expected, "{uri}");
        };
        check(Method::CONNECT, "time.example:123", Some("time.example:123"));
        check(Method::CONNECT, "[::1]:443", Some("[::1]:443"));
        check(Method::CONNECT, "time.example", None);
        check(Method::CONNECT, "/time", None);
        check(Method::GET, "http://time.example:80/", None);
    }
}
