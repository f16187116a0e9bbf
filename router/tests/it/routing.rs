//! Who answers what.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{get, post, read_head};
use crate::fake::Behaviour;
use crate::http2::{self, Http2, call};
use crate::world::{Setup, World, cell, eventually, policy, rules, shift};

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread")]
async fn both_cells_answer_and_the_answer_says_which_and_why() {
    let world = World::start().await;
    let by_cell = world.spread(200).await;
    assert!(by_cell["a"] > 50 && by_cell["b"] > 50, "{by_cell:?}");
    let answer = world.client().await.send(get("/x?y=1")).await;
    assert_eq!(answer.header("bulkhead-cell"), answer.cell());
    assert_eq!(answer.header("bulkhead-rule"), "default/shop/all");
    assert_eq!(answer.header("bulkhead-attempts"), "1");
    assert_eq!(answer.header("bulkhead-transaction").len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_may_not_say_is_taken_off_and_what_a_cell_must_know_is_put_on() {
    let world = Setup { cells: vec!["a"], policy: policy("[{cells: [{name: a}]}]"), ..Setup::default() }
        .start()
        .await;
    let mut request = get("/p/q?r=s");
    request.headers_mut().insert("bulkhead-cell", "other".parse().expect("legal"));
    request.headers_mut().insert("bulkhead-secret", "1".parse().expect("legal"));
    request.headers_mut().insert("connection", "x-hop".parse().expect("legal"));
    request.headers_mut().insert("x-hop", "1".parse().expect("legal"));
    request.headers_mut().insert("x-forwarded-for", "203.0.113.7".parse().expect("legal"));
    let answer = world.client().await.send(request).await;
    let seen = world.cells[0].seen().pop().expect("was hit");
    let header =
        |name: &str| seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
    assert_eq!(seen.target, "/p/q?r=s");
    assert_eq!(header("host"), "test");
    assert_eq!(header("bulkhead-cell"), "a");
    assert_eq!(header("bulkhead-attempt"), "1");
    assert_eq!(header("bulkhead-transaction"), answer.header("bulkhead-transaction"));
    assert!(header("bulkhead-deadline").parse::<u64>().is_ok_and(|left| left > 0 && left <= 15_000));
    assert_eq!(header("bulkhead-secret"), "-");
    assert_eq!(header("x-hop"), "-");
    assert_eq!(header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(header("x-forwarded-proto"), "http");
    assert_eq!(header("x-forwarded-host"), "test");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_choose_by_header_and_by_a_value_in_the_body() {
    let text = rules(
        "  - {name: partner, matches: [{all: [{header: x-partner, exact: acme}]}], groups: [{cells: [{name: a}]}]}
  - {name: card, matches: [{all: [{jsonPointer: /card/bin, prefix: '4761'}]}], groups: [{cells: [{name: b}]}]}
  - {name: rest, matches: [{all: [{attribute: path, prefix: /rest}]}], groups: [{cells: [{name: a}]}]}
",
    );
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    let mut client = world.client().await;
    let mut partner = post("/", "not even JSON");
    partner.headers_mut().insert("x-partner", "acme".parse().expect("legal"));
    assert_eq!(client.send(partner).await.cell(), "a");
    assert_eq!(client.send(post("/", r#"{"card": {"bin": "476134"}}"#)).await.cell(), "b");
    assert_eq!(client.send(post("/rest", r#"{"card": {"bin": "5"}}"#)).await.cell(), "a");
    assert_eq!(
        client.send(post("/", r#"{"card": {"bin": "5"}}"#)).await.problem(),
        (404, "NoRule".to_owned())
    );
    assert_eq!(client.send(post("/", "{broken")).await.problem(), (400, "Malformed".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weight_of_zero_moves_every_request_and_a_weight_moves_it_back() {
    let world = World::start().await;
    world.set_weight(0, 0);
    world.serves("Cell/a", 2).await;
    let before = world.hits();
    let by_cell = world.spread(200).await;
    assert_eq!(by_cell.get("b"), Some(&200));
    assert_eq!(world.hits()[0], before[0]);
    world.set_weight(0, 100);
    world.serves("Cell/a", 3).await;
    assert!(world.spread(200).await["a"] > 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_serves_by_its_state_and_by_that_of_a_shift() {
    let world = World::start().await;
    let a = cell("a", 100, world.cells[0].address);
    for state in ["Drained", "Disabled"] {
        world.write("cell-a.yaml", &a.replace("weight: 100", &format!("state: {state}")));
        world.until_share("a", 0).await;
        assert_eq!(world.spread(50).await.get("b"), Some(&50), "{state}");
        world.write("cell-a.yaml", &a.replace("weight: 100", "state: Active"));
        world.until_share("a", 500_000).await;
        assert!(world.spread(50).await.contains_key("a"), "Active after {state}");
        world.write("shift.yaml", &shift(&format!("cell: a, state: {state}"), HOUR));
        world.until_share("a", 0).await;
        assert_eq!(world.spread(50).await.get("b"), Some(&50), "a shift to {state}");
        world.write("shift.yaml", &shift("cell: a, state: Active", HOUR));
        world.until_share("a", 500_000).await;
    }
    assert!(world.spread(50).await.contains_key("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shift_of_a_rule_holds_until_it_expires_and_then_the_policy_does() {
    let world = World::start().await;
    let what = "policy: {namespace: default, name: shop, rule: all}, weights: [{name: a, weight: 1}, {name: b, weight: 99}]";
    world.write("shift.yaml", &shift(what, HOUR));
    world.until_share("a", 10_000).await;
    let by_cell = world.spread(300).await;
    assert!(by_cell["b"] > 275, "one of a hundred goes to a: {by_cell:?}");
    world.write("shift.yaml", &shift(what, Duration::from_secs(1)));
    world.until_share("a", 500_000).await;
    let by_cell = world.spread(300).await;
    assert!(by_cell["a"] > 100 && by_cell["b"] > 100, "half goes to a again: {by_cell:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_weights_zero_are_refused_and_never_spread_evenly() {
    let world = World::start().await;
    world.set_weight(0, 0);
    world.set_weight(1, 0);
    world.serves("Cell/a", 2).await;
    world.serves("Cell/b", 2).await;
    let before = world.hits();
    let mut client = world.client().await;
    for _ in 0..20 {
        assert_eq!(client.send(get("/")).await.problem(), (503, "AllDrained".to_owned()));
    }
    assert_eq!(world.hits(), before);
    // Drained on purpose and healthy, with the other out: still not a last resort.
    world.set_weight(1, 100);
    world.serves("Cell/b", 3).await;
    world.cells[1].say(false, "ServiceNotReady");
    world.until_in("b", false).await;
    assert_eq!(client.send(get("/")).await.problem().0, 503);
    assert_eq!(world.hits(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_whose_cells_are_out_never_falls_through_to_a_broader_one() {
    let text = rules(
        "  - {name: bin, matches: [{all: [{header: x-bin, prefix: '4761'}]}], groups: [{cells: [{name: a}]}]}
  - {name: rest, groups: [{cells: [{name: b}]}]}
",
    );
    let mut world = Setup { policy: text, ..Setup::default() }.start().await;
    world.cells[0].kill().await;
    world.until_in("a", false).await;
    let before = world.hits()[1];
    let mut client = world.client().await;
    for _ in 0..20 {
        let mut request = get("/");
        request.headers_mut().insert("x-bin", "476134".parse().expect("legal"));
        assert_eq!(client.send(request).await.problem(), (503, "NoHealthyCell".to_owned()));
    }
    assert_eq!(world.hits()[1], before);
    assert_eq!(client.send(get("/")).await.cell(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_group_takes_over_when_the_first_is_out() {
    let text = policy("[{cells: [{name: a}]}, {cells: [{name: b}]}]");
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    assert_eq!(world.spread(20).await.get("a"), Some(&20));
    world.cells[0].say(false, "ServiceNotReady");
    world.until_in("a", false).await;
    assert_eq!(world.spread(20).await.get("b"), Some(&20));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_stays_in_its_cell() {
    let text =
        rules("  - {name: all, key: {header: x-account}, groups: [{cells: [{name: a}, {name: b}]}]}\n");
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    let mut client = world.client().await;
    let mut used = std::collections::BTreeSet::new();
    for account in 0..20 {
        let mut cells = std::collections::BTreeSet::new();
        for _ in 0..5 {
            let mut request = get("/");
            request.headers_mut().insert("x-account", account.to_string().parse().expect("legal"));
            cells.insert(client.send(request).await.cell().to_owned());
        }
        assert_eq!(cells.len(), 1, "account {account}");
        used.extend(cells);
    }
    assert_eq!(used.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_rule_is_served_while_requests_flow_and_none_fails() {
    let world = World::start().await;
    let mut client = world.client().await;
    for edit in 1..=20 {
        let text = rules(&format!(
            "  - {{name: new, matches: [{{all: [{{attribute: path, exact: /{edit}}}]}}], groups: [{{cells: [{{name: a}}]}}]}}
  - {{name: all, groups: [{{cells: [{{name: a}}, {{name: b}}]}}]}}
"
        ));
        world.write("policy.yaml", &text);
        let served = async || {
            let answer = client.send(get(&format!("/{edit}"))).await;
            assert_eq!(answer.status, 200);
            answer.header("bulkhead-rule") == "default/shop/new"
        };
        eventually("the new rule is served", served).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_closes_no_connection_to_a_cell_that_is_quiet_meanwhile() {
    let text = rules(
        "  - {name: a, matches: [{all: [{attribute: path, exact: /a}]}], groups: [{cells: [{name: a}]}]}
  - {name: b, groups: [{cells: [{name: b}]}]}
",
    );
    let world = Setup { policy: text, threads: 1, ..Setup::default() }.start().await;
    let mut client = world.client().await;
    assert_eq!(client.send(get("/a")).await.cell(), "a");
    world.set_weight(1, 99);
    world.serves("Cell/b", 2).await;
    assert_eq!(client.send(get("/b")).await.cell(), "b");
    // Counts are handed in when the thread looks after its connections.
    eventually("the thread has looked", async || {
        let text = world.metrics().await;
        text.contains("bulkhead_router_requests_total{cell=\"b\",outcome=\"2xx\"} 1\n")
    })
    .await;
    assert_eq!(client.send(get("/a")).await.cell(), "a");
    assert_eq!(world.cells[0].connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_can_be_asked_about_without_a_request() {
    let text =
        rules("  - {name: all, key: {header: x-account}, groups: [{cells: [{name: a}, {name: b}]}]}\n");
    let world = Setup { policy: text, ..Setup::default() }.start().await;
    let explained = world.admin("/v1/explain?path=/x&header=x-account:42").await;
    let explained: serde_json::Value = serde_json::from_slice(&explained.body).expect("is JSON");
    let mut request = get("/x");
    request.headers_mut().insert("x-account", "42".parse().expect("legal"));
    assert_eq!(explained["cell"], world.client().await.send(request).await.cell());
    assert_eq!(explained["rule"], "default/shop/all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_the_same_cell_however_it_comes_and_one_without_weight_gets_none() {
    let cells = "{name: a, weight: 60}, {name: b, weight: 20}, {name: c, weight: 100}";
    let text =
        rules(&format!("  - {{name: all, key: {{header: x-account}}, groups: [{{cells: [{cells}]}}]}}\n"));
    let world = Setup { cells: vec!["a", "b", "c"], policy: text, ..Setup::default() }.start().await;
    world.set_weight(2, 0);
    world.serves("Cell/c", 2).await;
    let (mut http1, http2) = (world.client().await, Http2::connect(world.address).await);
    let mut expected = Vec::new();
    for account in (0..100).map(|number| number.to_string()) {
        let (mut one, mut two) = (get("/"), http2::get("/"));
        for headers in [one.headers_mut(), two.headers_mut()] {
            headers.insert("x-account", account.parse().expect("legal"));
        }
        let called = http2.try_send(call(&[("x-account", &account)]), "x").await.expect("is answered").0;
        let explained = world.admin(&format!("/v1/explain?path=/&header=x-account:{account}")).await;
        let explained: serde_json::Value = serde_json::from_slice(&explained.body).expect("is JSON");
        let explained = explained["cell"].as_str().expect("is a name").to_owned();
        let answers = [http1.send(one).await, http2.send(two, "").await, called];
        assert!(
            answers.iter().all(|answer| answer.cell() == explained),
            "{account}: {explained} {answers:?}"
        );
        expected.push((account, explained));
    }
    world.cells.iter().for_each(|cell| cell.behave(Behaviour::Upgrade));
    for (account, cell) in &expected {
        let mut stream = TcpStream::connect(world.address).await.expect("connects");
        let fields =
            format!("host: test\r\nconnection: upgrade\r\nupgrade: echo\r\nx-account: {account}\r\n");
        stream.write_all(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes()).await.expect("writes");
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 101") && head.contains(&format!("x-cell: {cell}\r\n")), "{head}");
    }
    let of_b = expected.iter().filter(|(_, cell)| cell == "b").count();
    assert!((10..=40).contains(&of_b), "{of_b} of 100, where 25 are its share");
    assert_eq!(world.hits()[2], 0);
}
