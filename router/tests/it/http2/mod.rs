//! Clients that speak HTTP/2: one that keeps to it, and frames sent as they are for what no client would send.

mod calls;
mod floods;
mod refusals;
mod serving;
#[cfg(feature = "h2spec")]
mod spec;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::client::Answer;
use crate::world::PATIENCE;

pub(crate) use calls::call;

/// One connection.
pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    /// Ends with the connection.
    pub(crate) driven: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.expect("connects")).await
    }

    pub(crate) async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Self {
        let mut builder = h2::client::Builder::new();
        Self::with(builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24), stream).await
    }

    pub(crate) async fn with<S>(builder: &h2::client::Builder, stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = timeout(PATIENCE, builder.handshake(stream)).await.expect("in time");
        let (sender, connection) = shaken.expect("speaks HTTP/2");
        Self { sender, driven: tokio::spawn(connection) }
    }

    /// Opens a stream as soon as the other side allows for one more.
    pub(crate) async fn open(
        &self,
        request: Request<()>,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let ready = timeout(PATIENCE, self.sender.clone().ready()).await.expect("takes another in time");
        ready?.send_request(request, ends)
    }

    pub(crate) async fn try_send(
        &self,
        request: Request<()>,
        body: impl Into<Bytes>,
    ) -> Result<(Answer, Option<HeaderMap>), h2::Error> {
        let body = body.into();
        let (response, mut stream) = self.open(request, body.is_empty()).await?;
        let sends = async {
            if !body.is_empty() {
                write(&mut stream, body).await;
            }
        };
        let answered = async {
            let (head, body) = response.await?.into_parts();
            let (body, trailers) = read(body).await?;
            Ok((Answer { status: head.status, headers: head.headers, body }, trailers))
        };
        timeout(PATIENCE, async { tokio::join!(sends, answered).1 }).await.expect("is answered in time")
    }

    pub(crate) async fn send(&self, request: Request<()>, body: impl Into<Bytes>) -> Answer {
        self.try_send(request, body).await.expect("is answered").0
    }
}

/// Sends a body to its end, as far as the other side takes it. Whether it took all.
async fn write(stream: &mut SendStream<Bytes>, mut body: Bytes) -> bool {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(Ok(room)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await else {
            return false;
        };
        let piece = body.split_to(room.min(body.len()));
        if stream.send_data(piece, body.is_empty()).is_err() {
            return false;
        }
    }
    true
}

/// Reads a body to its end.
pub(crate) async fn read(mut body: RecvStream) -> Result<(Bytes, Option<HeaderMap>), h2::Error> {
    let mut whole = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        whole.extend_from_slice(&piece);
    }
    Ok((whole.freeze(), body.trailers().await?))
}

pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test{path}")).body(()).expect("a legal request")
}

pub(crate) fn post(path: &str) -> Request<()> {
    Request::post(format!("http://test{path}")).body(()).expect("a legal request")
}

/// The reason of a reset or a GOAWAY that the other side sent.
pub(crate) fn reason(error: &h2::Error) -> (bool, Option<Reason>) {
    (error.is_remote(), error.reason())
}

/// Kinds of frames (RFC 9113, section 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A connection on which frames are sent as a test has them.
pub(crate) struct Frames {
    stream: TcpStream,
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// What is told by the 32 bits at that place.
    pub(crate) fn word(&self, at: usize) -> u32 {
        let bytes = self.payload.get(at..at + 4).expect("is there");
        u32::from_be_bytes(bytes.try_into().expect("are four"))
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(payload.len()).expect("fits").to_be_bytes();
    [&[high, middle, low, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// A block of fields, each as it is: without index and Huffman code (RFC 7541, section 6.2.2).
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        assert!(text.len() < 127, "would take more than a byte for its length");
        [&[text.len() as u8][..], text.as_bytes()].concat()
    };
    fields.iter().flat_map(|(name, value)| [&[0][..], &text(name), &text(value)].concat()).collect()
}

/// Fields that make a request.
pub(crate) const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test")];

impl Frames {
    /// Begins with the preface and settings of its own: no more than the defaults.
    pub(crate) async fn begin(address: SocketAddr) -> Self {
        let mut frames = Self { stream: TcpStream::connect(address).await.expect("connects") };
        frames.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        frames.send(&frame(SETTINGS, 0, 0, &[])).await;
        frames
    }

    /// Sends what the other side takes: it may have closed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next frame; none at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        let read =
            timeout(PATIENCE, self.stream.read_exact(&mut head)).await.expect("something comes in time");
        read.ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// The next frame of that kind; none at the end.
    pub(crate) async fn until(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    /// Why the other side ends the connection.
    pub(crate) async fn goodbye(&mut self) -> Option<Reason> {
        self.until(GOAWAY).await.map(|frame| frame.word(4).into())
    }

    /// That the other side closes it without more words than GOAWAY.
    pub(crate) async fn closes(&mut self) {
        let closes = async { while self.next().await.is_some() {} };
        timeout(Duration::from_secs(30), closes).await.expect("closes in time");
    }
}
