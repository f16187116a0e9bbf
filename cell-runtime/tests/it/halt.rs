//! What is under way, and what arrives, when a service that it needs loses its pods.

use bulkhead_protocol::{Continue, EgressStatus};

use crate::harness::{Stream, eventually, start_ready};
use crate::script::{Service, back, bring, bring_answer, flow, left, pay};

const STEPS: [&str; 4] = ["validate:/", "choose:/", "destination:visa", "check:/"];
const HALTED: (u16, Option<&str>, Option<&str>) = (502, Some("ServiceFailed"), Some("restart"));
const UNTOUCHED: (u16, Option<&str>, Option<&str>) = (503, Some("ServiceNotReady"), Some("restart"));

async fn services() -> [Service; 3] {
    [Service::start("validate").await, Service::start("choose").await, Service::start("check").await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_given_back_at_once_when_a_service_that_it_still_needs_is_lost() {
    let [validate, choose, check] = services().await;
    let runtime = start_ready(flow(&[&validate, &choose, &check], &STEPS)).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    validate.hold();
    let lose = async {
        eventually("it is under way", async || validate.calls().len() == 1).await;
        check.set_ready(false);
        stream.until("not ready", |verdict| !verdict.ready).await;
    };
    // The step that it is at never answers, and its time-out is ten minutes.
    let (halted, ()) = tokio::join!(pay(&runtime, "pay"), lose);
    assert_eq!(halted.refusal(), HALTED);
    assert!(String::from_utf8_lossy(&halted.body).contains("Service check has 0 ready"), "{halted:?}");

    let answer = pay(&runtime, "pay").await;
    assert_eq!(answer.refusal(), UNTOUCHED);
    assert_eq!((validate.calls().len(), choose.calls().len()), (1, 0));

    check.set_ready(true);
    validate.release();
    stream.until("ready again", |verdict| verdict.ready).await;
    left(pay(&runtime, "pay").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_without_a_service_that_it_needs_no_more() {
    let [validate, choose, check] = services().await;
    let runtime = start_ready(flow(&[&validate, &choose, &check], &STEPS)).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    choose.hold();
    let lose = async {
        eventually("it is past validate", async || choose.calls().len() == 1).await;
        validate.set_ready(false);
        stream.until("not ready", |verdict| !verdict.ready).await;
        choose.release();
    };
    let (answer, ()) = tokio::join!(pay(&runtime, "pay"), lose);
    let left = left(answer);
    assert_eq!(pay(&runtime, "pay").await.refusal(), UNTOUCHED);
    assert_eq!(bring_answer(&runtime, &left, "approved").await.body, "approved>check");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_given_back_for_a_required_service_behind_those_that_are_called() {
    let [validate, choose, check] = services().await;
    let database = Service::start("database").await;
    let runtime = start_ready(flow(&[&validate, &choose, &check, &database], &STEPS)).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    choose.hold();
    let lose = async {
        eventually("it is under way", async || choose.calls().len() == 1).await;
        database.set_ready(false);
    };
    let (halted, ()) = tokio::join!(pay(&runtime, "pay"), lose);
    assert_eq!(halted.refusal(), HALTED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_egress_it_is_finished_here_while_a_single_pod_is_left() {
    let [validate, choose, check] = services().await;
    let mut config = flow(&[&validate, &choose, &check], &STEPS);
    let spare = Service::start("check").await;
    if let bulkhead_cell_runtime::Discovery::Fixed { services, .. } = &mut config.discovery {
        services.insert("check".to_owned(), vec![check.pod.address, spare.pod.address]);
    }
    config.cell.services[2].min_ready = 2;
    let runtime = start_ready(config).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    let left = left(pay(&runtime, "pay").await);
    spare.set_ready(false);
    stream.until("not ready", |verdict| !verdict.ready).await;
    assert_eq!(pay(&runtime, "pay").await.refusal(), UNTOUCHED);
    assert_eq!(bring_answer(&runtime, &left, "approved").await.body, "approved>check");

    check.set_ready(false);
    stream.until("none is left", |verdict| verdict.message.contains("check has 0 ready")).await;
    let answer = bring_answer(&runtime, &left, "approved").await;
    assert_eq!(answer.refusal(), HALTED);
    assert_eq!((check.calls().len(), spare.calls().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_an_egress_without_effects_it_is_given_back_to_begin_elsewhere() {
    let [validate, choose, check] = services().await;
    let steps = ["validate:/", "destination:visa", "choose:/", "check:/"];
    let runtime = start_ready(flow(&[&validate, &choose, &check], &steps)).await;
    let left = left(pay(&runtime, "pay").await);
    choose.hold();
    let lose = async {
        eventually("it is past its egress", async || choose.calls().len() == 1).await;
        check.set_ready(false);
    };
    let back = Continue { committed: false, ..back(&left, EgressStatus::Answered) };
    let (halted, ()) = tokio::join!(bring(&runtime, &back, &left.context, "approved"), lose);
    assert_eq!(halted.refusal(), HALTED);
}
