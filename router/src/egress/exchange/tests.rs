//! Messages over real connections: what is answered, what was not sent, and what nobody can know.

use bulkhead_process::Port;

use super::*;
use crate::egress::fixture::{Server, Then, World, eventually, in_no_time, message, outcome};

#[track_caller]
fn check(sent: Sent<Returned>, expected: &str) {
    assert_eq!(outcome(sent), expected);
}

#[tokio::test]
async fn a_message_goes_out_as_it_is_and_its_answer_comes_back_whole() {
    let server = Server::start(&[Then::Answer("approved")]).await;
    let world = World::new(&[server.endpoint()], "").await;
    let mut asked = message("please");
    asked.headers.insert("x-trace", "7".parse().expect("a value"));
    let ready = world.connect().await.expect("connects");
    let Sent::Answered(returned) = ready.send(&mut Tried::default(), &asked, world.later()).await else {
        panic!("has no answer");
    };
    assert_eq!((returned.status, &*returned.body), (200, &b"approved"[..]));
    assert_eq!(returned.headers.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["x-from"]);
    let wanted = format!(
        "POST /authorise HTTP/1.1\r\nhost: {}\r\nx-trace: 7\r\ncontent-length: 6\r\n\r\nplease",
        server.endpoint()
    );
    assert_eq!(server.requests(), [(1, wanted)]);
}

#[tokio::test]
async fn a_connection_whose_answer_was_read_is_used_again() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let world = World::new(&[server.endpoint()], "").await;
    for _ in 0..3 {
        check(world.send("x").await, "ok");
    }
    assert_eq!((server.connections(), world.live.connections()), (1, 1));
}

#[tokio::test]
async fn a_connection_that_was_not_used_goes_back() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let world = World::new(&[server.endpoint()], "").await;
    drop(world.connect().await.expect("connects"));
    check(world.send("x").await, "ok");
    assert_eq!(server.connections(), 1);
}

fn is_closed(ready: &Ready) -> bool {
    ready.connection.as_ref().is_some_and(|counted| !counted.connection.is_usable())
}

#[tokio::test]
async fn what_a_closed_connection_did_not_take_goes_out_on_another_and_only_a_new_ones_endpoint_was_tried() {
    let server = Server::start(&[Then::Answer("first"), Then::Answer("second")]).await;
    let world = World::new(&[server.endpoint()], "").await;
    check(world.send("x").await, "first");
    let (mut tried, asked) = (Tried::default(), message("y"));

    let kept = world.connect().await.expect("is kept");
    server.hang_up();
    eventually(|| is_closed(&kept)).await;
    check(kept.send(&mut tried, &asked, world.later()).await, "not-sent DestinationUnavailable");

    let fresh = world.pools.connect(&world.live, &mut tried, world.later()).await.expect("was not tried");
    eventually(|| server.connections() == 2).await;
    server.hang_up();
    eventually(|| is_closed(&fresh)).await;
    check(fresh.send(&mut tried, &asked, world.later()).await, "not-sent DestinationUnavailable");
    let none = world.pools.connect(&world.live, &mut tried, world.later()).await.err();
    assert_eq!(none, Some(Reason::DestinationUnavailable));

    assert_eq!(server.requests().len(), 1);
    check(world.send("y").await, "second");
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_passed_over_for_the_next() {
    let (down, server) = (Port::free().expect("one is free"), Server::start(&[Then::Answer("ok")]).await);
    let world = World::new(&[down.address.to_string(), server.endpoint()], "").await;
    for _ in 0..4 {
        check(world.send("x").await, "ok");
    }
    let described = world.live.describe();
    let failure = described["lastFailure"].as_str().expect("one failed");
    assert!(failure.starts_with(&down.address.to_string()), "{failure}");
}

#[tokio::test]
async fn without_any_endpoint_nothing_is_sent() {
    let down = Port::free().expect("one is free");
    let world = World::new(&[down.address.to_string()], "").await;
    check(world.send("x").await, "not-sent DestinationUnavailable");
}

#[tokio::test]
async fn equal_endpoints_take_turns() {
    let servers = [Server::start(&[Then::Answer("ok")]).await, Server::start(&[Then::Answer("ok")]).await];
    let world = World::new(&[servers[0].endpoint(), servers[1].endpoint()], "").await;
    for _ in 0..6 {
        check(world.send("x").await, "ok");
    }
    assert_eq!(servers.map(|server| (server.requests().len(), server.connections())), [(3, 1); 2]);
}

#[tokio::test]
async fn no_more_are_under_way_than_the_destination_allows() {
    let world = World::new(&["127.0.0.1:1".to_owned()], "limits: {inFlight: 1}").await;
    let first = world.live.begin().expect("has room");
    assert_eq!(world.live.begin().err(), Some(Reason::DestinationUnavailable));
    drop(first);
    assert!(world.live.begin().is_ok());
    assert_eq!(world.live.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_read_and_is_not_answered_well_has_an_unknown_outcome() {
    for (then, expected) in [
        (Then::Close, "unknown UpstreamReset"),
        (Then::Silence, "unknown Timeout"),
        (Then::Write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nappr"), "unknown UpstreamReset"),
        (
            Then::Write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
            "unknown UpstreamReset",
        ),
        (Then::Write("no HTTP at all\r\n\r\n"), "unknown UpstreamProtocol"),
        (
            Then::Write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
            "unknown UpstreamProtocol",
        ),
    ] {
        let server = Server::start(&[then]).await;
        let world = World::new(&[server.endpoint()], "").await;
        let sent = if matches!(then, Then::Silence) {
            // Time goes on once the message is there.
            tokio::join!(world.send("x"), eventually(|| server.requests().len() == 1)).0
        } else {
            in_no_time(world.send("x")).await
        };
        check(sent, expected);
        assert_eq!((server.requests().len(), world.live.connections()), (1, 0), "{expected}");
    }
}

#[tokio::test]
async fn an_answer_may_have_as_many_bytes_as_the_destination_allows_and_no_more() {
    let server = Server::start(&[Then::Answer("12345678"), Then::Answer("123456789")]).await;
    let world = World::new(&[server.endpoint()], "limits: {answerBytes: '8'}").await;
    check(world.send("x").await, "12345678");
    check(world.send("x").await, "unknown BodyTooLarge");
    assert_eq!(world.live.connections(), 0);
}

#[tokio::test]
async fn with_no_time_left_nothing_is_sent() {
    let server = Server::start(&[Then::Answer("ok")]).await;
    let world = World::new(&[server.endpoint()], "").await;
    let mut tried = Tried::default();
    let late = world.pools.connect(&world.live, &mut tried, Duration::ZERO).await.err();
    assert_eq!(late, Some(Reason::Timeout));
    let ready = world.connect().await.expect("was not blamed");
    check(ready.send(&mut tried, &message("x"), Duration::ZERO).await, "not-sent Timeout");
    check(world.send("y").await, "ok");
    assert_eq!(server.requests().len(), 1);
}
