//! Cells go out and come back by what their orchestrators say, or do not say.

use std::time::Duration;

use bulkhead_process::Monotonic;
use tokio::task::JoinSet;

use crate::client::get;
use crate::fake::{Behaviour, FakeCell};
use crate::world::{Setup, World, cell, eventually, policy, rules};

/// Sends GETs until none has gone to the cell for a while, and says how long the last one that did came after the start.
async fn last_hit(world: &World, place: usize, watch_for: Duration) -> Duration {
    let clock = Monotonic::start();
    let mut client = world.client().await;
    let mut last = Duration::ZERO;
    while clock.elapsed() < watch_for {
        let began = clock.elapsed();
        let before = world.cells[place].hits();
        let answer = tokio::time::timeout(Duration::from_secs(5), client.send(get("/"))).await;
        assert_eq!(answer.expect("is answered in time").status, 200);
        if world.cells[place].hits() > before {
            last = began;
        }
    }
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn not_ready_takes_a_cell_out_within_250_ms_and_nothing_fails() {
    let world = World::start().await;
    world.cells[0].say(false, "ServiceNotReady");
    let last = last_hit(&world, 0, Duration::from_millis(600)).await;
    assert!(last <= Duration::from_millis(250), "{last:?}");
    assert_eq!(world.serving().await.cells["a"].reason, "ServiceNotReady");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_falls_silent_without_a_word_is_out_within_a_second() {
    let world = World::start().await;
    world.cells[0].mute();
    let last = last_hit(&world, 0, Duration::from_millis(1_500)).await;
    assert!(last <= Duration::from_secs(1), "{last:?}");
    assert_eq!(world.serving().await.cells["a"].reason, "Silent");
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
    world.until_in("a", false).await;
    assert_eq!(world.serving().await.cells["a"].reason, "ConnectFailed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_comes_back_by_steps() {
    let text = rules(
        "  - {name: all, failback: {holdDown: 1s, steps: [1, 100], interval: 1s}, groups: [{cells: [{name: a}, {name: b}]}]}\n",
    );
    let mut world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].kill().await;
    world.until_in("a", false).await;
    world.cells[0].start_again().await;
    world.until_in("a", true).await;
    let clock = Monotonic::start();
    assert_eq!(world.spread(50).await.get("b"), Some(&50));
    assert!(clock.elapsed() < Duration::from_millis(900), "too slow to have seen the hold-down");
    assert_eq!(world.serving().await.cells["a"].effective_weight, 0);
    eventually("a has its whole share again", async || {
        world.serving().await.shares["default/shop/all"]["a"] == 500_000
    })
    .await;
    assert!(clock.elapsed() >= Duration::from_millis(1_900), "{:?}", clock.elapsed());
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
    assert_eq!(world.cells[0].streams(), 1);
    assert_eq!(world.cells[1].streams(), 1);
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
    assert_eq!(open(), [1, 1, 1]);
    world.remove("cell-c.yaml");
    eventually("the streams of c end", async || open() == [1, 1, 0]).await;
    assert!(!world.serving().await.cells.contains_key("c"));
    assert_eq!(world.spread(50).await.get("c"), None);
    assert_eq!((open(), world.cells.iter().map(FakeCell::streams).collect()), (vec![1, 1, 0], vec![1, 1, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_in_a_cell_that_goes_out_is_let_finish() {
    let text = policy("[{cells: [{name: a}]}, {cells: [{name: b}]}]");
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].behave(Behaviour::Slow(Duration::from_millis(800)));
    let mut client = world.client().await;
    let slow = tokio::spawn(async move { client.send(get("/")).await });
    eventually("the request is in the cell", async || world.hits()[0] == 1).await;
    world.cells[0].say(false, "Draining");
    world.until_in("a", false).await;
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
    world.cells[1].behave(Behaviour::Slow(Duration::from_secs(1)));
    let mut under_way = JoinSet::new();
    for _ in 0..18 {
        let mut client = world.client().await;
        under_way.spawn(async move { client.send(get("/")).await.status.as_u16() });
    }
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
    world.cells[0].behave(Behaviour::Hang);
    let mut held = Vec::new();
    let mut refused = false;
    for _ in 0..20 {
        let mut client = world.client().await;
        let mut request = tokio::spawn(async move { client.send(get("/")).await });
        match tokio::time::timeout(Duration::from_millis(300), &mut request).await {
            Ok(answer) => {
                assert_eq!(answer.expect("ends").problem(), (503, "Capacity".to_owned()));
                refused = true;
                break;
            }
            Err(_) => held.push(request),
        }
    }
    assert!(refused && held.len() <= 3, "{} were let in", held.len());
    held.iter().for_each(tokio::task::JoinHandle::abort);
}
