//! Where tables come from, and what happens when that is wrong or gone.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_process::{Port, Shutdown};
use bulkhead_router::{Config, Source, start};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, get};
use crate::world::{Setup, World, address_of, cell, documents, even, eventually, hanging_file, policy};

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
async fn a_file_that_is_truncated_and_written_later_never_costs_its_cell_a_request() {
    let world = World::start().await;
    let file = world.folder.path().join("cell-a.yaml");
    fs::write(&file, "").expect("is truncated in place");
    let mut client = world.client().await;
    eventually("the router has read the empty file", async || {
        assert_eq!(client.send(get("/")).await.status, 200);
        assert!(world.serving().await.cells["a"].r#in);
        String::from_utf8_lossy(&world.admin("/v1/table").await.body).contains("what it said before stays")
    })
    .await;
    assert_eq!(world.spread(50).await.len(), 2, "both cells go on answering");
    fs::write(&file, cell("a", 50, world.cells[0].address)).expect("is written in place");
    world.serves("Cell/a", 2).await;
    // Its health is still what it said at the start.
    world.cells[0].check_one_stream();
    // Gone is gone.
    world.remove("cell-a.yaml");
    eventually("the cell is gone", async || !world.serving().await.cells.contains_key("a")).await;
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

/// Two policies of two paths on the same cells, with the weight of a in each of them; b has the rest of a hundred.
fn both_policies(weights: [u32; 2]) -> String {
    let of = |(place, weight): (usize, &u32)| {
        policy(&format!(
            "[{{cells: [{{name: a, weight: {weight}}}, {{name: b, weight: {}}}]}}]",
            100 - weight
        ))
        .replace("name: shop", &format!("name: p{place}"))
        .replace(
            "{name: all,",
            &format!("{{name: all, matches: [{{all: [{{attribute: path, exact: /{place}}}]}}],"),
        )
    };
    documents(&weights.iter().enumerate().map(of).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_policies_on_the_same_cells_that_change_in_one_write_are_both_served() {
    let world = Setup { policy: both_policies([50, 50]), ..Setup::default() }.start().await;
    world.write("policy.yaml", &both_policies([10, 90]));
    let both = async || {
        let shares = world.serving().await.shares;
        shares["default/p0/all"]["a"] == 100_000 && shares["default/p1/all"]["a"] == 900_000
    };
    eventually("both have their new shares", both).await;
    let table: Value = serde_json::from_slice(&world.admin("/v1/table").await.body).expect("is JSON");
    assert_eq!((&table["refused"], &table["unreadable"]), (&json!([]), &json!({})));
    let mut client = world.client().await;
    for place in 0..2 {
        let answer = client.send(get(&format!("/{place}"))).await;
        assert_eq!(answer.header("bulkhead-rule"), format!("default/p{place}/all"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_a_policy_cost_no_request_of_those_who_go_on_sending() {
    let world = World::start().await;
    let done = Arc::new(AtomicBool::new(false));
    let mut senders = JoinSet::new();
    for _ in 0..50 {
        let (mut client, done) = (world.client().await, Arc::clone(&done));
        senders.spawn(async move {
            // Their pace is their own, whatever the router does.
            let mut pace = tokio::time::interval(Duration::from_millis(100));
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                pace.tick().await;
                let answer = client.send(get("/")).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                sent += 1;
            }
            sent
        });
    }
    for edit in 2..22 {
        let groups = format!("[{{cells: [{{name: a, weight: {edit}}}, {{name: b, weight: 50}}]}}]");
        world.write("policy.yaml", &policy(&groups));
        world.serves("RoutingPolicy/default/shop", edit).await;
    }
    done.store(true, Ordering::Relaxed);
    let sent = senders.join_all().await;
    assert!(sent.iter().all(|sent| *sent > 1), "all were sending while it was edited: {sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_on_disk_serves_when_the_source_does_not_answer() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let table_file = folder.path().join("table.json");
    let world = Setup { table_file: Some(table_file.clone()), ..Setup::default() }.start().await;
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
    let address = address_of(&router, "http").await;
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
async fn a_disk_that_hangs_holds_up_no_table_and_no_end() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    hanging_file(&folder.path().join("table.next"));
    let table_file = Some(folder.path().join("table.json"));
    let world = Setup { table_file, ..Setup::default() }.start().await;
    for generation in 2..5 {
        world.set_weight(0, 0);
        world.serves("Cell/a", 2 * generation - 2).await;
        assert_eq!(world.spread(20).await.get("b"), Some(&20));
        world.set_weight(0, 100);
        world.serves("Cell/a", 2 * generation - 1).await;
    }
    world.shutdown.trigger();
    world.router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_open_and_close_with_the_router_object() {
    let world = World::start().await;
    let kept = Port::free().expect("a port is free");
    let port = kept.address.port();
    let two = crate::world::ROUTER.replace("LIMITS", "{}") + &format!("  - {{name: second, port: {port}}}\n");
    world.write("router.yaml", &two);
    let text = documents(&[
        even(),
        even().replace("listener: http", "listener: second").replace("name: shop", "name: other"),
    ]);
    world.write("policy.yaml", &text);
    let second = address_of(&world.router, "second").await;
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
    let kept = Port::free().expect("a port is free");
    let taken = std::net::TcpListener::bind(kept.address).expect("the port is ours");
    let port = kept.address.port();
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
    address_of(&world.router, "second").await;
    eventually("nothing is closed", async || world.serving().await.closed.is_empty()).await;
}
