//! Transactions that start over in another cell, whatever their method, as long as nothing outside can have happened.

use std::time::Duration;

use crate::client::{get, post, raw};
use crate::fake::Behaviour;
use crate::world::{Setup, World, cell, eventually, rules};

/// Everything goes to a first; b stands by.
async fn world(restart: &str) -> World {
    let text = format!(
        "  - {{name: all, restart: {{{restart}}}, groups: [{{cells: [{{name: a}}]}}, {{cells: [{{name: b}}]}}]}}\n"
    );
    Setup { policy: rules(&text), threads: 1, ..Setup::default() }.start().await
}

async fn until() -> World {
    world("policy: UntilPointOfNoReturn").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_whose_cell_breaks_off_starts_over_in_another_from_the_same_bytes() {
    let world = until().await;
    world.cells[0].behave(Behaviour::Reset);
    let answer = world.client().await.send(post("/pay?x=1", "the same bytes")).await;
    assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("b", "2"));
    let (first, second) = (world.cells[0].seen(), world.cells[1].seen());
    assert_eq!((first.len(), second.len()), (1, 1));
    let (mut first, mut second) = (first[0].clone(), second[0].clone());
    assert_eq!((&first.target, &first.body), (&second.target, &second.body));
    let own = |fields: &mut http::HeaderMap| {
        let name = ["bulkhead-attempt", "bulkhead-cell", "bulkhead-deadline"].map(|name| fields.remove(name));
        let attempt = name[0].as_ref().and_then(|value| value.to_str().ok()).map(str::to_owned);
        attempt.expect("every attempt has its number")
    };
    assert_eq!((own(&mut first.headers), own(&mut second.headers)), ("1".to_owned(), "2".to_owned()));
    assert_eq!(first.headers, second.headers);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_while_it_is_held_is_replaced_by_another_cells() {
    let world = until().await;
    world.cells[0].behave(Behaviour::BreakOff);
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!((answer.status.as_u16(), answer.cell(), &answer.body[..]), (200, "b", &b"x"[..]));
}

/// Asks a cell that sends trailers; the answer as it is on the wire.
async fn with_trailers(world: &World, te: &str) -> String {
    world.cells[0].behave(Behaviour::Trailers);
    let text = format!("GET / HTTP/1.1\r\nhost: test\r\n{te}connection: close\r\n\r\n");
    raw(world.address, &text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_reach_who_wants_them_without_our_fields_whether_held_or_not() {
    for restart in ["policy: UntilPointOfNoReturn", "policy: Never"] {
        let world = world(restart).await;
        let answer = with_trailers(&world, "te: trailers\r\n").await;
        assert!(answer.ends_with("\r\nthr\r\n0\r\nx-sum: 3\r\n\r\n"), "{answer}");
        let answer = with_trailers(&world, "").await;
        assert!(answer.ends_with("thr\r\n0\r\n\r\n") || answer.ends_with("\r\nthr"), "{answer}");
        assert_eq!(world.hits(), [2, 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_given_up_attempt_says_later_is_refused_and_counted_and_its_connection_kept() {
    let world = world("policy: UntilPointOfNoReturn, perAttempt: 500ms, deadline: 50s").await;
    world.cells[0].behave(Behaviour::Hang);
    let mut client = world.client().await;
    assert_eq!(client.send(post("/", "x")).await.cell(), "b");
    assert_eq!(world.serving().await.cells["a"].in_flight, 1, "it may well be at work there");
    world.cells[0].behave(Behaviour::Echo);
    let refused = async || {
        let late = "bulkhead_router_late_replies_total{cell=\"a\",kind=\"answer\"} 1";
        world.metrics().await.contains(late)
    };
    eventually("the late answer is refused", refused).await;
    eventually("nothing is under way in a", async || world.serving().await.cells["a"].in_flight == 0).await;
    assert_eq!(client.send(post("/", "y")).await.cell(), "a");
    assert_eq!(world.cells[0].connections(), 1);
}

/// Has the cell disabled once it has that many requests.
async fn disable(world: &World, requests: u64) {
    eventually("the requests are in a", async || world.cells[0].hits() == requests).await;
    let text = cell("a", 100, world.cells[0].address).replace("{weight", "{state: Disabled, weight");
    world.write("cell-a.yaml", &text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_cell_gives_back_what_is_in_flight() {
    let world = until().await;
    world.cells[0].behave(Behaviour::Hang);
    let mut client = world.client().await;
    let (answer, ()) = tokio::join!(client.send(post("/", "x")), disable(&world, 1));
    assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("b", "2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_disabled_cell_may_have_done_is_not_told_as_nothing() {
    let mut world = until().await;
    world.cells[0].behave(Behaviour::Hang);
    // It goes on saying ready.
    world.cells[1].refuse_traffic().await;
    let mut client = world.client().await;
    let (answer, ()) = tokio::join!(client.send(post("/", "x")), disable(&world, 1));
    assert_eq!(answer.problem(), (502, "CellDisabled".to_owned()));
}

/// Sends a POST that has to stay in a while it is disabled, and a GET that is given back and so shows that a was asked.
async fn stays(world: &World) {
    world.cells[0].behave(Behaviour::Hang);
    let (mut client, mut witness) = (world.client().await, world.client().await);
    let given_back = async {
        let mut get = get("/");
        get.headers_mut().insert("x-witness", "1".parse().expect("a legal value"));
        let (given_back, ()) = tokio::join!(witness.send(get), disable(world, 2));
        assert_eq!(given_back.cell(), "b");
        world.cells[0].behave(Behaviour::Echo);
    };
    let (answer, ()) = tokio::join!(client.send(post("/", "x")), given_back);
    assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("a", "1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disabled_cell_finishes_what_must_not_start_over() {
    stays(&world("policy: SafeOnly").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_cell_of_a_rule_keeps_what_it_has_although_it_is_disabled() {
    let witness = "matches: [{all: [{header: x-witness, exact: '1'}]}], groups: [{cells: [{name: a}]}, {cells: [{name: b}]}]";
    let text = format!(
        "  - {{name: witness, {witness}}}\n  - {{name: all, restart: {{policy: UntilPointOfNoReturn}}, groups: [{{cells: [{{name: a}}]}}]}}\n"
    );
    stays(&Setup { policy: rules(&text), threads: 1, ..Setup::default() }.start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_is_the_callers_and_not_an_attempts() {
    let world = world("policy: UntilPointOfNoReturn, perAttempt: 400ms, deadline: 1s").await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Hang));
    let clock = bulkhead_process::Monotonic::start();
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!(answer.problem(), (504, "Timeout".to_owned()));
    assert!(clock.elapsed() >= Duration::from_millis(800), "each cell had its time");
    assert_eq!(world.hits(), [1, 1]);
}
