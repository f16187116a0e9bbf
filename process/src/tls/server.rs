//! TLS as a server: certificates by the name that a client asks for, whom clients' own must come from, and who a client is.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use super::{Identity, Unusable};

/// What may be spoken over a connection, best first (RFC 7301). A client that names none gets HTTP/1.1.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// The name of HTTP/2 (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// A certificate with its key, and the names that it is for.
#[derive(Clone, Debug)]
pub struct Certified {
    key: Arc<CertifiedKey>,
    names: Arc<[String]>,
}

impl Certified {
    /// # Errors
    /// What of it cannot be used, or that key and certificate do not belong together.
    pub fn new(identity: &Identity) -> Result<Self, Unusable> {
        let (certificates, key) = identity.read()?;
        let names = match certificates.first().map(EndEntityCert::try_from) {
            Some(Ok(first)) => first.valid_dns_names().map(str::to_ascii_lowercase).collect(),
            Some(Err(error)) => return Err(Unusable::Certificate(error.to_string())),
            None => return Err(Unusable::NoCertificate),
        };
        let key = CertifiedKey::from_der(certificates, key, &ring::default_provider());
        Ok(Self { key: Arc::new(key.map_err(Unusable::Identity)?), names })
    }

    /// DNS names of its subjectAltName (RFC 5280, section 4.2.1.6), in small letters; `*.` stands for one label.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// Two are equal when they are copies of one.
impl PartialEq for Certified {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.key, &other.key)
    }
}

/// Whom certificates must come from. Two are equal when they are copies of one.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<RootCertStore>);

impl Authorities {
    /// # Errors
    /// When the PEM has no authority, or one that cannot be read.
    pub fn new(pem: &[u8]) -> Result<Self, Unusable> {
        super::authorities(pem).map(|roots| Self(Arc::new(roots)))
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Whose certificates a server takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Clients {
    pub authorities: Authorities,
    /// Whether one without any is let in.
    pub optional: bool,
}

/// The keys of session tickets: made anew every six hours, and each good for twelve. Servers that share them let in who
/// was let in by another, so that whoever asks clients for certificates has its own.
#[derive(Clone, Debug)]
pub struct Tickets(Arc<dyn ProducesTickets>);

impl Tickets {
    /// # Errors
    /// When the system gives no random numbers.
    pub fn new() -> Result<Self, Unusable> {
        ring::Ticketer::new().map(Self).map_err(Unusable::Provider)
    }
}

/// The oldest version of TLS that a client may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oldest {
    #[default]
    V1_2,
    V1_3,
}

static NEWEST: &[&SupportedProtocolVersion] = &[&version::TLS13];

impl Oldest {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::V1_2 => rustls::ALL_VERSIONS,
            Self::V1_3 => NEWEST,
        }
    }
}

/// How connections are taken from now on. Two are equal when they are copies of one.
#[derive(Clone, Debug)]
pub struct Server(Arc<ServerConfig>);

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Server {
    /// Shows these certificates, each for the names beside it or, without any, for its own. Nothing is read before a
    /// handshake is over (no 0-RTT, which who listens in could send again: RFC 8446, section 8).
    ///
    /// # Errors
    /// When there is no certificate, or the clients' authorities cannot be used.
    pub fn new(
        shown: &[(Certified, &[String])],
        clients: Option<&Clients>,
        oldest: Oldest,
        tickets: &Tickets,
    ) -> Result<Self, Unusable> {
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(oldest.versions())
            .map_err(Unusable::Provider)?;
        let config = match clients {
            None => config.with_no_client_auth(),
            Some(clients) => {
                let roots = Arc::clone(&clients.authorities.0);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = if clients.optional { verifier.allow_unauthenticated() } else { verifier };
                let verifier = verifier.build().map_err(|error| Unusable::Authority(error.to_string()))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_cert_resolver(Arc::new(ByName::new(shown)?));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.ticketer = Arc::clone(&tickets.0);
        // The other way to resume keeps every session in memory, behind a lock.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(Arc::new(config)))
    }

    /// Shakes hands. The caller says how long that may take.
    ///
    /// # Errors
    /// What the kernel or TLS said; the client was told in an alert.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        TlsAcceptor::from(Arc::clone(&self.0)).accept(stream).await
    }
}

/// Certificates by the names that clients ask for.
#[derive(Debug)]
struct ByName {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// By what follows `*.`.
    wildcard: HashMap<String, Arc<CertifiedKey>>,
    first: Arc<CertifiedKey>,
}

impl ByName {
    fn new(shown: &[(Certified, &[String])]) -> Result<Self, Unusable> {
        let (first, _) = shown.first().ok_or(Unusable::NoCertificate)?;
        let mut by_name =
            Self { exact: HashMap::new(), wildcard: HashMap::new(), first: Arc::clone(&first.key) };
        for (certified, hosts) in shown {
            let names = if hosts.is_empty() { certified.names() } else { hosts };
            for name in names {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut by_name.wildcard, parent),
                    None => (&mut by_name.exact, name.as_str()),
                };
                map.entry(name.to_owned()).or_insert_with(|| Arc::clone(&certified.key));
            }
        }
        Ok(by_name)
    }

    fn find(&self, asked: Option<&str>) -> &Arc<CertifiedKey> {
        let Some(name) = asked.map(str::to_ascii_lowercase) else { return &self.first };
        let by_wildcard = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(&name).or_else(by_wildcard).unwrap_or(&self.first)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.find(hello.server_name())))
    }
}

/// Who a client is by the certificate that it showed: the same for every certificate that the authorities give it, and
/// another for every other client of theirs. None where the certificate names nobody.
///
/// That is the subject's distinguished name; where it is empty (RFC 5280, section 4.1.2.6), the URIs of the
/// subjectAltName, as SPIFFE writes them, else its DNS names. Not the key, which most renew with the certificate; not the
/// issuer, which is another when an authority between is renewed. What is repeated over a renewal would run twice.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    if !certificate.subject().is_empty() {
        return Some(digest("subject", [certificate.subject()]));
    }
    let uris: BTreeSet<&str> = certificate.valid_uri_names().collect();
    if !uris.is_empty() {
        return Some(digest("uri", uris.into_iter().map(str::as_bytes)));
    }
    let names: BTreeSet<String> = certificate.valid_dns_names().map(str::to_ascii_lowercase).collect();
    (!names.is_empty()).then(|| digest("dns", names.iter().map(String::as_bytes)))
}

/// No two lists of names of any kind give the same bytes to hash.
fn digest<'n>(kind: &'n str, names: impl IntoIterator<Item = &'n [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for name in std::iter::once(kind.as_bytes()).chain(names) {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
