//! The index against a plain scan, and its cost at 40,000 rules.

use super::*;
use crate::request::{self, RequestParts};
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    /// How many arms were checked, to show that it does not grow with their number.
    pub(super) static CHECKED: Cell<usize> = const { Cell::new(0) };
}

fn condition(source: &str, test: Test) -> Condition {
    let source = match source.split_once(' ') {
        None => Source::Path,
        Some(("header", name)) => Source::Header(name.to_owned()),
        Some(("query", name)) => Source::Query(name.to_owned()),
        Some((_, pointer)) => Source::Pointer(pointer.to_owned()),
    };
    Condition { source, test }
}

fn find(index: &Index, request: &RequestParts) -> Result<u32, ()> {
    let head: Vec<_> = index.head.iter().map(|source| request::read_head(source, request)).collect();
    let open = index.by_head(&head);
    if !open.needs_body() {
        return Ok(open.best);
    }
    let body = request::read_body(&index.pointers, request).map_err(|_| ())?;
    Ok(index.by_body(&open, &body))
}

/// What the index must agree with: one arm after the other, the body read when one needs it.
fn scan(arms: &[Vec<Condition>], request: &RequestParts) -> Result<u32, ()> {
    let by_head = |arm: &&Condition| !arm.source.is_body();
    let holds = |condition: &Condition| {
        condition.test.holds(request::read_head(&condition.source, request).as_deref())
    };
    let first_by_head = arms.iter().position(|arm| arm.iter().all(holds)).unwrap_or(arms.len());
    let mut bodies = Vec::new();
    for (place, arm) in arms.iter().enumerate().take(first_by_head) {
        if arm.iter().filter(by_head).all(holds) {
            bodies.push((place, arm));
        }
    }
    for (place, arm) in bodies {
        let mut all = true;
        for condition in arm.iter().filter(|condition| condition.source.is_body()) {
            let Source::Pointer(pointer) = &condition.source else { continue };
            let found = request::read_body(&Pointers::new([pointer.as_str()]), request).map_err(|_| ())?;
            all &= condition.test.holds(found[0].as_deref());
        }
        if all {
            return Ok(place as u32);
        }
    }
    Ok(if first_by_head < arms.len() { first_by_head as u32 } else { NONE })
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    "[12]{1,3}".prop_map(String::into_bytes)
}

fn test() -> impl Strategy<Value = Test> {
    prop_oneof![
        3 => value().prop_map(Test::Exact),
        2 => value().prop_map(Test::Prefix),
        1 => value().prop_map(Test::Suffix),
        2 => (0_u128..250, 0_u128..50).prop_map(|(from, length)| Test::Range(from, from + length)),
        1 => prop::collection::btree_set(value(), 2..5).prop_map(|set| Test::In(set.into_iter().collect())),
    ]
}

fn arm() -> impl Strategy<Value = Vec<Condition>> {
    let source =
        prop::sample::select(vec!["path", "header a", "header b", "query q", "body /x", "body /y/0"]);
    prop::collection::btree_set((source, test()).prop_map(|(source, test)| condition(source, test)), 0..4)
        .prop_map(|set| set.into_iter().collect())
}

fn request() -> impl Strategy<Value = RequestParts> {
    let part = || prop::option::of("[12]{1,3}");
    (part(), part(), part(), part(), part(), 0..8).prop_map(|(path, a, b, x, y, broken)| {
        let headers = [("a", a), ("b", b.clone())];
        let x = x.map_or_else(String::new, |x| format!("\"x\":{x:?},"));
        let y = y.map_or_else(String::new, |y| format!("\"y\":[{y}],"));
        RequestParts {
            path: path.unwrap_or_default(),
            query: b.map(|value| format!("q={value}")),
            headers: headers
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.into_bytes())))
                .collect(),
            body: format!("{{{x}{y}\"z\":0{}", if broken == 0 { "" } else { "}" }).into_bytes(),
            ..RequestParts::default()
        }
    })
}

fn index(arms: &[Vec<Condition>]) -> Index {
    Index::new(arms.iter().cloned().enumerate().map(|(place, arm)| (place as u32, arm)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn the_index_finds_what_a_scan_finds(
        arms in prop::collection::vec(arm(), 0..60),
        requests in prop::collection::vec(request(), 8),
    ) {
        let index = index(&arms);
        for request in requests {
            prop_assert_eq!(find(&index, &request), scan(&arms, &request), "{:?}", request);
        }
    }
}

/// Builds `count` rules and looks up one request for each of some of them; at most `most` arms may be checked for each.
fn check_flat(count: u32, most: usize, arm: impl Fn(u32) -> (Vec<Condition>, RequestParts)) {
    let arms: Vec<_> = (0..count).map(|place| arm(place).0).collect();
    let index = index(&arms);
    for place in (0..count).step_by(count as usize / 200) {
        CHECKED.with(|checked| checked.set(0));
        assert_eq!(find(&index, &arm(place).1), Ok(place));
        let checked = CHECKED.with(Cell::get);
        assert!(checked <= most, "rule {place} of {count} was found after {checked} checks");
    }
}

fn exact(number: u32) -> Test {
    Test::Exact(number.to_string().into_bytes())
}

fn post(partner: u32, bin: &str) -> RequestParts {
    RequestParts {
        path: "/authorize".to_owned(),
        headers: vec![("x-partner".to_owned(), partner.to_string().into_bytes())],
        body: format!("{{\"card\":{{\"bin\":\"{}\"}}}}", bin).into_bytes(),
        ..RequestParts::default()
    }
}

#[test]
fn forty_thousand_rules_by_one_header_cost_what_ten_do() {
    check_flat(40_000, 4, |n| (vec![condition("header x-partner", exact(n))], post(n, "1")));
}

#[test]
fn forty_thousand_rules_of_two_conditions_that_many_share_cost_what_ten_do() {
    check_flat(40_000, 8, |n| {
        let bin = 400_000 + n / 200;
        let arm = vec![
            condition("path", Test::Exact(b"/authorize".to_vec())),
            condition("header x-partner", exact(n % 200)),
            condition("body /card/bin", Test::Prefix(bin.to_string().into_bytes())),
        ];
        (arm, post(n % 200, &format!("{bin}1234567890")))
    });
}

#[test]
fn forty_thousand_rules_by_ranges_and_lists_in_the_body_cost_what_ten_do() {
    check_flat(40_000, 8, |n| {
        let from = u128::from(n) * 10;
        let arm = vec![condition("body /card/bin", Test::Range(from, from + 9))];
        (arm, post(0, &(from + 5).to_string()))
    });
    check_flat(40_000, 8, |n| {
        let list = (0..4).map(|i| format!("{:08}", n * 4 + i).into_bytes()).collect();
        let arm = vec![
            condition("path", Test::Exact(b"/authorize".to_vec())),
            condition("body /card/bin", Test::In(list)),
        ];
        (arm, post(0, &format!("{:08}", n * 4 + 2)))
    });
}

#[test]
fn a_body_is_read_only_where_a_rule_that_the_head_fits_needs_it() {
    let arms = [
        vec![condition("header a", exact(1))],
        vec![condition("header b", exact(2)), condition("body /x", exact(1))],
        vec![],
    ];
    let index = index(&arms);
    let request = |name: &str, value: &str, body: &str| RequestParts {
        headers: vec![(name.to_owned(), value.as_bytes().to_vec())],
        body: body.as_bytes().to_vec(),
        ..RequestParts::default()
    };
    assert_eq!(find(&index, &request("a", "1", "no JSON")), Ok(0));
    assert_eq!(find(&index, &request("b", "1", "no JSON")), Ok(2));
    assert_eq!(find(&index, &request("b", "2", "no JSON")), Err(()));
    assert_eq!(find(&index, &request("b", "2", "{\"x\":1}")), Ok(1));
    assert_eq!(find(&index, &request("b", "2", "{\"x\":2}")), Ok(2));
    assert_eq!(find(&index, &request("b", "2", "")), Ok(2));
}
