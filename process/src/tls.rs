//! TLS as a client: what certificates in PEM become, and the handshake; as a server in [`server`]. Where the files lie and
//! when they are read is the caller's; ours is rustls with ring and nothing of it is chosen elsewhere.

pub mod server;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long a server may take to say that it takes our certificate. In TLS 1.3 it looks at it after the handshake is
/// over for us (RFC 8446, section 4.4.4), and one that hands out no tickets never says so.
const ACCEPTANCE: Duration = Duration::from_millis(100);

/// Whom to trust and who we are, for connections made from now on. Two are equal when they are copies of one.
#[derive(Clone, Debug)]
pub struct Client {
    offered: Arc<ClientConfig>,
    /// The same, which offers HTTP/2 alone.
    http2: Arc<ClientConfig>,
}

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.offered, &other.offered)
    }
}

/// Our own certificate, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, then those between it and its authority.
    pub certificates: Vec<u8>,
    pub key: Vec<u8>,
}

/// Why certificates are of no use.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("there is no certificate in the PEM of the authorities")]
    NoAuthority,
    #[error("the PEM of the authorities cannot be read: {0}")]
    Authority(String),
    #[error("there is no certificate in the PEM of our own")]
    NoCertificate,
    #[error("the PEM of our own certificate cannot be read: {0}")]
    Certificate(String),
    #[error("the PEM of our key cannot be read: {0}")]
    Key(String),
    #[error("certificate and key cannot be used together: {0}")]
    Identity(rustls::Error),
    #[error("{0}")]
    Provider(rustls::Error),
}

impl Client {
    /// Trusts the authorities in that PEM and no other, and shows the identity to who asks for one. It offers
    /// HTTP/1.1 alone.
    ///
    /// # Errors
    /// What of it cannot be used.
    pub fn new(authorities: &[u8], identity: Option<&Identity>) -> Result<Self, Unusable> {
        let roots = self::authorities(authorities)?;
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .map_err(Unusable::Provider)?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let (certificates, key) = identity.read()?;
                config.with_client_auth_cert(certificates, key).map_err(Unusable::Identity)?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut http2 = config.clone();
        http2.alpn_protocols = vec![server::HTTP2.to_vec()];
        Ok(Self { offered: Arc::new(config), http2: Arc::new(http2) })
    }

    /// The same, which offers HTTP/2 alone.
    pub(crate) fn for_http2(&self) -> Self {
        Self { offered: Arc::clone(&self.http2), http2: Arc::clone(&self.http2) }
    }

    /// Shakes hands, and waits until the server has taken our certificate or its time to refuse is over: what is sent
    /// before may have been read by nobody, and nobody could tell.
    pub(crate) async fn shake_hands(
        &self,
        stream: TcpStream,
        name: ServerName<'static>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut stream = TlsConnector::from(Arc::clone(&self.offered)).connect(name, stream).await?;
        let refuses_late = stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if refuses_late && let Ok(Err(error)) = timeout(ACCEPTANCE, accepted(&mut stream)).await {
            return Err(error);
        }
        Ok(stream)
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem) {
        let authority = authority.map_err(|error| Unusable::Authority(error.to_string()))?;
        roots.add(authority).map_err(|error| Unusable::Authority(error.to_string()))?;
    }
    if roots.is_empty() { Err(Unusable::NoAuthority) } else { Ok(roots) }
}

impl Identity {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Unusable> {
        let certificates = CertificateDer::pem_slice_iter(&self.certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Unusable::Certificate(error.to_string()))?;
        if certificates.is_empty() {
            return Err(Unusable::NoCertificate);
        }
        let key =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| Unusable::Key(error.to_string()))?;
        Ok((certificates, key))
    }
}

/// Reads until a ticket for the next session comes, which a server sends once it has verified ours.
async fn accepted(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let mut byte = [0];
    poll_fn(|context| {
        let mut buffer = ReadBuf::new(&mut byte);
        match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the server closed, or spoke first, right after the handshake",
            ))),
            Poll::Pending if stream.get_ref().1.tls13_tickets_received() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(authorities: &str, identity: Option<(&str, &str)>, words: &str) {
        let identity = identity.map(|(certificates, key)| Identity {
            certificates: certificates.as_bytes().to_vec(),
            key: key.as_bytes().to_vec(),
        });
        let error = Client::new(authorities.as_bytes(), identity.as_ref()).expect_err("is of no use");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn what_is_no_certificate_is_named() {
        check("", None, "no certificate in the PEM of the authorities");
        check(
            "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n",
            None,
            "of the authorities cannot",
        );
        check(
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            None,
            "of the authorities cannot",
        );
    }
}
