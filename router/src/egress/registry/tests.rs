//! Destinations as tables make them: addresses that are fit, certificates from files, and what stays when nothing changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;
use crate::egress::fixture::{Authority, Certified, Server, Then, World, eventually, in_no_time, outcome};

/// A name to us, which the system knows without a resolver.
fn by_name(server: &Server) -> String {
    format!("127.1:{}", server.address.port())
}

#[tokio::test]
async fn a_name_leads_to_loopback_only_where_the_destination_says_so() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let literal = World::new(&[server.endpoint()], "").await;
    assert_eq!(outcome(literal.send("x").await), "ok");

    let named = World::new(&[by_name(&server)], "").await;
    assert_eq!(outcome(named.send("x").await), "not-sent DestinationUnavailable");
    let why = named.live.unavailable().expect("has no address");
    assert!(why.contains("127.0.0.1 is loopback") && why.contains("allowedNetworks"), "{why}");
    assert_eq!(server.connections(), 1);

    let allowed = World::new(&[by_name(&server)], "allowedNetworks: [127.0.0.0/8]").await;
    assert_eq!(outcome(allowed.send("x").await), "ok");
}

#[tokio::test]
async fn where_others_write_destinations_not_even_an_address_leads_to_loopback() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let port = server.address.port();
    let written = [
        server.endpoint(),
        format!("0.0.0.0:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        by_name(&server),
    ];
    let allowed = "allowedNetworks: [127.0.0.0/8, 0.0.0.0/8]";
    let open = World::new(&written, allowed).await;
    assert_eq!((outcome(open.send("x").await), open.live.refused.len()), ("ok".to_owned(), 0), "the control");

    let bounds = Bounds { no_loopback: true, ..Bounds::default() };
    let closed = World::with(Registry::new(None, bounds), &written, allowed).await;
    assert_eq!(outcome(closed.send("x").await), "not-sent DestinationUnavailable");
    let why = closed.live.unavailable().expect("has no address");
    assert_eq!(why.matches("the router's own pod").count(), written.len(), "{why}");
}

#[tokio::test]
async fn what_did_not_change_is_the_same_and_what_is_under_way_is_counted_on() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let mut world = World::new(&[server.endpoint()], "limits: {inFlight: 1}").await;
    let (before, _place) = (Arc::clone(&world.live), world.live.begin().expect("has room"));
    world.rebuild().await;
    assert!(Arc::ptr_eq(&world.live, &before));
    assert!(world.live.begin().is_err());
}

/// Folders of certificates, and a world whose Destination uses `ca` and, if asked, `own`.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("makes a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn world(&self, server: &Server, more: &str) -> World {
        self.world_at(server.endpoint(), more).await
    }

    async fn world_at(&self, endpoint: String, more: &str) -> World {
        let registry = Registry::new(Some(self.path().to_owned()), Bounds::default());
        let spec = format!("tls: {{caSecret: ca, {more}}}");
        World::with(registry, &[endpoint], &spec).await
    }
}

/// What comes of a message to a server with that certificate, from who trusts `ca`.
async fn sent(trusted: &Authority, shown: &Certified, more: &str) -> (String, usize) {
    let files = Files::new();
    trusted.write(files.path(), "ca");
    let server = Server::tls(shown.server(None), &[Then::Answer("ok")]).await;
    let world = files.world(&server, more).await;
    (outcome(world.send("x").await), server.requests().len())
}

const REFUSED: &str = "not-sent DestinationUnavailable";

#[tokio::test]
async fn only_a_server_that_proves_its_name_gets_a_message() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let ok = || ("ok".to_owned(), 1);
    let refused = || (REFUSED.to_owned(), 0);
    let named = "serverName: issuer.example";
    assert_eq!(sent(&trusted, &trusted.certify("issuer.example"), named).await, ok());
    assert_eq!(sent(&trusted, &trusted.certify("127.0.0.1"), "").await, ok());

    assert_eq!(sent(&trusted, &other.certify("issuer.example"), named).await, refused());
    assert_eq!(sent(&trusted, &trusted.certify("acquirer.example"), named).await, refused());
    assert_eq!(sent(&trusted, &trusted.certify("issuer.example"), "").await, refused());
    assert_eq!(sent(&trusted, &trusted.certify_expired("issuer.example"), named).await, refused());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_our_certificate_was_not_sent_the_message() {
    let (authority, other) = (Authority::new(), Authority::new());
    let files = Files::new();
    authority.write(files.path(), "ca");
    authority.certify("router").write(files.path(), "own");
    other.certify("router").write(files.path(), "foreign");
    authority.certify_expired("router").write(files.path(), "expired");
    let config = authority.certify("127.0.0.1").server(Some(&authority));
    let server = Server::tls(config, &[Then::Answer("ok")]).await;
    let check = async |more: &str, expected: &str| {
        let world = files.world(&server, more).await;
        assert_eq!(outcome(in_no_time(world.send("x")).await), expected, "{more:?}");
    };
    check("certificateSecret: own", "ok").await;
    check("", REFUSED).await;
    check("certificateSecret: foreign", REFUSED).await;
    check("certificateSecret: expired", REFUSED).await;
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_hands_out_no_tickets_is_sent_messages_too() {
    let authority = Authority::new();
    let files = Files::new();
    authority.write(files.path(), "ca");
    let mut config = authority.certify("127.0.0.1").server(None);
    config.send_tls13_tickets = 0;
    let server = Server::tls(config, &[Then::Answer("ok")]).await;
    let world = files.world(&server, "").await;
    assert_eq!(outcome(world.send("x").await), "ok");
}

/// Leads to a server, and keeps what follows the client's first words until it is told to bring it.
struct Held {
    address: SocketAddr,
    has_more: Arc<AtomicBool>,
    bring: Arc<Notify>,
}

impl Held {
    async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let (has_more, bring) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let held = Self { address, has_more: Arc::clone(&has_more), bring: Arc::clone(&bring) };
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.expect("is connected to");
            let mut server = TcpStream::connect(server).await.expect("connects");
            let (mut client_reads, mut client_writes) = client.split();
            let (mut server_reads, mut server_writes) = server.split();
            let forth = async {
                let mut hello = [0; 4096];
                let length = client_reads.read(&mut hello).await?;
                server_writes.write_all(&hello[..length]).await?;
                client_reads.readable().await?;
                has_more.store(true, Ordering::Relaxed);
                bring.notified().await;
                tokio::io::copy(&mut client_reads, &mut server_writes).await
            };
            let _ = tokio::join!(forth, tokio::io::copy(&mut server_reads, &mut client_writes));
        });
        held
    }
}

/// In TLS 1.3 a server sees our certificate when the handshake is over for us. Time stands still while the test is busy.
#[tokio::test(start_paused = true)]
async fn a_new_connection_is_not_handed_out_before_the_server_has_seen_our_certificate() {
    let authority = Authority::new();
    let files = Files::new();
    authority.write(files.path(), "ca");
    authority.certify("router").write(files.path(), "own");
    let config = authority.certify("127.0.0.1").server(Some(&authority));
    let server = Server::tls(config, &[Then::Answer("ok")]).await;
    for (more, is_taken) in [("certificateSecret: own", true), ("", false)] {
        let held = Held::before(server.address).await;
        let world = files.world_at(held.address.to_string(), more).await;
        let mut connecting = pin!(world.connect());
        let mut after = 1_000;
        tokio::select! {
            _ = &mut connecting => panic!("nobody has seen the certificate"),
            () = eventually(|| {
                after -= i32::from(held.has_more.load(Ordering::Relaxed));
                after == 0
            }) => {}
        }
        held.bring.notify_one();
        assert_eq!(in_no_time(connecting).await.is_ok(), is_taken, "{more:?}");
    }
}

/// Looks at the files as often as the builder does, until what they say has arrived.
async fn refreshed(world: &mut World) {
    let mut now_ms = 0;
    eventually(|| {
        now_ms += 2_000;
        world.registry.refresh(now_ms)
    })
    .await;
    world.rebuild().await;
}

/// Has a folder point elsewhere at once, as Kubernetes does with Secrets.
fn swap(directory: &Path, folder: &str, to: &str) {
    let fresh = directory.join("fresh");
    symlink(to, &fresh).expect("makes a link");
    fs::rename(&fresh, directory.join(folder)).expect("puts it in place");
}

#[tokio::test]
async fn changed_certificates_are_taken_and_bad_ones_leave_the_last_good() {
    let (first, second) = (Authority::new(), Authority::new());
    let files = Files::new();
    first.write(files.path(), "v1");
    second.write(files.path(), "v2");
    fs::create_dir(files.path().join("v3")).expect("makes a folder");
    fs::write(files.path().join("v3/ca.crt"), "no PEM").expect("writes");
    swap(files.path(), "ca", "v1");
    let server = Server::tls(first.certify("127.0.0.1").server(None), &[Then::Answer("one")]).await;
    let other = Server::tls(second.certify("127.0.0.1").server(None), &[Then::Answer("two")]).await;
    let mut to_first = files.world(&server, "").await;
    let mut to_second = files.world(&other, "").await;
    assert_eq!(outcome(to_first.send("x").await), "one");
    assert_eq!(outcome(to_second.send("x").await), REFUSED);

    swap(files.path(), "ca", "v2");
    refreshed(&mut to_first).await;
    refreshed(&mut to_second).await;
    // The kept connection was made for an authority that is trusted no more.
    assert_eq!(outcome(to_first.send("x").await), REFUSED);
    assert_eq!(outcome(to_second.send("x").await), "two");

    swap(files.path(), "ca", "v3");
    refreshed(&mut to_second).await;
    assert_eq!(outcome(to_second.send("x").await), "two");
    let wrong = to_second.live.certificates.clone().expect("is said");
    assert!(wrong.contains("no certificate in the PEM of the authorities"), "{wrong}");
    assert_eq!(other.connections(), 2);
}

#[tokio::test]
async fn without_certificates_a_destination_waits_for_them_and_says_so() {
    let authority = Authority::new();
    let files = Files::new();
    let server = Server::tls(authority.certify("127.0.0.1").server(None), &[Then::Answer("ok")]).await;
    let mut world = files.world(&server, "").await;
    assert_eq!(outcome(world.send("x").await), REFUSED);
    let why = world.live.unavailable().expect("is not available");
    assert!(why.contains("ca/ca.crt cannot be read"), "{why}");

    authority.write(files.path(), "ca");
    refreshed(&mut world).await;
    assert_eq!((world.live.unavailable(), outcome(world.send("x").await)), (None, "ok".to_owned()));
}
