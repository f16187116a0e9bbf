//! What stands between a socket that was accepted and HTTP: the PROXY protocol, then TLS. Who may say for whom it connects,
//! and what a client has to show, is the listener's to say.

mod certificates;
mod proxy;
mod stream;

use std::io;
use std::net::IpAddr;

use bulkhead_crds::router::ProxyProtocol;
use bulkhead_process::tls::server::{Server, subject};
use ipnet::IpNet;
use tokio::net::TcpStream;

pub(crate) use certificates::{ListenerCertificates, Served, Servers};
pub(crate) use stream::{Prefixed, Stream};

use crate::forwarded::{contain, networks};

/// How TLS begins: with a record of the kind handshake (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// What a listener has before HTTP.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Front {
    tls: Option<Server>,
    /// Who must say for whom it connects.
    proxies: Vec<IpNet>,
}

impl Front {
    /// # Errors
    /// Which network is none.
    pub(crate) fn new(tls: Option<Server>, proxy: Option<&ProxyProtocol>) -> Result<Self, String> {
        let from = proxy.map_or(&[][..], |proxy| &proxy.from);
        Ok(Self { tls, proxies: networks("proxyProtocol.from", from)? })
    }

    /// Whether connections begin with HTTP.
    pub(crate) fn is_open(&self) -> bool {
        self.tls.is_none() && self.proxies.is_empty()
    }
}

/// Who is at the other end, for as long as the connection lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// As a proxy says that may, else as the kernel says.
    pub(crate) address: IpAddr,
    /// Over TLS.
    pub(crate) secure: bool,
    /// Who it is by its certificate, if it showed one that says so.
    pub(crate) subject: Option<[u8; 32]>,
}

impl Client {
    /// By the address alone. One of IPv4 is the same however the socket writes it.
    pub(crate) fn at(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), secure: false, subject: None }
    }
}

/// Why a connection did not come to HTTP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(transparent)]
    Proxy(#[from] proxy::Wrong),
    #[error("this listener speaks TLS, and the connection does not begin with it")]
    NotTls,
    #[error("the TLS handshake failed: {0}")]
    Handshake(io::Error),
    #[error("the client closed before it had said enough")]
    Closed,
    #[error("it could not be read: {0}")]
    Broken(#[from] io::Error),
    #[error("PROXY header and TLS handshake took longer than limits.headerTimeout")]
    Late,
}

impl Unfit {
    /// As a label of metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Proxy(proxy::Wrong::NotThere) => "NoProxyHeader",
            Self::Proxy(proxy::Wrong::Malformed(_)) => "BadProxyHeader",
            Self::NotTls => "NotTls",
            Self::Handshake(_) => "HandshakeFailed",
            Self::Closed | Self::Broken(_) => "Closed",
            Self::Late => "Late",
        }
    }
}

/// A connection that did not come to HTTP, and its stream where a client can be told why.
pub(crate) struct Refused {
    pub(crate) why: Unfit,
    pub(crate) told: Option<TcpStream>,
}

impl From<Unfit> for Refused {
    fn from(why: Unfit) -> Self {
        Self { why, told: None }
    }
}

/// A connection that begins with HTTP.
pub(crate) fn plain(stream: TcpStream) -> Stream {
    Stream::Plain(Prefixed::new(stream))
}

/// Brings a connection to where HTTP begins. How long that may take is the caller's to say.
///
/// # Errors
/// Why it does not get there.
pub(crate) async fn enter(
    front: &Front,
    stream: TcpStream,
    peer: IpAddr,
) -> Result<(Stream, Client), Refused> {
    let mut stream = Prefixed::new(stream);
    let mut client = Client::at(peer);
    if contain(&front.proxies, client.address) {
        match header(&mut stream).await {
            Ok(source) => client.address = source.unwrap_or(client.address),
            Err(why) => return Err(refuse(stream, why)),
        }
    }
    let Some(tls) = &front.tls else { return Ok((Stream::Plain(stream), client)) };
    if stream.ahead().is_empty() && stream.read_ahead().await.map_err(Unfit::Broken)? == 0 {
        return Err(Unfit::Closed.into());
    }
    if stream.ahead().first() != Some(&HANDSHAKE) {
        return Err(refuse(stream, Unfit::NotTls));
    }
    let stream = tls.accept(stream).await.map_err(Unfit::Handshake)?;
    client.secure = true;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
    client.subject = certificate.and_then(subject);
    Ok((Stream::tls(stream), client))
}

/// Reads the PROXY header and takes it off.
async fn header(stream: &mut Prefixed) -> Result<Option<IpAddr>, Unfit> {
    loop {
        match proxy::read(stream.ahead())? {
            proxy::Header::Whole { length, source } => {
                stream.skip(length);
                return Ok(source);
            }
            proxy::Header::Partial => {
                if stream.read_ahead().await? == 0 {
                    return Err(Unfit::Closed);
                }
            }
        }
    }
}

/// Who begins with a letter is taken for a client that speaks HTTP, and hears why nobody answers. Nobody else would
/// understand it.
fn refuse(stream: Prefixed, why: Unfit) -> Refused {
    let speaks_http = stream.ahead().first().is_some_and(u8::is_ascii_uppercase)
        && matches!(why, Unfit::NotTls | Unfit::Proxy(proxy::Wrong::NotThere));
    Refused { told: speaks_http.then(|| stream.into_inner()), why }
}
