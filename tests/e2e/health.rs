//! Traffic leaves a cell whose orchestrator is not ready or silent, and goes to the next in order of priority.

use std::time::Duration;

use bulkhead_tests::pods::{Stopped, Unready, orchestrators, routers};
use bulkhead_tests::stall::StallWatch;
use bulkhead_tests::traffic::{Load, Request, now_ms, send};
use bulkhead_tests::{World, eventually};

/// From a service's readiness to the last new request: what DESIGN promises for probe, verdict and router together.
const NOT_READY_MS: u64 = 500;
/// From the moment an orchestrator stops without a word to the last new request.
const SILENT_MS: u64 = 1_000;

#[test]
fn a_cell_whose_service_is_not_ready_gets_no_new_request() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 300);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a gets its share first");
    let stalls = StallWatch::start();
    let unready = Unready::new(world, "payments-a").expect("the services take the order");
    let flipped = now_ms();
    eventually(Duration::from_secs(10), || {
        world.expect_condition("payments-a", "OrchestratorReady", "False")
    })
    .expect("status says so");
    load.wait_for_since(Duration::from_secs(10), "payments-b", flipped + NOT_READY_MS + 1_000)
        .expect("payments-b goes on");
    let limit = flipped + NOT_READY_MS + stalls.longest_ms();
    let end = now_ms();
    drop(unready);
    load.wait_for_since(Duration::from_secs(60), "payments-a", end).expect("it comes back");
    let outcome = load.stop();
    let late = |cell| outcome.sent_between(cell, limit, end);
    assert_eq!(late("payments-a"), 0, "requests to a cell that is not ready");
    assert!(late("payments-b") > 0, "the negative control: traffic went on");
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed.first());
}

#[test]
fn a_silent_orchestrator_gets_no_new_request_after_a_second() {
    let (world, _turn) = World::enter();
    let load = Load::start(world, 300);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("payments-a gets its share first");
    let stalls = StallWatch::start();
    let stopped = Stopped::new(orchestrators(world, "payments-a").expect("orchestrators")).expect("stopped");
    let from = now_ms();
    load.wait_for_since(Duration::from_secs(10), "payments-b", from + SILENT_MS + 1_000)
        .expect("payments-b goes on");
    let limit = from + SILENT_MS + stalls.longest_ms();
    let end = now_ms();
    drop(stopped);
    load.wait_for_since(Duration::from_secs(60), "payments-a", end).expect("it comes back");
    let outcome = load.stop();
    let late = |cell| outcome.sent_between(cell, limit, end);
    assert_eq!(late("payments-a"), 0, "requests to a silent cell");
    assert!(late("payments-b") > 0, "the negative control: traffic went on");
    // What is in flight when a cell falls silent waits for its own time-out; nothing later may fail.
    let failed_late = outcome.failed.iter().find(|failure| failure.sent_ms >= limit);
    assert!(failed_late.is_none(), "{failed_late:?}");
}

#[test]
fn with_a_out_all_goes_to_b_then_to_the_next_group_and_then_nowhere() {
    let (world, _turn) = World::enter();
    let router = routers(world).expect("routers")[0];
    let answered_by = |cell: &str| {
        eventually(Duration::from_secs(10), || {
            for key in 0..50 {
                let answer = send(router, &Request::get("/").header("x-account", &key.to_string()))?;
                anyhow::ensure!(
                    answer.cell() == Some(cell),
                    "key {key} was answered {} by {:?}",
                    answer.status,
                    answer.cell()
                );
            }
            Ok(())
        })
    };
    let a = Unready::new(world, "payments-a").expect("the services take the order");
    answered_by("payments-b").expect("b takes all of its group");
    let b = Unready::new(world, "payments-b").expect("the services take the order");
    answered_by("payments-c").expect("the second group takes over");
    let c = Unready::new(world, "payments-c").expect("the services take the order");
    let refused = eventually(Duration::from_secs(10), || {
        let answer = send(router, &Request::get("/"))?;
        // A cell that has not yet been taken out may still say itself that it is not ready.
        let nobody = answer.status == 503 && answer.json()["reason"] == "NoHealthyCell";
        anyhow::ensure!(nobody, "answered {} by {:?}: {}", answer.status, answer.cell(), answer.body);
        Ok(answer)
    })
    .expect("with every cell out there is nobody to answer");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    drop((c, b, a));
}
