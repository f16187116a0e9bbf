//! What becomes of whole lists: who serves, who does not, in which order, and what is said of it.

use bulkhead_crds::cell::CellState;
use bulkhead_crds::policy::ParentRef;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::decide::match_rule;
use crate::fixture::{World, cell, header, policy, request, shift, the_rule, to};
use crate::request::RequestParts;

fn rule_for(table: &Table, request: &RequestParts) -> Option<String> {
    match_rule(table, "http", request).ok().map(|rule| rule.id.to_string())
}

/// The verdict on a policy, as `Accepted` reason, its message, and `ResolvedRefs` reason, its message.
fn said<'b>(build: &'b Build, name: &str) -> [&'b str; 4] {
    let verdict = build.verdicts.iter().find(|verdict| verdict.name == name).expect("a verdict");
    let ParentVerdict { accepted, resolved_refs, .. } = verdict;
    [accepted.reason, &accepted.message, resolved_refs.reason, &resolved_refs.message]
}

fn check_said(build: &Build, name: &str, accepted: &str, words: &[&str]) {
    let [reason, message, ..] = said(build, name);
    assert_eq!(reason, accepted, "{message}");
    for word in words {
        assert!(message.contains(word), "{message:?} names {word:?}");
    }
}

#[test]
fn one_bad_policy_among_a_hundred_is_refused_and_the_rest_serve() {
    let mut world = World::new(&["a"]);
    for n in 0..100 {
        let rules = json!([to("r", header("x-n", &n.to_string()), "a")]);
        world.policies.push(policy(&format!("ns/good-{n}"), n % 60, 100, rules));
    }
    let two_sources = json!([{"all": [{"header": "x", "query": "y", "exact": "1"}]}]);
    world.policies.insert(50, policy("ns/bad", 0, 200, json!([to("r", two_sources, "a")])));
    let build = world.build();
    for n in 0..100 {
        let name = format!("good-{n}");
        assert_eq!(rule_for(&build.table, &request("x-n", &n.to_string())), Some(format!("ns/{name}/r")));
        assert_eq!(said(&build, &name)[0], "Accepted");
    }
    check_said(&build, "bad", "InvalidRule", &["\"r\"", "exactly one source"]);
    assert_eq!(build.table.rules().len(), 100);
}

#[test]
fn one_bad_rule_does_not_block_the_others_of_its_policy() {
    let no_comparison = json!([{"all": [{"header": "x"}]}]);
    let mut world = World::new(&["a"]);
    world.policies = vec![policy(
        "ns/p",
        0,
        100,
        json!([to("bad", no_comparison, "a"), to("good", header("x", "1"), "a"), to("good", json!([]), "a")]),
    )];
    let build = world.build();
    assert_eq!(rule_for(&build.table, &request("x", "1")).as_deref(), Some("ns/p/good"));
    assert_eq!(rule_for(&build.table, &request("x", "2")), None);
    check_said(&build, "p", "InvalidRule", &["\"bad\"", "comparison", "\"good\"", "name"]);
}

#[test]
fn in_a_conflict_the_older_serves_on_and_the_younger_says_who_has_the_match() {
    let older = policy("ns/z-older", 1, 100, json!([to("r", header("X-A", "1"), "a")]));
    let younger = policy("ns/a-younger", 2, 100, json!([to("r", header("x-a", "1"), "b")]));
    for policies in [[older.clone(), younger.clone()], [younger.clone(), older.clone()]] {
        let world = World { policies: policies.to_vec(), ..World::new(&["a", "b"]) };
        let build = world.build();
        assert_eq!(rule_for(&build.table, &request("x-a", "1")).as_deref(), Some("ns/z-older/r"));
        assert_eq!(said(&build, "z-older")[0], "Accepted");
        check_said(&build, "a-younger", "Conflict", &["ns/z-older/r", "ns/a-younger/r"]);
    }
}

#[test]
fn a_conflict_of_one_match_leaves_the_others_of_the_rule_alone() {
    let both = json!([{"all": [{"header": "x", "exact": "1"}]}, {"all": [{"header": "x", "exact": "2"}]}]);
    let mut world = World::new(&["a", "b"]);
    world.policies = vec![
        policy("ns/older", 1, 100, json!([to("r", header("x", "1"), "a")])),
        policy("ns/younger", 2, 100, json!([to("r", both, "b")])),
        policy("ns/lower", 0, 50, json!([to("r", header("x", "1"), "b")])),
    ];
    let build = world.build();
    assert_eq!(rule_for(&build.table, &request("x", "1")).as_deref(), Some("ns/older/r"));
    assert_eq!(rule_for(&build.table, &request("x", "2")).as_deref(), Some("ns/younger/r"));
    assert_eq!(said(&build, "younger")[0], "Conflict");
    assert_eq!(said(&build, "lower")[0], "Accepted", "another precedence is no conflict");
}

#[test]
fn the_order_is_precedence_then_age_then_name_then_place_in_the_policy() {
    let by = |name: &str, cell| to("r", header(name, "1"), cell);
    let everything = RequestParts {
        headers: ["a", "b", "c", "d", "e"].map(|name| (name.to_owned(), b"1".to_vec())).to_vec(),
        ..RequestParts::default()
    };
    let mut policies = vec![
        policy("ns/top", 9, 200, json!([by("a", "c")])),
        policy("ns/old", 1, 100, json!([by("b", "c")])),
        policy("aa/same-age", 5, 100, json!([by("c", "c")])),
        policy("zz/same-age", 5, 100, json!([by("d", "c"), to("s", header("e", "1"), "c")])),
        policy("ns/catch-all", 0, 99, json!([to("r", json!([]), "c")])),
    ];
    let order = ["ns/top/r", "ns/old/r", "aa/same-age/r", "zz/same-age/r", "ns/catch-all/r"];
    for expected in order {
        let world = World { policies: policies.clone(), ..World::new(&["c"]) };
        assert_eq!(rule_for(&world.table(), &everything).as_deref(), Some(expected));
        policies.remove(0);
    }
}

#[test]
fn a_missing_cell_is_named_and_the_others_of_the_group_serve() {
    let world = World::with_groups(&[&[("a", 1), ("gone", 1)], &[("lost", 1)]]);
    let world = World { cells: vec![cell("a", json!({}))], ..world };
    let build = world.build();
    let [accepted, _, resolved, message] = said(&build, "p");
    assert_eq!((accepted, resolved), ("Accepted", "CellNotFound"));
    assert!(message.contains("\"gone\"") && message.contains("\"lost\""), "{message}");
    let rule = the_rule(&build.table);
    let named: Vec<_> = rule.groups[0].cells.iter().map(|cell| (&*cell.name, cell.cell)).collect();
    assert_eq!(named, [("a", Some(CellIndex(0))), ("gone", None)]);
}

#[test]
fn a_cell_named_twice_in_a_group_counts_once_and_is_said() {
    let build = World::with_groups(&[&[("a", 1), ("a", 9)], &[("a", 1)]]).build();
    let [accepted, _, resolved, message] = said(&build, "p");
    assert_eq!((accepted, resolved), ("Accepted", "CellNamedTwice"), "{message}");
    assert_eq!(the_rule(&build.table).groups[0].cells.len(), 1);
    assert_eq!(the_rule(&build.table).groups[0].cells[0].weight, 1);
}

#[test]
fn a_reference_to_what_is_not_there_is_refused_with_what_is() {
    let mut world = World::with_groups(&[&[("a", 1)]]);
    let parents = &mut world.policies[0].spec.parent_refs;
    parents.push(ParentRef { router: "main".to_owned(), listener: "nope".to_owned() });
    parents.push(ParentRef { router: "elsewhere".to_owned(), listener: "http".to_owned() });
    let build = world.build();
    assert_eq!(build.verdicts.len(), 2, "another Router's references are its own: {:?}", build.verdicts);
    assert!(build.verdicts[0].accepted.ok);
    assert_eq!(build.verdicts[1].accepted.reason, "ListenerNotFound");
    assert!(build.verdicts[1].accepted.message.contains("http, other"));
    let unknown = unknown_routers(&["main"], &world.policies.iter().collect::<Vec<_>>());
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].accepted.reason, "RouterNotFound");
    assert_eq!(unknown[0].parent.router, "elsewhere");
}

#[test]
fn only_allowed_namespaces_attach() {
    let mut world = World::with_groups(&[&[("a", 1)]]);
    world.router.spec.allowed_namespaces = vec!["team".to_owned()];
    let build = world.build();
    check_said(&build, "p", "NamespaceNotAllowed", &["\"ns\"", "allowedNamespaces"]);
    assert_eq!(build.table.rules().len(), 0);
    world.router.spec.allowed_namespaces.push("ns".to_owned());
    assert_eq!(world.table().rules().len(), 1);
}

#[test]
fn a_policy_on_two_listeners_has_its_conflicts_on_each_alone() {
    let mut first = policy("ns/first", 1, 100, json!([to("r", json!([]), "a")]));
    let mut second = policy("ns/second", 2, 100, json!([to("r", json!([]), "b")]));
    let other = ParentRef { router: "main".to_owned(), listener: "other".to_owned() };
    first.spec.parent_refs = vec![other.clone()];
    second.spec.parent_refs.push(other);
    let build = World { policies: vec![first, second], ..World::new(&["a", "b"]) }.build();
    let any = RequestParts::default();
    let id = |listener| match_rule(&build.table, listener, &any).map(|rule| rule.id.to_string());
    assert_eq!(id("http").as_deref(), Ok("ns/second/r"));
    assert_eq!(id("other").as_deref(), Ok("ns/first/r"));
    let of = |listener: &str| {
        let of = |verdict: &&ParentVerdict| verdict.name == "second" && verdict.parent.listener == listener;
        build.verdicts.iter().find(of).expect("a verdict").accepted.reason
    };
    assert_eq!((of("http"), of("other")), ("Accepted", "Conflict"));
}

#[test]
fn two_policies_share_a_cell() {
    let mut world = World::new(&["a", "b"]);
    let weighted = |a: u32| json!([{"cells": [{"name": "a", "weight": a}, {"name": "b", "weight": 1}]}]);
    let rule = |value: &str, a| json!([{"name": "r", "matches": header("x", value), "groups": weighted(a)}]);
    world.policies = vec![policy("ns/one", 1, 100, rule("1", 7)), policy("ns/two", 2, 100, rule("2", 9))];
    let build = world.build();
    assert_eq!((said(&build, "one")[0], said(&build, "two")[0]), ("Accepted", "Accepted"));
    let weights: Vec<u32> = build.table.rules().iter().map(|rule| rule.groups[0].cells[0].weight).collect();
    assert_eq!(weights, [7, 9]);
}

#[test]
fn a_cell_that_is_being_deleted_is_drained() {
    let mut world = World::new(&["a"]);
    world.cells[0].metadata.deletion_timestamp =
        policy("a/a", 1, 1, json!([to("r", json!([]), "a")])).metadata.creation_timestamp;
    let weight = world.table().cell_weight(CellIndex(0), 0);
    assert_eq!((weight.percent, weight.state), (0, CellState::Drained));
}

#[test]
fn every_word_of_the_api_is_read() {
    for attribute in ["path", "method", "host"] {
        let matches = json!([{"all": [{"attribute": attribute, "exact": "v"}]}]);
        let mut world = World::new(&["a"]);
        world.policies = vec![policy("ns/p", 0, 100, json!([to("r", matches, "a")]))];
        let mut request = RequestParts::default();
        assert_eq!(rule_for(&world.table(), &request), None);
        match attribute {
            "path" => request.path = "v".to_owned(),
            "method" => request.method = "v".to_owned(),
            _ => request.host = Some("V:80".to_owned()),
        }
        assert_eq!(rule_for(&world.table(), &request).as_deref(), Some("ns/p/r"), "{attribute}");
    }
    for (policy, too_large) in [("SafeOnly", "Reject"), ("Never", "Stream")] {
        let world = World::with_groups(&[&[("a", 1)]]).rule(|rule| {
            rule.restart = serde_json::from_value(
                json!({"policy": policy, "tooLarge": too_large, "bufferLimit": "1Mi", "deadline": "2s", "perAttempt": "800ms"}),
            )
            .expect("a restart");
        });
        let table = world.table();
        let restart = &the_rule(&table).restart;
        assert_eq!(
            (format!("{:?}", restart.policy), format!("{:?}", restart.too_large)),
            (policy.to_owned(), too_large.to_owned())
        );
        assert_eq!(
            (restart.buffer_limit, restart.deadline.as_millis(), restart.per_attempt.as_millis()),
            (1 << 20, 2_000, 800)
        );
        assert_eq!(table.listener("http").expect("the listener").buffer_limit, 1 << 20);
    }
}

#[test]
fn forty_thousand_rules_of_many_policies_are_all_served() {
    let mut world = World::new(&["a", "b"]);
    for p in 0..400_u32 {
        let rules: Vec<Value> =
            (0..100).map(|r| to(&format!("r{r}"), header("x-partner", &format!("{p}-{r}")), "a")).collect();
        world.policies.push(policy(&format!("ns/p{p}"), p % 60, 100, Value::from(rules)));
    }
    let build = world.build();
    assert_eq!(build.table.rules().len(), 40_000);
    assert!(build.verdicts.iter().all(|verdict| verdict.accepted.ok && verdict.resolved_refs.ok));
    let request = request("x-partner", "399-99");
    assert_eq!(rule_for(&build.table, &request).as_deref(), Some("ns/p399/r99"));
}

/// As it is after it was written and read again.
fn written<T: serde::Serialize + serde::de::DeserializeOwned>(object: &T) -> T {
    let text = serde_json::to_string(object).expect("serialises");
    serde_json::from_str(&text).expect("an object of the API")
}

/// A weight, and often 0.
fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0..=100_u32]
}

proptest! {
    #[test]
    fn a_written_weight_and_above_all_a_zero_stays_what_it_is_from_the_object_to_the_table(
        [of_cell, of_cell_shift] in [weight(), weight()],
        of_group in prop::collection::vec(weight(), 2),
        of_rule_shift in prop::collection::vec(weight(), 2),
    ) {
        let mut world = World::with_groups(&[&[("a", of_group[0]), ("b", of_group[1])]]);
        world.cells[0] = written(&cell("a", json!({"weight": of_cell})));
        world.policies[0] = written(&world.policies[0]);
        let rule = json!({"namespace": "ns", "name": "p", "rule": "all"});
        let weights = json!([{"name": "a", "weight": of_rule_shift[0]}, {"name": "b", "weight": of_rule_shift[1]}]);
        world.shifts = vec![
            written(&shift("cell", 0, json!({"cell": "a", "weight": of_cell_shift, "owner": "Operator"}))),
            written(&shift("rule", 0, json!({"policy": rule, "weights": weights, "owner": "Operator"}))),
        ];
        let table = world.table();
        let a = table.cell(CellIndex(0));
        prop_assert_eq!((a.spec_weight, a.shifts[0].percent), (of_cell, of_cell_shift));
        let group = &the_rule(&table).groups[0];
        prop_assert_eq!(group.cells.iter().map(|cell| cell.weight).collect::<Vec<_>>(), of_group);
        prop_assert_eq!(the_rule(&table).shifted_weights(0), Some(&[of_rule_shift][..]));
    }

    #[test]
    fn the_order_of_the_lists_does_not_matter(
        policies in Just((0..12_u32).collect::<Vec<_>>()).prop_shuffle(),
        cells in Just(vec!["a", "b", "c"]).prop_shuffle(),
    ) {
        let of = |n: u32| {
            let matches = header("x", &(n % 4).to_string());
            policy(&format!("ns/p{n}"), n % 3, 100 + (n % 2) as i32, json!([to("r", matches, ["a", "b", "c"][n as usize % 3])]))
        };
        let sorted = World { policies: (0..12).map(of).collect(), ..World::new(&["a", "b", "c"]) };
        let shuffled = World { policies: policies.into_iter().map(of).collect(), ..World::new(&cells) };
        let (one, two) = (sorted.build(), shuffled.build());
        prop_assert_eq!(format!("{:?}", one.table.rules()), format!("{:?}", two.table.rules()));
        prop_assert_eq!(one.verdicts, two.verdicts);
    }
}
