//! Clients that do what costs them little and the router much: each is ended with a word and counted, and nobody else notices.

use h2::Reason;

use super::serving::one;
use super::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GET, HEADERS, Http2, PING, RST_STREAM, SETTINGS,
    block, frame, get,
};
use crate::world::eventually;

/// Sends the frames again and again, to a streams of its own each time, until the router has enough.
async fn check(frames: impl Fn(u32) -> Vec<u8>, limits: &'static str, fault: &str) {
    let world = one(limits).await;
    let bystander = Http2::connect(world.address).await;
    assert_eq!(bystander.send(get("/"), "").await.status, 200);
    let mut flood = Frames::begin(world.address).await;
    for number in 0..20_000 {
        flood.send(&frames(2 * number + 1)).await;
    }
    assert_eq!(flood.goodbye().await, Some(Reason::ENHANCE_YOUR_CALM), "{fault}");
    let line = format!("bulkhead_router_http2_faults_total{{listener=\"http\",reason=\"{fault}\"}} 1");
    eventually(&line, async || world.metrics().await.contains(&line)).await;
    assert_eq!(bystander.send(get("/"), "").await.status, 200);
    eventually("nothing is left", async || world.serving().await.cells["a"].in_flight == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_opened_and_taken_back() {
    let opened = |stream| frame(HEADERS, END_STREAM | END_HEADERS, stream, &block(&GET));
    let reset = |stream| frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
    check(|stream| [opened(stream), reset(stream)].concat(), "{}", "RapidReset").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings() {
    check(|_| frame(SETTINGS, 0, 0, &[]), "{}", "ControlFlood").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pings() {
    check(|_| frame(PING, 0, 0, &[0; 8]), "{}", "ControlFlood").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_without_data() {
    let begun = |stream| if stream == 1 { frame(HEADERS, END_HEADERS, 1, &block(&GET)) } else { Vec::new() };
    check(|stream| [begun(stream), frame(DATA, 0, 1, &[])].concat(), "{}", "Excess").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_goes_on_in_one_frame_after_the_other() {
    let begun = |stream| if stream == 1 { frame(HEADERS, 0, 1, &block(&GET)) } else { Vec::new() };
    check(
        |stream| [begun(stream), frame(CONTINUATION, 0, 1, &block(&[("x-a", "1")]))].concat(),
        "{}",
        "Excess",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_what_there_may_be() {
    let opened = |stream| frame(HEADERS, END_HEADERS, stream, &block(&GET));
    check(opened, "{streams: 1, bodyTimeout: 5m}", "Excess").await;
}
