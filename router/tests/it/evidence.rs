//! Cells that say they are well and do worse than their siblings. What they get when, the stories of `routing` tell.

use std::time::Duration;

use bulkhead_process::Monotonic;

use crate::client::get;
use crate::fake::{Behaviour, FakeCell};
use crate::world::{Setup, World, eventually, rules};

/// Three cells of one group that come back at once.
async fn three(failback: &str) -> World {
    let policy = rules(&format!(
        "  - {{name: all, failback: {{{failback}}}, groups: [{{cells: [{{name: a}}, {{name: b}}, {{name: c}}]}}]}}\n"
    ));
    Setup { cells: vec!["a", "b", "c"], policy, ..Setup::default() }.start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_whose_answers_fail_is_kept_out_until_it_is_well_again() {
    let world = three("holdDown: 0s, steps: [50, 100], interval: 100ms").await;
    world.cells[0].behave(Behaviour::FailHalf);
    let mut client = world.client().await;
    let told = async || {
        for _ in 0..20 {
            client.send(get("/")).await;
        }
        world.serving().await.cells["a"].reason == "HighErrorRate"
    };
    eventually("a is suspected", told).await;
    let serving = world.serving().await;
    assert!(serving.cells["a"].r#in && serving.cells["a"].effective_weight == 0, "{serving:?}");
    let before = world.cells[0].hits();
    let spread = world.spread(100).await;
    assert_eq!(spread.keys().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(world.cells[0].hits(), before);
    let metrics = world.metrics().await;
    for line in [
        "bulkhead_router_cell_suspect{cell=\"a\"} 1",
        "bulkhead_router_cell_suspect{cell=\"b\"} 0",
        "bulkhead_router_cell_transitions_total{cell=\"a\",to=\"suspect\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is missing");
    }
    world.cells[0].behave(Behaviour::Echo);
    world.until_reason("a", "Ready").await;
    world.until_share("a", 333_333).await;
    assert_eq!(world.spread(200).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_cell_fails_none_is_kept_out() {
    let world = three("holdDown: 10m").await;
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::FailHalf));
    let mut client = world.client().await;
    let clock = Monotonic::start();
    // Many looks, and many samples for each.
    while clock.elapsed() < Duration::from_secs(2) || world.hits().iter().any(|hits| *hits < 200) {
        for _ in 0..50 {
            client.send(get("/")).await;
        }
        let cells = world.serving().await.cells;
        assert!(cells.values().all(|cell| cell.reason == "Ready"), "{cells:?}");
    }
    let before = world.hits();
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Echo));
    assert_eq!(world.spread(100).await.len(), 3);
    assert!(world.cells.iter().map(FakeCell::hits).zip(before).all(|(now, before)| now > before));
}
