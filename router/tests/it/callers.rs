//! Callers that leave or whose time is over, and a router that stands still, before and after a message went out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bulkhead_process::Monotonic;
use bulkhead_router::BeforeSend;
use bulkhead_samples::issuer::Answer as Issues;

use crate::fake::{Ask, Behaviour, Then};
use crate::payments::{Props, SCORE, Scene, payment, text};
use crate::world::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn the_callers_deadline_holds_while_nothing_is_past_the_point_of_no_return() {
    let scene = Props { spec: SCORE, restart: "deadline: 1s", ..Props::default() }.start().await;
    scene.issuer.behave(|issuing| issuing.answer = Issues::Silent);
    let clock = Monotonic::start();
    assert_eq!(scene.pay("7").await.problem(), (504, "Timeout".to_owned()));
    assert!(clock.elapsed() < Duration::from_secs(4), "the destination itself may take five");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_before_the_message_takes_it_along() {
    let scene = Scene::start().await;
    scene.world.cells[0].behave(Behaviour::Hang);
    let mut client = scene.world.client().await;
    tokio::select! {
        _ = client.send(payment("7")) => panic!("nobody answers"),
        () = eventually("it is in a", async || scene.world.cells[0].hits() == 1) => {}
    }
    drop(client);
    let left = async || scene.world.serving().await.cells["a"].in_flight == 0;
    eventually("it is given up", left).await;
    assert_eq!((scene.received(), scene.standings().await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_leaves_after_the_message_leaves_it_to_be_finished() {
    let scene = Scene::start().await;
    scene.asks(0, Ask { then: Then::Hang, ..Ask::of("visa") });
    let mut client = scene.world.client().await;
    tokio::select! {
        _ = client.send(payment("7")) => panic!("nobody answers"),
        () = eventually("what came of it is in a", async || scene.world.cells[0].hits() == 2) => {}
    }
    drop(client);
    // It is under way still, and its key with it.
    let refused = async || scene.pay("7").await.problem() == (409, "InFlight".to_owned());
    eventually("it goes on without its caller", refused).await;
    scene.asks(0, Ask::of("visa"));
    let decided = async || scene.pay("7").await.problem() == (409, "Decided".to_owned());
    eventually("it is finished", decided).await;
    assert_eq!((scene.executed(), scene.world.hits()), (1, vec![2, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_deadline_is_over_is_told_the_truth_and_the_rest_is_finished() {
    let scene = Props { restart: "deadline: 1s", ..Props::default() }.start().await;
    scene.issuer.behave(|issuing| issuing.delay_ms = 2_000);
    assert_eq!(scene.pay("7").await.problem(), (500, "OutcomeUnknown".to_owned()));
    scene.until_standing("decided").await;
    assert_eq!(scene.executed(), 1);
    eventually("a was told", async || scene.world.hits() == [2, 0]).await;
}

/// Stops the router's thread once, between the record and the first byte, until it is let go.
#[derive(Default)]
struct Stop {
    reached: AtomicBool,
    released: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    fn before_send(self: &Arc<Self>) -> BeforeSend {
        let stop = Arc::clone(self);
        BeforeSend(Some(Arc::new(move || {
            stop.reached.store(true, Ordering::SeqCst);
            let released = stop.released.lock().expect("no test panics here");
            drop(stop.changed.wait_while(released, |released| !*released));
        })))
    }

    fn release(&self) {
        *self.released.lock().expect("no test panics here") = true;
        self.changed.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stood_still_between_record_and_message_sends_nothing_too_late() {
    let stop = Arc::new(Stop::default());
    let props = Props { restart: "deadline: 1s", before_send: stop.before_send(), ..Props::default() };
    let scene = props.start().await;
    let clock = Monotonic::start();
    let stands = async {
        eventually("the router stands", async || stop.reached.load(Ordering::SeqCst)).await;
        assert_eq!(scene.standings().await, ["open"], "it is on record");
        eventually("the deadline is over", async || clock.elapsed() > Duration::from_secs(2)).await;
        stop.release();
    };
    let (answer, ()) = tokio::join!(scene.pay("7"), stands);
    assert_eq!(answer.problem().0, 504, "{answer:?}");
    assert_eq!((scene.received(), scene.standings().await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_stood_still_for_a_moment_sends_it() {
    let stop = Arc::new(Stop::default());
    let scene = Props { before_send: stop.before_send(), ..Props::default() }.start().await;
    stop.release();
    assert!(text(&scene.pay("7").await).starts_with("42 answered"));
    assert!(stop.reached.load(Ordering::SeqCst));
}
