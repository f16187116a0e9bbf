//! Clients that name their transactions themselves.

use http::Request;

use crate::client::{Body, post};
use crate::fake::Behaviour;
use crate::world::{Setup, World, eventually, policy};

async fn world(idempotency: &'static str) -> World {
    let text = policy("[{cells: [{name: a}]}, {cells: [{name: b}]}]");
    Setup { policy: text, idempotency: Some(idempotency), ..Setup::default() }.start().await
}

fn keyed(key: &str, body: &'static str) -> Request<Body> {
    let mut request = post("/pay", body);
    request.headers_mut().insert("idempotency-key", key.parse().expect("a legal value"));
    request
}

/// Waits until a has that many requests.
async fn in_a(world: &World, requests: u64) {
    eventually("the request is in a", async || world.cells[0].hits() == requests).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_transaction_and_goes_nowhere() {
    let world = world("{}").await;
    let mut client = world.client().await;
    let ids = [
        client.send(keyed("7", "x")).await.header("bulkhead-transaction").to_owned(),
        client.send(keyed("7", "x")).await.header("bulkhead-transaction").to_owned(),
        client.send(keyed("8", "x")).await.header("bulkhead-transaction").to_owned(),
        client.send(post("/pay", "x")).await.header("bulkhead-transaction").to_owned(),
    ];
    assert!(ids[0] == ids[1] && ids[0] != ids[2] && ids[2] != ids[3], "{ids:?}");
    assert_eq!((&ids[0][14..15], &ids[3][14..15]), ("8", "7"), "versions of the ids");
    for seen in world.cells[0].seen() {
        assert!(!seen.headers.contains_key("idempotency-key"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_joins_the_first_and_both_get_its_answer() {
    let world = world("{onRepeat: Join}").await;
    world.cells[0].behave(Behaviour::Hang);
    let (mut one, mut other) = (world.client().await, world.client().await);
    let repeats = async {
        in_a(&world, 1).await;
        let joined = other.send(keyed("7", "x"));
        let ends = async {
            let both = "bulkhead_router_in_flight{listener=\"http\"} 2\n";
            eventually("both are under way", async || world.metrics().await.contains(both)).await;
            world.cells[0].behave(Behaviour::Echo);
        };
        tokio::join!(joined, ends).0
    };
    let (first, second) = tokio::join!(one.send(keyed("7", "x")), repeats);
    assert_eq!((first.cell(), second.cell(), world.hits()), ("a", "a", vec![1, 0]));
    assert_eq!((&first.body, first.status), (&second.body, second.status));
    assert_eq!(first.header("bulkhead-transaction"), second.header("bulkhead-transaction"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joined_goes_on_when_the_first_gives_up() {
    let world = world("{}").await;
    world.cells[0].behave(Behaviour::Hang);
    let mut first = world.client().await;
    let mut second = world.client().await;
    let leaves = async {
        tokio::select! {
            _ = first.send(keyed("7", "x")) => panic!("nobody answers"),
            () = in_a(&world, 1) => {}
        }
        drop(first);
    };
    leaves.await;
    world.cells[0].behave(Behaviour::Echo);
    assert_eq!(second.send(keyed("7", "x")).await.cell(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_may_refuse_repetitions_and_always_refuses_another_request_with_the_key() {
    let world = world("{onRepeat: Conflict, principalHeader: x-partner}").await;
    world.cells[0].behave(Behaviour::Hang);
    let of = |partner: &str, body| {
        let mut request = keyed("7", body);
        request.headers_mut().insert("x-partner", partner.parse().expect("a legal value"));
        request
    };
    let (mut one, mut other) = (world.client().await, world.client().await);
    let repeats = async {
        in_a(&world, 1).await;
        assert_eq!(other.send(of("acme", "x")).await.problem(), (409, "InFlight".to_owned()));
        assert_eq!(other.send(of("acme", "y")).await.problem(), (422, "KeyReused".to_owned()));
        assert_eq!(other.send(keyed("7", "x")).await.problem(), (400, "Malformed".to_owned()));
        let mut beta = world.client().await;
        let hangs = beta.send(of("beta", "x"));
        let both = async {
            in_a(&world, 2).await;
            world.cells[0].behave(Behaviour::Echo);
        };
        assert_eq!(tokio::join!(hangs, both).0.cell(), "a");
    };
    let (first, ()) = tokio::join!(one.send(of("acme", "x")), repeats);
    assert_eq!(first.cell(), "a");
}
