//! Tables from an API server's watches: whole lists only, and on with the last one while the server is away.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::Path;

use bulkhead_process::Shutdown;
use bulkhead_protocol::Serving;
use bulkhead_router::{Config, Running, Source, start};
use tempfile::TempDir;

use crate::api::FakeApi;
use crate::client::{Answer, Client, get};
use crate::fake::FakeCell;
use crate::world::{ROUTER, address_of, documents, even, eventually, hanging_file, rules};

/// A router that reads a fake API server.
pub(crate) struct Cluster {
    pub(crate) api: FakeApi,
    pub(crate) cells: Vec<FakeCell>,
    router: Running,
    shutdown: Shutdown,
    pub(crate) folder: TempDir,
}

fn cell(name: &str, weight: &str) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1\nkind: Cell\nmetadata: {{name: {name}}}\nspec: {{weight: {weight}, template: t}}\n"
    )
}

/// The pods of a cell, not ready in the eyes of Kubernetes.
fn slice(cell: &str, address: SocketAddr) -> String {
    slice_of(cell, address.port(), &[address.ip()], false)
}

/// The pods of a cell, all on the same ports, and what Kubernetes says of them.
fn slice_of(cell: &str, port: u16, addresses: &[IpAddr], ready: bool) -> String {
    let endpoint = |address| format!("{{addresses: ['{address}'], conditions: {{ready: {ready}}}}}");
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: cell-runtime-x, namespace: cell-{cell}, labels: {{kubernetes.io/service-name: cell-runtime}}}}
addressType: IPv4
ports: [{{name: traffic, port: {port}}}, {{name: health, port: {}}}]
endpoints: [{}]
",
        port + 1,
        endpoints.join(", ")
    )
}

impl Cluster {
    /// With cells a and b, applied before the router starts.
    pub(crate) async fn start(before: impl FnOnce(&FakeApi)) -> Self {
        let api = FakeApi::start().await;
        let cells = vec![FakeCell::start("a").await, FakeCell::start("b").await];
        api.apply(&ROUTER.replace("LIMITS", "{}"), 1);
        api.apply(&even(), 1);
        for fake in &cells {
            api.apply(&cell(fake.name(), "100"), 1);
            api.apply(&slice(fake.name(), fake.address), 1);
        }
        before(&api);
        let folder = tempfile::tempdir().expect("a folder can be made");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: c, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n",
            api.address
        );
        fs::write(&kubeconfig, text).expect("is written");
        let (router, shutdown) = Self::route(&folder).await;
        Self { api, cells, router, shutdown, folder }
    }

    /// Starts a router with what the folder holds: a kubeconfig, and perhaps a table.
    async fn route(folder: &TempDir) -> (Running, Shutdown) {
        let mut config = Config::local("main", "http", Source::Kubernetes);
        config.kubeconfig = Some(folder.path().join("kubeconfig"));
        config.table_file = Some(folder.path().join("table.json"));
        config.threads = NonZeroUsize::new(1);
        let shutdown = Shutdown::new();
        (start(config, shutdown.clone()).await.expect("starts"), shutdown)
    }

    /// Stops the router and starts another in its place.
    pub(crate) async fn restart(self) -> Self {
        self.restart_after(|_| ()).await
    }

    /// The same, and what the first had written is gone.
    pub(crate) async fn restart_without_a_table(self) -> Self {
        self.restart_after(|table| fs::remove_file(table).expect("is there")).await
    }

    async fn restart_after(self, between: impl FnOnce(&Path)) -> Self {
        self.shutdown.trigger();
        self.router.ended().await.expect("ends well");
        between(&self.folder.path().join("table.json"));
        let (router, shutdown) = Self::route(&self.folder).await;
        Self { router, shutdown, ..self }
    }

    async fn with_a_table_on_disk_and_no_list_of_slices() -> Self {
        let cluster = Self::start(|_| ()).await;
        cluster.until_ready().await;
        let table = cluster.folder.path().join("table.json");
        eventually("the table is on disk", async || table.exists()).await;
        cluster.api.hold("endpointslices");
        cluster.restart().await
    }

    async fn admin(&self, path: &str) -> Answer {
        Client::connect(self.router.admin_address()).await.send(get(path)).await
    }

    pub(crate) async fn serving(&self) -> Serving {
        serde_json::from_slice(&self.admin("/v1/serving").await.body).expect("is the state of a router")
    }

    pub(crate) async fn until_ready(&self) {
        eventually("the router is ready", async || self.admin("/readyz").await.status == 200).await;
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(address_of(&self.router, "http").await).await
    }

    async fn until_share(&self, cell: &str, ppm: u32) {
        let has = async || {
            let serving = self.serving().await;
            serving.shares.get("default/shop/all").and_then(|shares| shares.get(cell)) == Some(&ppm)
        };
        eventually(&format!("{cell} has {ppm} parts per million"), has).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_are_found_by_their_slices_and_judged_by_their_streams_alone() {
    let cluster = Cluster::start(|_| ()).await;
    cluster.until_ready().await;
    let mut client = cluster.client().await;
    for _ in 0..60 {
        assert_eq!(client.send(get("/")).await.status, 200);
    }
    assert!(cluster.cells.iter().all(|cell| cell.hits() > 0));
    let serving = cluster.serving().await;
    assert_eq!(serving.objects["RoutingPolicy/default/shop"].uid, "routingpolicies-default-shop");
    assert_eq!(serving.objects["Cell/a"].generation, 1);
    cluster.shutdown.trigger();
    cluster.router.ended().await.expect("ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_streams_say_not_ready_is_out_however_ready_kubernetes_finds_its_pods() {
    let mut cluster = Cluster::start(|_| ()).await;
    let port = cluster.cells[0].address.port();
    let addresses: Vec<IpAddr> = (1..=30).map(|last| Ipv4Addr::new(127, 0, 0, last).into()).collect();
    for address in &addresses[1..] {
        cluster.cells.push(FakeCell::start_at("a", SocketAddr::new(*address, port)).await);
    }
    let b = cluster.cells.remove(1);
    cluster.cells.iter().for_each(|pod| pod.say(false, "ServiceNotReady"));
    cluster.api.apply(&slice_of("a", port, &addresses, true), 2);
    cluster.until_ready().await;
    let heard = async || cluster.cells.iter().all(|pod| pod.streams() > 0);
    eventually("every pod has said so", heard).await;
    cluster.until_share("a", 0).await;
    let mut client = cluster.client().await;
    for _ in 0..50 {
        assert_eq!(client.send(get("/")).await.cell(), "b");
    }
    assert!(cluster.cells.iter().all(|pod| pod.hits() == 0));
    assert_eq!(cluster.serving().await.cells["a"].reason, "ServiceNotReady");
    assert_eq!(b.hits(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_table_before_every_list_is_whole() {
    let cluster = Cluster::start(|api| api.hold("endpointslices")).await;
    let waited = async || {
        let closed = cluster.admin("/readyz").await;
        assert_eq!(closed.status, 503);
        cluster
            .admin("/metrics")
            .await
            .body
            .windows(46)
            .any(|text| text == b"bulkhead_router_watch_age_seconds{kind=\"Cell\"}")
    };
    eventually("it had time to see the rest", waited).await;
    assert_eq!(cluster.serving().await.table, 0);
    cluster.api.release();
    cluster.until_ready().await;
    assert!(cluster.serving().await.cells.values().all(|cell| cell.r#in));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_on_disk_serves_until_every_list_is_whole_and_no_cell_is_missing_in_between() {
    let cluster = Cluster::with_a_table_on_disk_and_no_list_of_slices().await;
    cluster.until_ready().await;
    assert!(cluster.serving().await.from_disk);
    // What came meanwhile is in the lists that are whole, and waits for the one that is not.
    let c = FakeCell::start("c").await;
    cluster.api.apply(&cell("c", "100"), 1);
    cluster.api.apply(&slice("c", c.address), 1);
    let mut client = cluster.client().await;
    let mut by_cell = BTreeMap::<String, u32>::new();
    for _ in 0..100 {
        let answer = client.send(get("/")).await;
        assert_eq!(answer.status, 200);
        *by_cell.entry(answer.cell().to_owned()).or_default() += 1;
    }
    assert!(by_cell["a"] > 20 && by_cell["b"] > 20, "{by_cell:?}");
    assert!(cluster.serving().await.from_disk);

    cluster.api.release();
    let whole = async || {
        assert_eq!(client.send(get("/")).await.status, 200);
        let serving = cluster.serving().await;
        assert!(["a", "b"].iter().all(|cell| serving.cells[*cell].r#in), "{serving:?}");
        !serving.from_disk && serving.cells.get("c").is_some_and(|cell| cell.r#in)
    };
    eventually("the whole lists are served", whole).await;
    let one = async || cluster.cells.iter().all(|cell| cell.open_streams() == 1);
    eventually("each has its stream", one).await;
    // One that was missing from a table would have been let in once more.
    let metrics = String::from_utf8_lossy(&cluster.admin("/metrics").await.body).into_owned();
    for cell in ["a", "b"] {
        let once = format!("bulkhead_router_cell_transitions_total{{cell=\"{cell}\",to=\"in\"}} 1\n");
        assert!(metrics.contains(&once), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_on_disk_serves_however_often_the_kinds_change_that_are_listed() {
    let cluster = Cluster::with_a_table_on_disk_and_no_list_of_slices().await;
    let mut weights = (0..=100).cycle();
    let from_disk = async || {
        let weight: u32 = weights.next().expect("goes on for ever");
        cluster.api.apply(&cell("c", &weight.to_string()), 1);
        cluster.serving().await.from_disk
    };
    eventually("the table on disk is served", from_disk).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_does_not_keep_the_table_of_the_api_server_waiting() {
    let cluster = Cluster::start(|api| api.hold("endpointslices")).await;
    let table = cluster.folder.path().join("table.json");
    hanging_file(&table);
    let cluster = cluster.restart().await;
    let reading = tokio::task::spawn_blocking(move || fs::File::options().write(true).open(table));
    let _held = reading.await.expect("ends").expect("the router reads");
    cluster.api.release();
    cluster.until_ready().await;
    assert!(!cluster.serving().await.from_disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_policies_each_change_is_served_by_itself() {
    let of = |place: u32, cell: &str| {
        let rule = |n| {
            format!(
                "  - {{name: r{n}, matches: [{{all: [{{attribute: path, exact: /{place}/{n}}}]}}], groups: [{{cells: [{{name: {cell}}}]}}]}}\n"
            )
        };
        rules(&(0..100).map(rule).collect::<String>()).replace("name: shop", &format!("name: p{place}"))
    };
    let all: Vec<String> = (0..200).map(|place| of(place, "a")).collect();
    let cluster = Cluster::start(|api| api.apply(&documents(&all), 1)).await;
    cluster.until_ready().await;
    let mut client = cluster.client().await;
    for place in 0..200 {
        let answer = client.send(get(&format!("/{place}/99"))).await;
        assert_eq!((answer.cell(), answer.header("bulkhead-rule")), ("a", &*format!("default/p{place}/r99")));
    }
    cluster.api.apply(&of(7, "b"), 2);
    let edited = async || client.send(get("/7/99")).await.cell() == "b";
    eventually("the edit is served", edited).await;
    cluster.api.delete("routingpolicies", "default/p8");
    // What is left for these is the rule for everything.
    let deleted = async || client.send(get("/8/99")).await.header("bulkhead-rule") == "default/shop/all";
    eventually("the deletion is served", deleted).await;
    for place in (0..200).filter(|place| *place != 8) {
        let answer = client.send(get(&format!("/{place}/0"))).await;
        assert_eq!(answer.cell(), if place == 7 { "b" } else { "a" }, "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_weights_is_served_under_its_generation_and_so_is_what_comes_after() {
    let of = |matches: &str, a: u32, b: u32| {
        let cells = format!("[{{name: a, weight: {a}}}, {{name: b, weight: {b}}}]");
        rules(&format!("  - {{name: all, matches: {matches}, groups: [{{cells: {cells}}}]}}\n"))
    };
    let cluster = Cluster::start(|api| api.apply(&of("[]", 1, 0), 1)).await;
    cluster.until_ready().await;
    let mut client = cluster.client().await;
    assert_eq!(client.send(get("/")).await.cell(), "a");
    for (generation, a, b, expected) in [(2, 0, 1, "b"), (3, 1, 0, "a"), (4, 0, 9, "b")] {
        cluster.api.apply(&of("[]", a, b), generation);
        let served = async || {
            let serving = cluster.serving().await;
            serving.objects["RoutingPolicy/default/shop"].generation == generation
        };
        eventually("the generation is served", served).await;
        assert_eq!(client.send(get("/")).await.cell(), expected, "generation {generation}");
    }
    // And an edit of all else makes a table from what was edited last.
    cluster.api.apply(&of("[{all: [{attribute: path, exact: /b}]}]", 0, 9), 5);
    let elsewhere = async || client.send(get("/")).await.status == 404;
    eventually("the edit is served", elsewhere).await;
    assert_eq!(client.send(get("/b")).await.cell(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_served_and_what_cannot_be_read_is_left_out_and_shown() {
    let cluster = Cluster::start(|api| api.apply(&cell("broken", "{}"), 1)).await;
    cluster.until_ready().await;
    cluster.api.apply(&cell("a", "0"), 2);
    cluster.until_share("a", 0).await;
    // The object that it read well before stays as it was.
    cluster.api.apply(&cell("b", "[]"), 2);
    cluster.api.apply(&cell("c", "100"), 1);
    let shown = async || {
        let table = String::from_utf8_lossy(&cluster.admin("/v1/table").await.body).into_owned();
        table.contains("\"Cell/broken\"") && table.contains("\"Cell/b\"") && table.contains("\"name\":\"c\"")
    };
    eventually("both are shown, and what came after is read", shown).await;
    let mut client = cluster.client().await;
    assert_eq!(client.send(get("/")).await.cell(), "b");
    cluster.api.delete("cells", "a");
    eventually("a is gone", async || !cluster.serving().await.cells.contains_key("a")).await;
    assert_eq!(client.send(get("/")).await.cell(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_it_serves_on_and_judges_cells_and_then_catches_up() {
    let mut cluster = Cluster::start(|_| ()).await;
    cluster.until_ready().await;
    cluster.api.stop().await;
    let mut client = cluster.client().await;
    assert_eq!(client.send(get("/")).await.status, 200);
    cluster.cells[0].say(false, "ServiceNotReady");
    cluster.until_share("a", 0).await;
    for _ in 0..20 {
        assert_eq!(client.send(get("/")).await.cell(), "b");
    }
    cluster.cells[0].say(true, "Ready");
    eventually("a is in again", async || cluster.serving().await.cells["a"].r#in).await;
    cluster.api.apply(&cell("b", "0"), 2);
    cluster.api.start_again().await;
    cluster.until_share("b", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_went_back_in_time_are_refused_at_first() {
    let cluster = Cluster::start(|api| api.apply(&cell("a", "0"), 7)).await;
    cluster.until_ready().await;
    cluster.until_share("a", 0).await;
    cluster.api.apply(&cell("a", "100"), 3);
    let refused = async || {
        let metrics = cluster.admin("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        text.lines()
            .find_map(|line| line.strip_prefix("bulkhead_router_older_tables_refused_total "))
            .is_some_and(|count| count != "0")
    };
    eventually("it is refused", refused).await;
    assert_eq!(cluster.serving().await.shares["default/shop/all"]["a"], 0);
}
