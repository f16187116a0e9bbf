//! Listeners with TLS: which certificate a name gets, whose certificates are asked for, and what changes while connections
//! go on.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bulkhead_process::connect::Stream;
use bulkhead_process::tls::{self, Identity};
use bulkhead_process::{Connector, Shutdown};
use bulkhead_protocol::Serving;
use bulkhead_router::{Config, Source, start};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion, version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{Client, check_refused, get, post, raw};
use crate::world::{PATIENCE, Setup, World, address_of, eventually, policy};

/// A certificate authority.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("makes a key");
        let pem = params.self_signed(&key).expect("signs itself").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate with that common name, for these hosts.
    pub(crate) fn certify(&self, common: &str, hosts: &[&str]) -> Identity {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("are names");
        params.distinguished_name.push(DnType::CommonName, common);
        let key = KeyPair::generate().expect("makes a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs").pem();
        Identity { certificates: certificate.into_bytes(), key: key.serialize_pem().into_bytes() }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A client that trusts this authority, and shows that certificate where it is asked for one.
    fn client(&self, identity: Option<&Identity>) -> tls::Client {
        tls::Client::new(self.pem.as_bytes(), identity).expect("is good")
    }

    /// Speaks that version over a connection, as shop.example's client.
    async fn speak(
        &self,
        version: &'static SupportedProtocolVersion,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        self.offer(version, &[], stream).await
    }

    /// As [`Self::speak`], and offers these protocols above it.
    pub(crate) async fn offer(
        &self,
        version: &'static SupportedProtocolVersion,
        protocols: &[&str],
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("is PEM")).expect("is good");
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[version])
                .expect("ring has it")
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = "shop.example".try_into().expect("is a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    pub(crate) fn write(&self, directory: &Path, folder: &str) {
        put(directory, folder, "ca.crt", self.pem.as_bytes());
    }
}

/// Each file is there whole at once.
fn put(directory: &Path, folder: &str, file: &str, bytes: &[u8]) {
    let folder = directory.join(folder);
    fs::create_dir_all(&folder).expect("makes a folder");
    fs::write(folder.join("fresh"), bytes).expect("writes");
    fs::rename(folder.join("fresh"), folder.join(file)).expect("takes its name");
}

pub(crate) fn write(identity: &Identity, directory: &Path, folder: &str) {
    put(directory, folder, "tls.crt", &identity.certificates);
    put(directory, folder, "tls.key", &identity.key);
}

/// The certificate itself.
fn der(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&identity.certificates).expect("is PEM")
}

/// A router with one cell, whose listener has TLS.
pub(crate) struct Scene {
    files: TempDir,
    pub(crate) authority: Authority,
    pub(crate) world: World,
}

/// One certificate, for shop.example.
pub(crate) const ONE: &str = "tls: {certificates: [{secret: one}]}";
const CLIENTS: &str = "tls: {certificates: [{secret: one}], clientAuthority: {secret: ca}}";
const OPTIONAL: &str = "tls: {certificates: [{secret: one}], clientAuthority: {secret: ca, optional: true}}";

impl Scene {
    pub(crate) async fn start(listener: &'static str) -> Self {
        Self::with(listener, Setup::default()).await
    }

    /// With the authority's own in `ca`, and a certificate in `one`.
    pub(crate) async fn with(listener: &'static str, setup: Setup) -> Self {
        let files = tempfile::tempdir().expect("makes a folder");
        let authority = Authority::new();
        authority.write(files.path(), "ca");
        write(&authority.certify("one", &["shop.example"]), files.path(), "one");
        Self::of(files, authority, listener, setup).await
    }

    async fn of(files: TempDir, authority: Authority, listener: &'static str, setup: Setup) -> Self {
        let tls_dir = Some(files.path().to_owned());
        let policy = policy("[{cells: [{name: a}]}]");
        let world = Setup { cells: vec!["a"], policy, listener, tls_dir, ..setup }.start().await;
        Self { files, authority, world }
    }

    async fn connect(&self, client: &tls::Client, name: &str) -> io::Result<Stream> {
        let name = name.to_owned().try_into().expect("is a name");
        Connector::tls(client.clone(), name).connect(self.world.address, PATIENCE).await
    }

    /// The certificate that is shown to who asks for that name.
    async fn shown(&self, name: &str) -> CertificateDer<'static> {
        let stream = self.connect(&self.authority.client(None), name).await.expect("shakes hands");
        let Stream::Tls(stream) = stream else { unreachable!("it is TLS") };
        stream.get_ref().1.peer_certificates().expect("is shown")[0].clone().into_owned()
    }

    /// A client that shows that certificate, if it gets in.
    async fn client(&self, identity: Option<&Identity>) -> io::Result<Client> {
        let stream = self.connect(&self.authority.client(identity), "shop.example").await?;
        Ok(Client::over(stream).await)
    }

    /// Over a connection that was made.
    pub(crate) async fn shake_hands(&self, stream: TcpStream) -> TlsStream<TcpStream> {
        self.authority.speak(&version::TLS13, stream).await.expect("shakes hands")
    }

    pub(crate) async fn counts(&self, line: &str) {
        let counted = async || self.world.metrics().await.contains(line);
        eventually(line, counted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_gets_its_certificate_and_any_other_the_first() {
    let (files, authority) = (tempfile::tempdir().expect("makes a folder"), Authority::new());
    let one = authority.certify("one", &["shop.example", "other.example"]);
    let two = authority.certify("two", &["*.pay.example", "other.example", "wild.example"]);
    write(&one, files.path(), "one");
    write(&two, files.path(), "two");
    let listener = "tls: {certificates: [{secret: one}, {secret: two, hosts: ['*.pay.example']}]}";
    let scene = Scene::of(files, authority, listener, Setup::default()).await;
    assert_eq!(scene.shown("shop.example").await, der(&one));
    assert_eq!(scene.shown("a.pay.example").await, der(&two));
    assert_eq!(scene.shown("other.example").await, der(&one));
    // It gets the first too, which is not for it.
    assert!(scene.connect(&scene.authority.client(None), "wild.example").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_tls_reaches_its_cell_whole_and_says_so() {
    let scene = Scene::start(ONE).await;
    let mut client = scene.client(None).await.expect("gets in");
    let body: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
    for _ in 0..2 {
        assert_eq!(client.send(post("/", body.clone())).await.status, 200);
    }
    let seen = scene.world.cells[0].seen().pop().expect("was hit");
    assert_eq!(
        (&seen.body[..], &seen.headers["x-forwarded-proto"]),
        (&body[..], &"https".parse().expect("legal"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_to_new_clients_while_connections_go_on() {
    let scene = Scene::start(ONE).await;
    let mut kept = Vec::new();
    for _ in 0..50 {
        kept.push(scene.client(None).await.expect("gets in"));
    }
    let renewed = scene.authority.certify("one", &["shop.example"]);
    write(&renewed, scene.files.path(), "one");
    eventually("it is shown", async || scene.shown("shop.example").await == der(&renewed)).await;
    for client in &mut kept {
        assert_eq!(client.send(get("/")).await.status, 200);
    }

    put(scene.files.path(), "one", "tls.crt", b"no PEM");
    scene.counts("bulkhead_router_listener_certificates_unusable{listener=\"http\"} 1").await;
    let wrong = scene.world.serving().await.certificates;
    assert!(wrong["http"].contains("certificate of one"), "{wrong:?}");
    assert_eq!(scene.shown("shop.example").await, der(&renewed), "the last good one stays");
    assert!(scene.world.is_ready().await);
    assert_eq!(kept[0].send(get("/")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_whose_certificate_is_missing_opens_when_it_comes() {
    let files = tempfile::tempdir().expect("makes a folder");
    let authority = Authority::new();
    let setup = Setup { listener: ONE, ..Setup::default() };
    let (folder, _cells) = setup.lay_out().await;
    let mut config = Config::local("main", "http", Source::Folder(folder.path().to_owned()));
    config.tls_dir = Some(files.path().to_owned());
    let router = start(config, Shutdown::new()).await.expect("starts");
    let admin = router.admin_address();
    eventually("why it is closed is told", async || {
        let serving = Client::connect(admin).await.send(get("/v1/serving")).await;
        let serving: Serving = serde_json::from_slice(&serving.body).expect("is a state");
        serving.closed.get("http").is_some_and(|why| why.contains("one/tls.crt cannot be read"))
    })
    .await;
    assert_eq!(Client::connect(admin).await.send(get("/readyz")).await.status, 503);

    write(&authority.certify("one", &["shop.example"]), files.path(), "one");
    let address = address_of(&router, "http").await;
    let name = "shop.example".try_into().expect("is a name");
    let stream = Connector::tls(authority.client(None), name).connect(address, PATIENCE).await;
    assert_eq!(Client::over(stream.expect("gets in")).await.send(get("/")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_certificate_of_the_authority_get_in() {
    let stranger = Authority::new();
    for (listener, without) in [(CLIENTS, false), (OPTIONAL, true)] {
        let scene = Scene::start(listener).await;
        let own = scene.authority.certify("acme", &[]);
        let mut client = scene.client(Some(&own)).await.expect("gets in");
        assert_eq!(client.send(get("/")).await.status, 200, "{listener}");
        let wrong = scene.client(Some(&stranger.certify("acme", &[]))).await;
        assert!(wrong.is_err(), "{listener}");
        assert_eq!(scene.client(None).await.is_ok(), without, "{listener}");
        let failed = if without { 1 } else { 2 };
        let line =
            format!("unfit_connections_total{{listener=\"http\",reason=\"HandshakeFailed\"}} {failed}");
        scene.counts(&line).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_says_whose_a_key_is_also_when_it_is_renewed() {
    let setup = Setup { idempotency: Some("{principalFrom: ClientCertificate}"), ..Setup::default() };
    let scene = Scene::with(OPTIONAL, setup).await;
    let certify = |name: &str| Some(scene.authority.certify(name, &[]));
    let mut answers = Vec::new();
    for identity in [certify("acme"), certify("acme"), certify("beta"), None] {
        let mut client = scene.client(identity.as_ref()).await.expect("gets in");
        let mut request = get("/");
        request.headers_mut().insert("idempotency-key", "7".parse().expect("legal"));
        answers.push(client.send(request).await);
    }
    let id = |place: usize| answers[place].header("bulkhead-transaction");
    assert!(id(0) == id(1) && id(0) != id(2), "{answers:?}");
    assert_eq!(answers[3].problem(), (400, "Malformed".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_on_until_other_authorities_are_trusted() {
    let scene = Scene::start(CLIENTS).await;
    let own = scene.authority.certify("acme", &[]);
    let client = scene.authority.client(Some(&own));
    let kind = async || {
        let Stream::Tls(stream) = scene.connect(&client, "shop.example").await.ok()? else { return None };
        stream.get_ref().1.handshake_kind()
    };
    assert_eq!(kind().await, Some(HandshakeKind::Full));
    assert_eq!(kind().await, Some(HandshakeKind::Resumed));
    Authority::new().write(scene.files.path(), "ca");
    eventually("it is let in no more", async || kind().await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_an_older_version_than_allowed_is_refused() {
    let check = async |listener, gets_in| {
        let scene = Scene::start(listener).await;
        let stream = TcpStream::connect(scene.world.address).await.expect("connects");
        assert_eq!(scene.authority.speak(&version::TLS12, stream).await.is_ok(), gets_in, "{listener}");
    };
    check(ONE, true).await;
    check("tls: {certificates: [{secret: one}], minVersion: '1.3'}", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_in_the_clear_is_told_that_tls_is_spoken_here() {
    let scene = Scene::start(ONE).await;
    let answer = raw(scene.world.address, "GET / HTTP/1.1\r\nhost: shop.example\r\n\r\n").await;
    check_refused(&answer, 400, "Malformed");
    assert!(answer.contains("this listener speaks TLS"), "{answer}");
    // Nobody else would understand it.
    assert_eq!(raw(scene.world.address, "\0\0\0\0").await, "");
    scene.counts("unfit_connections_total{listener=\"http\",reason=\"NotTls\"} 2").await;
    assert_eq!(scene.world.hits(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_come_is_cut() {
    let setup = Setup { limits: "{headerTimeout: 300ms}", ..Setup::default() };
    let scene = Scene::with(ONE, setup).await;
    for begins in [&b""[..], b"\x16\x03\x01"] {
        let mut stream = TcpStream::connect(scene.world.address).await.expect("connects");
        stream.write_all(begins).await.expect("writes");
        let cut = tokio::time::timeout(PATIENCE, stream.read(&mut [0])).await.expect("comes to an end");
        assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    }
    scene.counts("unfit_connections_total{listener=\"http\",reason=\"Late\"} 2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_in_its_handshake_is_one_of_those_that_the_listener_may_have() {
    let setup = Setup { limits: "{connections: 1, headerTimeout: 1h}", ..Setup::default() };
    let scene = Scene::with(ONE, setup).await;
    let first = TcpStream::connect(scene.world.address).await.expect("connects");
    scene.counts("bulkhead_router_connections{listener=\"http\"} 1").await;
    check_refused(&raw(scene.world.address, "").await, 503, "RouterOverloaded");
    drop(first);
    scene.counts("bulkhead_router_connections{listener=\"http\"} 0").await;
    assert!(scene.client(None).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_a_handshake_no_longer_than_it_may_take() {
    let setup = Setup { limits: "{headerTimeout: 300ms}", ..Setup::default() };
    let scene = Scene::with(ONE, setup).await;
    let _hangs = TcpStream::connect(scene.world.address).await.expect("connects");
    scene.counts("bulkhead_router_connections{listener=\"http\"} 1").await;
    scene.world.shutdown.trigger();
    let ended = tokio::time::timeout(PATIENCE, scene.world.router.ended()).await;
    ended.expect("does not take the drain's whole time").expect("ends well");
}
