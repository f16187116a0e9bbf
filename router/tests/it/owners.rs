//! Keys of `owner` rules while an edit of the weights is on its way: refused where they move, until every router has it.

use std::collections::BTreeMap;
use std::fs;

use http::Request;

use crate::client::{Body, Client, get};
use crate::fake::Behaviour;
use crate::kubernetes::Cluster;
use crate::world::eventually;

const KEYS: u32 = 60;
const POLICY: &str = "RoutingPolicy/default/accounts";

/// An `owner` rule of those weights for what comes to `/accounts`, and the generation that the operator has settled.
fn accounts(a: u32, b: u32, settled: i64) -> String {
    format!(
        "apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: accounts, namespace: default}}
spec:
  parentRefs: [{{router: main, listener: http}}]
  precedence: 1000
  rules:
  - name: owned
    owner: true
    key: {{header: x-account}}
    matches: [{{all: [{{attribute: path, exact: /accounts}}]}}]
    groups: [{{cells: [{{name: a, weight: {a}}}, {{name: b, weight: {b}}}]}}]
    restart: {{deadline: 1h}}
status: {{observedGeneration: {settled}, settledGeneration: {settled}}}
"
    )
}

fn of_account(n: u32) -> Request<Body> {
    let mut request = get("/accounts");
    request.headers_mut().insert("x-account", n.into());
    request
}

/// The cell that answers for each account, or the reason why none does.
async fn outcomes(client: &mut Client) -> BTreeMap<u32, String> {
    let mut outcomes = BTreeMap::new();
    for n in 0..KEYS {
        let answer = client.send(of_account(n)).await;
        let outcome = if answer.status == 200 { answer.cell().to_owned() } else { answer.problem().1 };
        outcomes.insert(n, outcome);
    }
    outcomes
}

fn count(outcomes: &BTreeMap<u32, String>, outcome: &str) -> usize {
    outcomes.values().filter(|found| *found == outcome).count()
}

async fn until_served(cluster: &Cluster, generation: i64) {
    let served = async || cluster.serving().await.objects[POLICY].generation == generation;
    eventually("the edit is in the table", served).await;
}

/// That each key is where it was, or moving.
#[track_caller]
fn check_fenced(before: &BTreeMap<u32, String>, now: &BTreeMap<u32, String>) {
    let moving = count(now, "OwnerMoving");
    assert!(moving > 0 && moving < now.len(), "{now:?}");
    assert!(now.iter().all(|(n, outcome)| outcome == "OwnerMoving" || *outcome == before[n]), "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_moves_is_refused_until_the_edit_is_settled_and_no_other_is() {
    let cluster = Cluster::start(|api| api.apply(&accounts(80, 20, 1), 1)).await;
    cluster.until_ready().await;
    let mut client = cluster.client().await;
    let before = outcomes(&mut client).await;
    assert_eq!(count(&before, "a") + count(&before, "b"), before.len(), "{before:?}");
    cluster.api.apply(&accounts(20, 80, 1), 2);
    until_served(&cluster, 2).await;
    let fenced = outcomes(&mut client).await;
    check_fenced(&before, &fenced);
    cluster.api.apply(&accounts(20, 80, 2), 2);
    let settled = async || count(&outcomes(&mut client).await, "OwnerMoving") == 0;
    eventually("all keys are served", settled).await;
    let after = outcomes(&mut client).await;
    for (n, outcome) in fenced {
        let moved = before[&n] != after[&n];
        assert_eq!(moved, outcome == "OwnerMoving", "key {n} went from {} to {}", before[&n], after[&n]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_restarts_knows_former_owners_from_its_disk_and_refuses_all_keys_without() {
    let cluster = Cluster::start(|api| api.apply(&accounts(80, 20, 1), 1)).await;
    cluster.until_ready().await;
    let before = outcomes(&mut cluster.client().await).await;
    cluster.api.apply(&accounts(20, 80, 1), 2);
    until_served(&cluster, 2).await;
    let table = cluster.folder.path().join("table.json");
    let written = async || fs::read_to_string(&table).is_ok_and(|text| text.contains("\"since\":2"));
    eventually("the edit is on disk", written).await;
    let cluster = cluster.restart().await;
    cluster.until_ready().await;
    let mut client = cluster.client().await;
    let recalled = async || count(&outcomes(&mut client).await, "OwnerMoving") < KEYS as usize;
    eventually("the disk is read", recalled).await;
    check_fenced(&before, &outcomes(&mut client).await);

    // The next life has no disk to read, and the one after it a status to go by.
    let cluster = cluster.restart_without_a_table().await;
    cluster.until_ready().await;
    let refused = outcomes(&mut cluster.client().await).await;
    assert_eq!(count(&refused, "OwnerMoving"), refused.len(), "{refused:?}");
    assert_eq!(cluster.client().await.send(get("/")).await.status, 200, "another rule serves");
    cluster.api.apply(&accounts(20, 80, 2), 2);
    let settled = async || count(&outcomes(&mut cluster.client().await).await, "OwnerMoving") == 0;
    eventually("all keys are served", settled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_from_disk_serves_no_owned_key_since_it_may_be_older_than_what_others_serve() {
    let cluster = Cluster::start(|api| api.apply(&accounts(80, 20, 1), 1)).await;
    cluster.until_ready().await;
    let before = outcomes(&mut cluster.client().await).await;
    let table = cluster.folder.path().join("table.json");
    eventually("the table is on disk", async || table.exists()).await;
    cluster.api.hold("endpointslices");
    let cluster = cluster.restart().await;
    cluster.until_ready().await;
    assert!(cluster.serving().await.from_disk);
    let mut client = cluster.client().await;
    let refused = outcomes(&mut client).await;
    assert_eq!(count(&refused, "OwnerMoving"), refused.len(), "{refused:?}");
    assert_eq!(client.send(get("/")).await.status, 200, "another rule serves");
    cluster.api.release();
    let back = async || outcomes(&mut client).await == before;
    eventually("the API server's table is served", back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_unsettled_while_a_former_owner_works_and_as_long_as_it_may_where_it_is_given_up() {
    let cluster = Cluster::start(|api| api.apply(&accounts(1, 0, 1), 1)).await;
    cluster.until_ready().await;
    let unsettled = async || cluster.serving().await.unsettled.contains(POLICY);
    let at_work = async |cell: &str| cluster.serving().await.cells[cell].in_flight > 0;

    cluster.cells[0].behave(Behaviour::Hang);
    let mut client = cluster.client().await;
    let answered = tokio::spawn(async move { client.send(of_account(1)).await.cell().to_owned() });
    eventually("a works", async || at_work("a").await).await;
    assert!(!unsettled().await, "nothing was edited yet");
    cluster.api.apply(&accounts(0, 1, 1), 2);
    until_served(&cluster, 2).await;
    assert!(unsettled().await);
    cluster.cells[0].behave(Behaviour::Echo);
    assert_eq!(answered.await.expect("ends"), "a");
    eventually("nothing is under way by the edit before", async || !unsettled().await).await;

    cluster.api.apply(&accounts(0, 1, 2), 2);
    let served = async || cluster.client().await.send(of_account(1)).await.status == 200;
    eventually("b is the owner", served).await;
    cluster.cells[1].behave(Behaviour::Hang);
    let mut client = cluster.client().await;
    let leaves = tokio::spawn(async move { client.send(of_account(1)).await.status });
    eventually("b works", async || at_work("b").await).await;
    leaves.abort();
    eventually("the client's leaving is seen", async || !at_work("b").await).await;
    cluster.api.apply(&accounts(1, 0, 2), 3);
    until_served(&cluster, 3).await;
    assert!(unsettled().await, "the cell was given an hour");
}
