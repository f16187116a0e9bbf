//! Where tables come from, and what happens when that is wrong or gone.

use std::fs;
use std::num::NonZeroUsize;

use bulkhead_process::Shutdown;
use bulkhead_router::{Config, Source, start};

use crate::client::{Client, get};
use crate::world::{World, cell, documents, even, eventually, policy};

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_file_among_good_ones_harms_nothing_and_is_shown() {
    let world = World::start().await;
    world.write("bad.yaml", "kind: [");
    world.write("cell-a.yaml", &cell("a", 100, world.cells[0].address).replace("weight", "wieght"));
    eventually("both are reported", async || {
        let table = String::from_utf8_lossy(&world.admin("/v1/table").await.body).into_owned();
        table.contains("bad.yaml") && table.contains("spec.wieght is not a field")
    })
    .await;
    // The cell keeps what its file last said well, and others go on being read.
    world.set_weight(1, 0);
    world.serves("Cell/b", 2).await;
    assert_eq!(world.spread(20).await.get("a"), Some(&20));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_policy_among_a_hundred_leaves_a_hundred() {
    let world = World::start().await;
    let many: Vec<String> = (0..101)
        .map(|number| {
            let name = if number == 50 { "nobody" } else { "a" };
            policy(&format!("[{{cells: [{{name: {name}}}]}}]"))
                .replace("name: shop", &format!("name: p{number:03}"))
                .replace(
                    "{name: all,",
                    &format!("{{name: all, matches: [{{all: [{{attribute: path, exact: /{number}}}]}}],"),
                )
        })
        .collect();
    world.write("many.yaml", &documents(&many));
    world.serves("RoutingPolicy/default/p100", 1).await;
    let mut client = world.client().await;
    for number in 0..101 {
        let answer = client.send(get(&format!("/{number}"))).await;
        if number == 50 {
            assert_eq!(answer.problem().0, 503, "{answer:?}");
        } else {
            assert_eq!(answer.header("bulkhead-rule"), format!("default/p{number:03}/all"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_on_disk_serves_when_the_source_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let table_file = folder.path().join("table.json");
    let world =
        crate::world::Setup { table_file: Some(table_file.clone()), ..crate::world::Setup::default() }
            .start()
            .await;
    world.set_weight(0, 0);
    world.serves("Cell/a", 2).await;
    eventually("the newest table is on disk", async || {
        fs::read_to_string(&table_file).is_ok_and(|text| text.contains("\"weight\":0"))
    })
    .await;

    // A cluster whose API server nobody answers for.
    let kubeconfig = folder.path().join("kubeconfig");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = nobody.local_addr().expect("is bound");
    fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: c, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n"
        ),
    )
    .expect("is written");
    let mut config = Config::local("main", "http", Source::Kubernetes);
    config.kubeconfig = Some(kubeconfig);
    config.table_file = Some(table_file);
    config.threads = NonZeroUsize::new(1);
    let shutdown = Shutdown::new();
    let router = start(config, shutdown.clone()).await.expect("starts");
    let address = router.address("http").await.expect("opens from the table on disk");
    let admin = router.admin_address();
    eventually("it is ready", async || Client::connect(admin).await.send(get("/readyz")).await.status == 200)
        .await;
    let serving = Client::connect(admin).await.send(get("/v1/serving")).await;
    let serving: bulkhead_protocol::Serving = serde_json::from_slice(&serving.body).expect("is a state");
    assert!(serving.from_disk);
    let mut client = Client::connect(address).await;
    for _ in 0..20 {
        assert_eq!(client.send(get("/")).await.cell(), "b", "the drained cell stays drained over a restart");
    }
    shutdown.trigger();
    router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_open_and_close_with_the_router_object() {
    let world = World::start().await;
    let two = crate::world::ROUTER.replace("LIMITS", "{}") + "  - {name: second, port: 0}\n";
    world.write("router.yaml", &two.replace("port: 0", "port: 65001"));
    let text = documents(&[
        even(),
        even().replace("listener: http", "listener: second").replace("name: shop", "name: other"),
    ]);
    world.write("policy.yaml", &text);
    let second = world.router.address("second").await.expect("opens");
    eventually("the second listener serves", async || {
        Client::connect(second).await.send(get("/")).await.status == 200
    })
    .await;
    world.write("router.yaml", &crate::world::ROUTER.replace("LIMITS", "{}"));
    eventually("the second listener is closed", async || {
        tokio::net::TcpStream::connect(second).await.is_err()
    })
    .await;
    assert_eq!(world.spread(5).await.values().sum::<usize>(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_cannot_be_opened_takes_no_other_with_it() {
    let world = World::start().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("is bound").port();
    let two = crate::world::ROUTER.replace("LIMITS", "{}") + &format!("  - {{name: second, port: {port}}}\n");
    world.write("router.yaml", &two);
    eventually("it says which and why", async || {
        let closed = world.serving().await.closed;
        closed.keys().eq(["second"]) && closed["second"].contains(&port.to_string())
    })
    .await;
    assert!(world.is_ready().await);
    assert_eq!(world.spread(5).await.values().sum::<usize>(), 5);
    drop(taken);
    world.router.address("second").await.expect("opens as soon as the port is free");
    eventually("nothing is closed", async || world.serving().await.closed.is_empty()).await;
}
