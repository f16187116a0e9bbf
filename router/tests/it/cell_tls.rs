//! Cells that are spoken to by TLS, transactions and health alike.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_process::Port;
use bulkhead_process::tls::server::{Authorities, Certified, Clients, Oldest, Server, Tickets};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::get;
use crate::fake::FakeCell;
use crate::http2::{Http2, call};
use crate::tls::{Authority, write};
use crate::world::{ROUTER, Setup, World, cell, eventually, policy};

/// Speaks TLS in the place of a cell, to whom its authority has certified.
struct Wall {
    address: SocketAddr,
    /// Handshakes that came to their end.
    taken: Arc<AtomicU64>,
    _ports: [Port; 2],
    _tasks: JoinSet<()>,
}

impl Wall {
    async fn before(cell: &FakeCell, authority: &Authority, name: &str) -> Self {
        let own = Certified::new(&authority.certify(name, &[name])).expect("is good");
        let authorities = Authorities::new(authority.pem().as_bytes()).expect("is good");
        let clients = Clients { authorities, optional: false };
        let tickets = Tickets::new().expect("there is chance");
        let server = Server::new(&[(own, &[])], Some(&clients), Oldest::V1_3, &tickets).expect("is good");
        let ports = Port::free_pair().expect("two are free");
        let (taken, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for (number, port) in ports.iter().enumerate() {
            let listener = TcpListener::bind(port.address).await.expect("the port is ours");
            let behind = SocketAddr::new(cell.address.ip(), cell.address.port() + number as u16);
            let (server, taken) = (server.clone(), Arc::clone(&taken));
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let (server, taken) = (server.clone(), Arc::clone(&taken));
                    connections.spawn(async move {
                        let mut client = server.accept(stream).await?;
                        taken.fetch_add(1, Ordering::Relaxed);
                        let mut cell = TcpStream::connect(behind).await?;
                        tokio::io::copy_bidirectional(&mut client, &mut cell).await
                    });
                }
            });
        }
        Self { address: ports[0].address, taken, _ports: ports, _tasks: tasks }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

struct Scene {
    files: TempDir,
    authority: Authority,
    wall: Wall,
    world: World,
}

const CELL_TLS: &str = "  cellTls: {caSecret: ca, certificateSecret: own}\n";

impl Scene {
    /// A router that speaks in the clear, and cell a with a wall before it whose certificate has that name.
    async fn start(name: &str) -> Self {
        let (files, authority) = (tempfile::tempdir().expect("makes a folder"), Authority::new());
        authority.write(files.path(), "ca");
        write(&authority.certify("router", &[]), files.path(), "own");
        let policy = policy("[{cells: [{name: a}]}]");
        let tls_dir = Some(files.path().to_owned());
        let world = Setup { cells: vec!["a"], policy, tls_dir, ..Setup::default() }.start().await;
        world.until_in("a", true).await;
        let wall = Wall::before(&world.cells[0], &authority, name).await;
        world.write("cell-a.yaml", &cell("a", 100, wall.address));
        Self { files, authority, wall, world }
    }

    fn speak_tls(&self) {
        let router = ROUTER.replace("LIMITS", "{}");
        self.world
            .write("router.yaml", &router.replace("  listeners:\n", &format!("{CELL_TLS}  listeners:\n")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_spoken_to_by_tls_is_heard_and_gets_its_transactions() {
    let scene = Scene::start("a").await;
    scene.world.until_in("a", false).await;
    assert_eq!(scene.wall.taken(), 0, "in the clear nobody gets in");
    scene.speak_tls();
    scene.world.until_in("a", true).await;
    let mut client = scene.world.client().await;
    for _ in 0..3 {
        assert_eq!(client.send(get("/")).await.cell(), "a");
    }
    // Calls of gRPC go in HTTP/2, which both sides agree on in the handshake.
    let calls = Http2::connect(scene.world.address).await;
    let (answer, trailers) = calls.try_send(call(&[]), "message").await.expect("is answered");
    assert_eq!((answer.cell(), &answer.body[..], trailers.is_some()), ("a", &b"message"[..], true));

    // A renewed certificate is shown from then on, for health too, and nothing fails meanwhile.
    let before = scene.wall.taken();
    write(&scene.authority.certify("router", &[]), scene.files.path(), "own");
    eventually("the wall is asked again", async || {
        assert_eq!(client.send(get("/")).await.status, 200);
        scene.wall.taken() >= before + 2
    })
    .await;
    assert!(scene.world.serving().await.certificates.is_empty());
    broken(scene.files.path());
    let told = async || scene.world.serving().await.certificates.contains_key("cellTls");
    eventually("what is wrong is told", told).await;
    assert_eq!(client.send(get("/")).await.status, 200, "the last good one stays");
}

fn broken(files: &Path) {
    fs::write(files.join("own/tls.crt"), "no PEM").expect("writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_with_the_certificate_of_another_is_not_spoken_to() {
    let scene = Scene::start("b").await;
    scene.world.until_in("a", false).await;
    scene.speak_tls();
    scene.world.serves("Router/main", 2).await;
    let answer = scene.world.client().await.send(get("/")).await;
    assert_eq!(answer.problem(), (503, "NoHealthyCell".to_owned()));
    assert_eq!((scene.wall.taken(), scene.world.hits()), (0, vec![0]));
}
