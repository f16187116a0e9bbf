//! The verdict and its stream.

use bulkhead_cell_runtime::{Bound, Discovery};
use bulkhead_process::{Monotonic, Shutdown};
use bulkhead_protocol::{Beat, HealthLine};

use crate::harness::{Pod, Stream, config, eventually, start, start_ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_not_ready_takes_the_cell_out_and_the_age_starts_over() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    let first = stream.until("ready", |verdict| verdict.ready).await;
    assert_eq!((first.cell.as_str(), first.pod.as_str(), first.revision.as_str()), ("a", "a-0", "r1"));

    web.controls.set_ready(false);
    let verdict = stream.until("not ready", |verdict| !verdict.ready).await;
    assert_eq!((verdict.reason.as_str(), verdict.ready_for_ms), ("ServiceNotReady", 0));
    assert!(verdict.message.contains("answered 503"), "{}", verdict.message);

    let clock = Monotonic::start();
    web.controls.set_ready(true);
    let verdict = stream.until("ready again", |verdict| verdict.ready).await;
    assert!(verdict.ready_for_ms <= clock.millis(), "it is older than its readiness: {verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_pod_takes_the_cell_out_only_when_too_few_are_left() {
    let (one, two) = (Pod::start("web").await, Pod::start("web").await);
    let runtime = start_ready(config(&[&one, &two])).await;
    runtime.until_pods_are_ready(2).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    one.kill().await;
    runtime.until_pods_are_ready(1).await;
    // With one of two left it stays ready; a while of beats shows that no verdict says otherwise.
    for _ in 0..4 {
        match stream.next().await {
            Some(HealthLine::Verdict(verdict)) => assert!(verdict.ready, "{verdict:?}"),
            Some(HealthLine::Beat(_)) => {}
            None => panic!("the stream ended"),
        }
    }
    two.kill().await;
    let verdict = stream.until("not ready", |verdict| !verdict.ready).await;
    assert_eq!(verdict.reason, "ServiceNotReady");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_opened_again_begins_with_the_verdict_and_routers_are_counted() {
    let web = Pod::start("web").await;
    let runtime = start_ready(config(&[&web])).await;
    let mut first = Stream::open(runtime.addresses.health).await;
    assert!(matches!(first.next().await, Some(HealthLine::Verdict(_))));
    let mut second = Stream::open(runtime.addresses.health).await;
    eventually("both are counted", async || {
        matches!(first.next().await, Some(HealthLine::Beat(Beat { routers: 2, .. })))
    })
    .await;
    drop(first);
    eventually("the one that left is not", async || {
        matches!(second.next().await, Some(HealthLine::Beat(Beat { routers: 1, .. })))
    })
    .await;
    drop(second);
    let mut third = Stream::open(runtime.addresses.health).await;
    assert!(matches!(third.next().await, Some(HealthLine::Verdict(verdict)) if verdict.ready));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_orchestrator_inherits_since_when_the_cell_is_ready() {
    let web = Pod::start("web").await;
    let old = start_ready(config(&[&web])).await;
    // It asks once; when this machine stalls just then, an age starts over, and another one is asked for.
    eventually("a new one is as old as its peer", async || {
        let mut stream = Stream::open(old.addresses.health).await;
        let mut known = 0;
        while known < 1_000 {
            known = stream.ready_for_ms().await;
        }
        let mut young = config(&[&web]);
        if let Discovery::Fixed { peers, .. } = &mut young.discovery {
            peers.push(old.addresses.health);
        }
        let clock = Monotonic::start();
        let young = start(young).await;
        let mut stream = Stream::open(young.addresses.health).await;
        stream.until("ready", |verdict| verdict.ready).await;
        let told = stream.ready_for_ms().await;
        told >= known && told > clock.millis()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_optional_service_is_named_but_does_not_count() {
    let (web, audit) = (Pod::start("web").await, Pod::start("audit").await);
    audit.controls.set_ready(false);
    let mut with_audit = config(&[&web]);
    let optional = bulkhead_crds::template::Service { required: false, ..crate::harness::service("audit") };
    with_audit.cell.services.push(optional);
    if let Discovery::Fixed { services, .. } = &mut with_audit.discovery {
        services.insert("audit".to_owned(), vec![audit.address]);
    }
    let runtime = start(with_audit).await;
    let mut stream = Stream::open(runtime.addresses.health).await;
    let told = |verdict: &bulkhead_protocol::Verdict| verdict.ready && verdict.message.contains("audit");
    stream.until("ready, with a word about audit", told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_that_does_not_run_is_told_although_the_stream_goes_on() {
    let web = Pod::start("web").await;
    let config = config(&[&web]);
    let (told, addresses) = std::sync::mpsc::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (block, blocked) = tokio::sync::oneshot::channel::<()>();
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    // One thread runs its traffic, so that one task can keep it from running.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let bound = Bound::bind(config).await.expect("binds");
            told.send(bound.addresses()).expect("is awaited");
            tokio::spawn(async move {
                blocked.await.expect("is told to");
                let _ = held.recv();
            });
            bound.run(stop).await
        })
    });
    let addresses = addresses.recv().expect("is told");
    let mut stream = Stream::open(addresses.health).await;
    stream.until("ready", |verdict| verdict.ready).await;
    block.send(()).expect("is awaited");
    let verdict = stream.until("not ready", |verdict| !verdict.ready).await;
    assert_eq!(verdict.reason, "Stalled");
    drop(release);
    stream.until("ready again", |verdict| verdict.ready).await;
    shutdown.trigger();
    tokio::task::spawn_blocking(|| thread.join()).await.expect("ends").expect("no panic").expect("no error");
}
