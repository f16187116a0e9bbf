//! Attempts that fail, and what may be done about it.

use std::time::Duration;

use bulkhead_process::Monotonic;

use crate::client::{get, post};
use crate::fake::{Behaviour, FakeCell};
use crate::world::{Setup, World, eventually, policy, rules};

/// Everything goes to a first; b stands by.
fn first_a() -> String {
    policy("[{cells: [{name: a}]}, {cells: [{name: b}]}]")
}

async fn world() -> World {
    Setup { policy: first_a(), ..Setup::default() }.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_request_whose_cell_breaks_off_is_answered_by_another() {
    let world = world().await;
    world.cells[0].behave(Behaviour::Reset);
    let answer = world.client().await.send(get("/")).await;
    assert_eq!((answer.status.as_u16(), answer.cell()), (200, "b"));
    assert_eq!(answer.header("bulkhead-attempts"), "2");
    assert_eq!(world.hits(), [1, 1]);
    let (first, second) = (world.cells[0].seen(), world.cells[1].seen());
    assert_eq!(first[0].headers["bulkhead-transaction"], second[0].headers["bulkhead-transaction"]);
    assert_eq!(second[0].headers["bulkhead-attempt"], "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_was_sent_is_never_sent_again() {
    let world = world().await;
    world.cells[0].behave(Behaviour::Reset);
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!(answer.problem(), (502, "UpstreamReset".to_owned()));
    assert_eq!(world.hits(), [1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cell_gives_back_goes_to_another_with_the_same_bytes() {
    let world = world().await;
    world.cells[0].behave(Behaviour::Restart);
    let answer = world.client().await.send(post("/", "the same bytes")).await;
    assert_eq!((answer.cell(), &answer.body[..]), ("b", &b"the same bytes"[..]));
    assert_eq!(world.cells[0].seen()[0].body, world.cells[1].seen()[0].body);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_service_may_have_done_is_done_again_only_if_idempotent() {
    let world = world().await;
    world.cells[0].behave(Behaviour::FailedWithin);
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!(answer.problem(), (502, "ServiceFailed".to_owned()));
    assert_eq!(world.hits(), [1, 0]);
    assert_eq!(world.client().await.send(get("/")).await.cell(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_with_a_body_that_never_ends_leaves_its_cell() {
    let world = world().await;
    world.cells[0].behave(Behaviour::RestartWithoutEnd);
    assert_eq!(world.client().await.send(post("/", "x")).await.cell(), "b");
    assert_eq!(world.hits(), [1, 1]);
    let left = async || world.serving().await.cells["a"].in_flight == 0;
    eventually("nothing is under way in a", left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_a_newer_orchestrator_is_no_promise_that_nothing_happened() {
    let world = world().await;
    world.cells[0].behave(Behaviour::GiveBack(500, "Overheated"));
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!(answer.problem(), (502, "ServiceFailed".to_owned()));
    assert_eq!(world.hits(), [1, 0]);
    world.cells[0].behave(Behaviour::GiveBack(503, "Crowded"));
    assert_eq!(world.client().await.send(post("/", "x")).await.cell(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_never_says_that_nothing_happened_where_something_may_have() {
    let world = world().await;
    world.cells[0].behave(Behaviour::Reset);
    world.cells[1].behave(Behaviour::Restart);
    let answer = world.client().await.send(get("/")).await;
    assert_eq!(answer.problem(), (502, "UpstreamReset".to_owned()));
    assert_eq!(world.hits(), [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_cell_left_the_reason_of_the_last_one_is_told() {
    let world = world().await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Restart));
    let answer = world.client().await.send(post("/", "x")).await;
    assert_eq!(answer.problem(), (503, "ServiceNotReady".to_owned()));
    assert_eq!(world.hits(), [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_cell_is_not_asked_again() {
    let world = world().await;
    world.cells[0].behave(Behaviour::Misdirected);
    assert_eq!(world.client().await.send(post("/", "x")).await.cell(), "b");
    assert_eq!(world.hits(), [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_no_error_even_for_a_post() {
    let mut world = world().await;
    world.cells[0].kill().await;
    let mut client = world.client().await;
    for _ in 0..50 {
        assert_eq!(client.send(post("/", "x")).await.cell(), "b");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_the_cell_closed_is_no_error_even_for_a_post() {
    let text = policy("[{cells: [{name: a}]}]");
    let mut world = Setup { cells: vec!["a"], policy: text, threads: 1, ..Setup::default() }.start().await;
    let mut client = world.client().await;
    for _ in 0..5 {
        assert_eq!(client.send(post("/", "x")).await.status, 200);
        world.cells[0].kill().await;
        world.cells[0].start_again().await;
        // The cell may be out for a moment; what must not come is an error of the stale connection.
        eventually("the cell answers again", async || {
            let answer = client.send(post("/", "x")).await;
            assert!(answer.status == 200 || answer.problem().0 == 503, "{answer:?}");
            answer.status == 200 && world.cells[0].streams() > 0
        })
        .await;
        world.until_in("a", true).await;
    }
    world.cells[0].behave(Behaviour::EchoAndClose);
    for _ in 0..20 {
        assert_eq!(client.send(post("/", "x")).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_attempt_ends_at_its_time_and_only_an_idempotent_one_goes_on() {
    let text = rules(
        "  - {name: all, restart: {perAttempt: 2s, deadline: 20s}, groups: [{cells: [{name: a}]}, {cells: [{name: b}]}]}\n",
    );
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Hang);
    let clock = Monotonic::start();
    assert_eq!(world.client().await.send(get("/")).await.cell(), "b");
    assert!(clock.elapsed() >= Duration::from_secs(2));
    assert_eq!(world.client().await.send(post("/", "x")).await.problem(), (504, "Timeout".to_owned()));
    eventually("each was where it should", async || world.hits() == [2, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_never_restarts_does_not() {
    let text = rules(
        "  - {name: all, restart: {policy: Never}, groups: [{cells: [{name: a}]}, {cells: [{name: b}]}]}\n",
    );
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Restart);
    assert_eq!(world.client().await.send(get("/")).await.problem(), (503, "ServiceNotReady".to_owned()));
    assert_eq!(world.hits(), [1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_stop_when_the_budget_is_used_up() {
    let world = Setup { policy: first_a(), threads: 1, ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Reset);
    let mut client = world.client().await;
    let mut answered = 0;
    for _ in 0..60 {
        answered += u32::from(client.send(get("/")).await.status == 200);
    }
    // Ten at once, and one for every five that ended.
    assert!((15..=30).contains(&answered), "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_refuses_is_no_attempt_while_another_of_its_cell_takes_it() {
    let mut world = world().await;
    let other = FakeCell::start("a").await;
    let both = format!("['{}', '{}']", world.cells[0].address, other.address);
    let one = format!("['{}']", world.cells[0].address);
    let text = crate::world::cell("a", 100, world.cells[0].address).replace(&one, &both);
    world.write("cell-a.yaml", &text);
    eventually("both pods are heard", async || world.serving().await.cells["a"].pods == 2).await;
    // Its health stream goes on saying ready.
    world.cells[0].refuse_traffic().await;
    let mut client = world.client().await;
    for _ in 0..100 {
        let answer = client.send(post("/", "x")).await;
        assert_eq!((answer.cell(), answer.header("bulkhead-attempts")), ("a", "1"), "{answer:?}");
    }
    assert_eq!(other.hits(), 100);
}
