//! Rules that look into bodies: never a silent way to another rule.

use bulkhead_protocol::Reason;
use serde_json::json;

use super::*;
use crate::fixture::{World, policy, to};
use crate::request::{RequestParts, RequestView};

#[test]
fn a_dead_cell_is_never_replaced_by_that_of_a_broader_rule() {
    let mut world = World::new(&["a", "z"]);
    let bin = json!([{"all": [{"jsonPointer": "/card/bin", "prefix": "4761"}]}]);
    world.policies = vec![
        policy("ns/bin", 0, 100, json!([to("r", bin, "a")])),
        policy("ns/all", 0, 0, json!([to("r", json!([]), "z")])),
    ];
    let table = world.table();
    let pay = |body: &str| RequestParts { body: body.as_bytes().to_vec(), ..RequestParts::default() };
    let dead = States::of(&table).out(&table, &["a"]);
    let go = |request: &RequestParts| {
        let rule = match_rule(&table, "http", request)?;
        choose(rule, nth(0), &dead, &[]).map(|choice| name(&table, &choice))
    };
    assert_eq!(
        go(&pay(r#"{"card":{"bin":"476112"}}"#)).map_err(|refusal| refusal.reason),
        Err(Reason::NoHealthyCell)
    );
    assert_eq!(go(&pay(r#"{"card":{"bin":"5"}}"#)).as_deref(), Ok("z"));
}

/// A request that knows whether its body was asked for.
struct Watched {
    parts: RequestParts,
    asked: std::cell::Cell<bool>,
}

impl RequestView for Watched {
    fn method(&self) -> &str {
        self.parts.method()
    }

    fn path(&self) -> &str {
        self.parts.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.query()
    }

    fn host(&self) -> Option<&str> {
        self.parts.host()
    }

    fn header(&self, lower_case_name: &str) -> Option<&[u8]> {
        self.parts.header(lower_case_name)
    }

    fn body(&self) -> &[u8] {
        self.asked.set(true);
        self.parts.body()
    }
}

#[test]
fn a_body_that_cannot_be_read_is_refused_and_never_falls_through() {
    let mut world = World::new(&["a", "z"]);
    let bin =
        json!([{"all": [{"attribute": "method", "exact": "POST"}, {"jsonPointer": "/bin", "exact": "1"}]}]);
    world.policies = vec![
        policy("ns/bin", 0, 100, json!([to("r", bin, "a")])),
        policy("ns/all", 0, 0, json!([to("r", json!([]), "z")])),
    ];
    let table = world.table();
    let of = |method: &str, body: Vec<u8>| {
        let parts = RequestParts { method: method.to_owned(), body, ..RequestParts::default() };
        let request = Watched { parts, asked: false.into() };
        let rule = match_rule(&table, "http", &request).map(|rule| rule.id.to_string());
        (request.asked.get(), rule.map_err(|refusal| refusal.reason))
    };
    let (a, z) = (Ok("ns/bin/r".to_owned()), Ok("ns/all/r".to_owned()));
    let far = format!("{{\"pad\":\"{}\",\"bin\":\"1\"}}", "x".repeat(1 << 20));
    assert_eq!(of("POST", far.clone().into_bytes()), (true, a.clone()), "far behind");
    assert_eq!(of("POST", far.into_bytes()[..1 << 20].to_vec()), (true, Err(Reason::Malformed)), "cut off");
    assert_eq!(of("POST", br#"{"bin":"1","bin":"2"}"#.to_vec()), (true, a), "the first of two");
    assert_eq!(of("POST", br#"{"bin":"2","bin":"1"}"#.to_vec()), (true, z.clone()), "the first of two");
    assert_eq!(of("POST", vec![b'['; 10_000]), (true, Err(Reason::Malformed)), "nested deeply");
    assert_eq!(
        of("POST", "\u{feff}{\"bin\":\"1\"}".into()),
        (true, Err(Reason::Malformed)),
        "a byte order mark"
    );
    assert_eq!(of("POST", vec![0x1f, 0x8b, 8, 0]), (true, Err(Reason::Malformed)), "compressed");
    assert_eq!(of("POST", Vec::new()), (true, z.clone()), "no body has no field");
    assert_eq!(of("GET", b"no JSON".to_vec()), (false, z), "nobody looks");
}
