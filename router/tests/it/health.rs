//! Cells go out and come back by what their orchestrators say, or do not say.

use std::time::Duration;

use bulkhead_process::Monotonic;
use tokio::task::JoinSet;

use crate::client::get;
use crate::fake::{Behaviour, FakeCell};
use crate::world::{Setup, World, cell, eventually, policy, rules};

/// That a goes out for that reason while requests flow, that none of them fails, and that it gets none from then on. How
/// soon that is, the stories of `routing` tell.
async fn check_goes_out(world: &World, reason: &str) {
    let mut client = world.client().await;
    let out = async || {
        assert_eq!(client.send(get("/")).await.status, 200);
        world.serving().await.cells["a"].reason == reason
    };
    eventually("a is out", out).await;
    let before = world.cells[0].hits();
    assert_eq!(world.spread(100).await.get("b"), Some(&100));
    assert_eq!(world.cells[0].hits(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn not_ready_takes_a_cell_out_and_nothing_fails() {
    let world = World::start().await;
    world.cells[0].say(false, "ServiceNotReady");
    check_goes_out(&world, "ServiceNotReady").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_falls_silent_without_a_word_is_out_and_nothing_fails() {
    let world = World::start().await;
    world.cells[0].mute();
    check_goes_out(&world, "Silent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_cell_costs_no_request() {
    let mut world = World::start().await;
    let mut client = world.client().await;
    for _ in 0..20 {
        assert_eq!(client.send(get("/")).await.status, 200);
    }
    world.cells[0].kill().await;
    let before = world.hits()[0];
    for _ in 0..200 {
        assert_eq!(client.send(get("/")).await.cell(), "b");
    }
    assert_eq!(world.hits()[0], before);
    world.until_reason("a", "ConnectFailed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_comes_back_by_steps() {
    let by = |failback: &str| {
        rules(&format!(
            "  - {{name: all, failback: {{{failback}}}, groups: [{{cells: [{{name: a}}, {{name: b}}]}}]}}\n"
        ))
    };
    // Longer than the test, and shorter than b says that it has been ready.
    let mut world = Setup { policy: by("holdDown: 10m"), ..Setup::default() }.start().await;
    world.cells[0].kill().await;
    world.until_in("a", false).await;
    let clock = Monotonic::start();
    world.cells[0].start_again().await;
    world.until_in("a", true).await;
    assert_eq!(world.spread(50).await.get("b"), Some(&50));
    assert_eq!(world.serving().await.cells["a"].effective_weight, 0);
    world.write("policy.yaml", &by("holdDown: 0s, steps: [25, 100], interval: 10m"));
    world.until_share("a", 200_000).await;
    // That step ends by itself.
    let end = clock.elapsed() + Duration::from_secs(1);
    world.write(
        "policy.yaml",
        &by(&format!("holdDown: 0s, steps: [25, 100], interval: {}ms", end.as_millis())),
    );
    world.until_share("a", 500_000).await;
    assert!(clock.elapsed().as_millis() >= end.as_millis(), "{:?}", clock.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cell_out_is_503_with_the_reason() {
    let world = World::start().await;
    world.cells.iter().for_each(|cell| cell.say(false, "ServiceNotReady"));
    world.until_in("a", false).await;
    world.until_in("b", false).await;
    let before = world.hits();
    assert_eq!(world.client().await.send(get("/")).await.problem(), (503, "NoHealthyCell".to_owned()));
    assert_eq!(world.hits(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_belongs_to_the_cell_and_not_to_its_rules_and_streams_do_not_multiply() {
    let many: String = (0..100)
        .map(|number| {
            format!(
                "  - {{name: r{number}, matches: [{{all: [{{attribute: path, exact: /{number}}}]}}], groups: [{{cells: [{{name: a}}]}}, {{cells: [{{name: b}}]}}]}}\n"
            )
        })
        .collect();
    let world = Setup { policy: rules(&many), ..Setup::default() }.start().await;
    world.cells[0].say(false, "ServiceNotReady");
    world.until_in("a", false).await;
    let mut client = world.client().await;
    for number in 0..100 {
        assert_eq!(client.send(get(&format!("/{number}"))).await.cell(), "b");
    }
    // Reloads leave the one stream alone.
    for edit in 2..12 {
        world.set_weight(1, 100 - edit);
        world.serves("Cell/b", i64::from(edit)).await;
    }
    let open = || world.cells.iter().map(FakeCell::open_streams).collect::<Vec<_>>();
    eventually("each has its stream", async || open() == [1, 1]).await;
    world.cells.iter().for_each(FakeCell::check_one_stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_a_cell_end_with_its_object_and_the_others_stay() {
    let text = policy("[{cells: [{name: a}, {name: b}, {name: c}]}]");
    let world = Setup { cells: vec!["a", "b", "c"], policy: text, ..Setup::default() }.start().await;
    for edit in 2..12 {
        world.set_weight(2, 100 - edit);
        world.serves("Cell/c", i64::from(edit)).await;
    }
    let open = || world.cells.iter().map(FakeCell::open_streams).collect::<Vec<_>>();
    eventually("each has its stream", async || open() == [1, 1, 1]).await;
    world.remove("cell-c.yaml");
    eventually("c is gone", async || !world.serving().await.cells.contains_key("c")).await;
    eventually("the streams of c end", async || open() == [1, 1, 0]).await;
    let of_c = world.cells[2].streams();
    assert_eq!(world.spread(50).await.get("c"), None);
    assert_eq!(world.cells[2].streams(), of_c);
    world.cells.iter().for_each(FakeCell::check_one_stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_in_a_cell_that_goes_out_is_let_finish() {
    let text = policy("[{cells: [{name: a}]}, {cells: [{name: b}]}]");
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Hang);
    let mut client = world.client().await;
    let slow = tokio::spawn(async move { client.send(get("/")).await });
    eventually("the request is in the cell", async || world.hits()[0] == 1).await;
    world.cells[0].say(false, "Draining");
    world.until_in("a", false).await;
    world.cells[0].behave(Behaviour::Echo);
    assert_eq!(slow.await.expect("ends").cell(), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_ready_but_hangs_leaves_the_others_their_room() {
    let text = rules(
        "  - {name: a, matches: [{all: [{attribute: path, exact: /a}]}], groups: [{cells: [{name: a}]}]}
  - {name: b, groups: [{cells: [{name: b}]}]}
",
    );
    let world = Setup { policy: text, limits: "{inFlight: 50}", ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Hang);
    let mut to_a = JoinSet::new();
    for _ in 0..100 {
        let mut client = world.client().await;
        to_a.spawn(async move { client.send(get("/a")).await.problem() });
    }
    // All but those that hang are answered, and so is whoever asks for b meanwhile.
    let mut client = world.client().await;
    eventually("all but those that hang are answered", async || {
        assert_eq!(client.send(get("/")).await.cell(), "b");
        while let Some(refused) = to_a.try_join_next() {
            assert_eq!(refused.expect("ends"), (503, "Capacity".to_owned()));
        }
        to_a.len() <= 25
    })
    .await;
    eventually("a has its half", async || world.hits()[0] == 25).await;
    assert_eq!(world.spread(50).await.get("b"), Some(&50));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_is_left_alone_may_take_all_of_the_listeners_room() {
    let mut world = Setup { limits: "{inFlight: 20}", ..Setup::default() }.start().await;
    world.cells[0].kill().await;
    world.until_in("a", false).await;
    world.cells[1].behave(Behaviour::Hang);
    let mut under_way = JoinSet::new();
    for _ in 0..18 {
        let mut client = world.client().await;
        under_way.spawn(async move { client.send(get("/")).await.status.as_u16() });
    }
    eventually("all are in the cell", async || world.hits()[1] == 18).await;
    world.cells[1].behave(Behaviour::Echo);
    assert_eq!(under_way.join_all().await, [200; 18]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_cell_says_nothing_of_this_cells_capacity() {
    let text = policy("[{cells: [{name: a}]}]");
    let world = Setup { cells: vec!["a"], policy: text, ..Setup::default() }.start().await;
    // It has the address that a pod of the cell had before.
    let other = FakeCell::start("z").await;
    other.set_capacity(0);
    let a = cell("a", 100, world.cells[0].address);
    world.write("cell-a.yaml", &a.replace("']", &format!("', '{}']", other.address)));
    eventually("the other pod has been heard", async || other.streams() > 0).await;
    for again in 0..20 {
        other.say(true, "Ready");
        assert_eq!(world.spread(20).await.get("a"), Some(&20), "{again}");
    }
    assert_eq!(other.hits(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_takes_no_more_than_its_capacity() {
    let text = policy("[{cells: [{name: a}]}]");
    let world = Setup { cells: vec!["a"], policy: text, ..Setup::default() }.start().await;
    world.cells[0].set_capacity(2);
    world.cells[0].say(true, "Ready");
    let heard = async || String::from_utf8_lossy(&world.admin("/v1/table").await.body).contains("takes 2");
    eventually("the router has heard of it", heard).await;
    world.cells[0].behave(Behaviour::Hang);
    let mut held = JoinSet::new();
    for _ in 0..2 {
        let mut client = world.client().await;
        held.spawn(async move { client.send(get("/")).await });
    }
    eventually("both are in the cell", async || world.hits() == [2]).await;
    assert_eq!(world.client().await.send(get("/")).await.problem(), (503, "Capacity".to_owned()));
}
