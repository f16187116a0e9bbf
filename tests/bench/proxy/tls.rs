//! TLS on either side of a proxy: one certificate for everybody, what clients and cells make of it, and what each peer is
//! told about it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::shape::Over;

/// Whom clients ask for, whom peers ask for, and the cells as our router knows them.
const NAMES: [&str; 4] = ["payments.example", "cell.example", "a", "b"];
/// The folder that our router finds certificates in, and the one of them.
pub(super) const SECRETS: &str = "secrets";
pub(super) const SECRET: &str = "end";

/// What clients and cells need for their handshakes. All that proxies need lies in a folder.
#[derive(Clone)]
pub(super) struct Trust {
    pub(super) clients: Arc<ClientConfig>,
    /// Asks for a certificate.
    pub(super) cells: Arc<ServerConfig>,
}

impl Trust {
    /// Makes an authority and a certificate, and writes them into `folder` as `ca.crt`, `end.crt`, `end.key` and `end.pem`,
    /// which is both, and for our router as a Secret is mounted.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let mut authority = CertificateParams::default();
        // A name that no other certificate here has: to OpenSSL, whoever has the name of its issuer signed itself.
        authority.distinguished_name.push(DnType::CommonName, "authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        let root = authority.self_signed(&key)?.pem();
        let issuer = Issuer::new(authority, key);
        let mut end = CertificateParams::new(NAMES.map(str::to_owned))?;
        end.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        end.distinguished_name.push(DnType::CommonName, "end");
        end.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let (certificate, key) = (end.signed_by(&key, &issuer)?.pem(), key.serialize_pem());
        let both = format!("{certificate}{key}");
        let files = [("ca.crt", &root), ("end.crt", &certificate), ("end.key", &key), ("end.pem", &both)];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).with_context(|| format!("{name} cannot be written"))?;
        }
        let secret = folder.join(SECRETS).join(SECRET);
        std::fs::create_dir_all(&secret)?;
        for (name, text) in [("ca.crt", &root), ("tls.crt", &certificate), ("tls.key", &key)] {
            std::fs::write(secret.join(name), text).with_context(|| format!("{name} cannot be written"))?;
        }
        Self::of(&root, &certificate, &key)
    }

    fn of(root: &str, certificate: &str, key: &str) -> Result<Self> {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes())?)?;
        let roots = Arc::new(roots);
        let chain = || CertificateDer::from_pem_slice(certificate.as_bytes()).map(|end| vec![end]);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let clients = ClientConfig::builder_with_provider(Arc::clone(&ring))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(Arc::clone(&roots))
            // Proxies do not ask for it; cells do, where a client speaks to them.
            .with_client_auth_cert(chain()?, key.clone_key())?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&ring)).build()?;
        let cells = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain()?, key)?;
        Ok(Self { clients: Arc::new(clients), cells: Arc::new(cells) })
    }
}

/// Whom clients ask for.
pub(super) fn front() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from(NAMES[0])?)
}

/// What stands in the places that peers' configurations leave open for TLS; `trust` is the folder of the certificates.
pub(super) fn told(peer: &str, over: Over, trust: &Path) -> Vec<(&'static str, String)> {
    let (front, back) = match peer {
        "haproxy" | "haproxy-tcp" => HAPROXY,
        "nginx" => NGINX,
        "envoy" => ENVOY,
        _ => TRAEFIK,
    };
    let (clients, cells) = (over == Over::Tls, over == Over::MutualTls);
    let scheme = if cells { "https" } else { "http" };
    let mut told = vec![("@SCHEME@", scheme.to_owned())];
    let trust = trust.to_string_lossy();
    for ((place, text), wanted) in
        front.map(|told| (told, clients)).into_iter().chain(back.map(|told| (told, cells)))
    {
        let text =
            if wanted { text.replace("@TRUST@", &trust).replace("@CELL@", NAMES[1]) } else { String::new() };
        told.push((place, text));
    }
    told
}

type Told = [(&'static str, &'static str); 2];

const HAPROXY: (Told, Told) = (
    [("@FRONT-TLS@", " ssl crt @TRUST@/end.pem ssl-min-ver TLSv1.3"), ("@FRONT-CERTIFICATE@", "")],
    [
        (
            "@BACK-TLS@",
            " ssl verify required ca-file @TRUST@/ca.crt crt @TRUST@/end.pem sni str(@CELL@) verifyhost @CELL@",
        ),
        ("@BACK-CERTIFICATE@", ""),
    ],
);
const NGINX: (Told, Told) = (
    [
        ("@FRONT-TLS@", " ssl"),
        (
            "@FRONT-CERTIFICATE@",
            "ssl_certificate @TRUST@/end.crt; ssl_certificate_key @TRUST@/end.key; ssl_protocols TLSv1.3;",
        ),
    ],
    [
        ("@BACK-TLS@", ""),
        (
            "@BACK-CERTIFICATE@",
            "proxy_ssl_certificate @TRUST@/end.crt; proxy_ssl_certificate_key @TRUST@/end.key; \
             proxy_ssl_trusted_certificate @TRUST@/ca.crt; proxy_ssl_verify on; proxy_ssl_server_name on; \
             proxy_ssl_name @CELL@; proxy_ssl_protocols TLSv1.3;",
        ),
    ],
);
const ENVOY: (Told, Told) = (
    [
        (
            "@FRONT-TLS@",
            "transport_socket: {name: envoy.transport_sockets.tls, typed_config: {\"@type\": \
             type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, \
             common_tls_context: {tls_params: {tls_minimum_protocol_version: TLSv1_3, \
             tls_maximum_protocol_version: TLSv1_3}, tls_certificates: [{certificate_chain: {filename: \
             @TRUST@/end.crt}, private_key: {filename: @TRUST@/end.key}}]}}}",
        ),
        ("@FRONT-CERTIFICATE@", ""),
    ],
    [
        (
            "@BACK-TLS@",
            "transport_socket: {name: envoy.transport_sockets.tls, typed_config: {\"@type\": \
             type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: @CELL@, \
             common_tls_context: {tls_params: {tls_maximum_protocol_version: TLSv1_3}, tls_certificates: \
             [{certificate_chain: {filename: @TRUST@/end.crt}, private_key: {filename: @TRUST@/end.key}}], \
             validation_context: {trusted_ca: {filename: @TRUST@/ca.crt}, match_typed_subject_alt_names: \
             [{san_type: DNS, matcher: {exact: @CELL@}}]}}}}",
        ),
        ("@BACK-CERTIFICATE@", ""),
    ],
);
const TRAEFIK: (Told, Told) = (
    [
        ("@FRONT-TLS@", ", tls: {}"),
        (
            "@FRONT-CERTIFICATE@",
            "tls: {certificates: [{certFile: @TRUST@/end.crt, keyFile: @TRUST@/end.key}], options: {default: \
             {minVersion: VersionTLS13}}}",
        ),
    ],
    [
        ("@BACK-TLS@", ", serversTransport: mutual"),
        (
            "@BACK-CERTIFICATE@",
            "serversTransports: {mutual: {serverName: @CELL@, rootCAs: [@TRUST@/ca.crt], disableHTTP2: true, \
             maxIdleConnsPerHost: 200, certificates: [{certFile: @TRUST@/end.crt, keyFile: @TRUST@/end.key}]}}",
        ),
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_side_that_speaks_tls_is_told_of_it() {
        let check = |over, [front, back]: [bool; 2]| {
            for peer in ["haproxy", "envoy", "traefik"] {
                let told = told(peer, over, Path::new("/trust"));
                let says = |place| told.iter().any(|(open, text)| *open == place && !text.is_empty());
                assert_eq!([says("@FRONT-TLS@"), says("@BACK-TLS@")], [front, back], "{peer} {over:?}");
                assert!(
                    told.iter().all(|(_, text)| !text.replace("\"@type\"", "").contains('@')),
                    "{told:?}"
                );
            }
        };
        check(Over::Plain, [false, false]);
        check(Over::Tls, [true, false]);
        check(Over::MutualTls, [false, true]);
    }
}
