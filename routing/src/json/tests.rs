//! What is found in JSON texts, what is refused, and both beside a parser that builds a tree.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn check(text: &str, pointer: &str, expected: Option<&str>) {
    let found = Pointers::new([pointer]).find(text.as_bytes()).expect("JSON");
    let found = found[0].as_deref().map(|value| String::from_utf8(value.to_vec()).expect("UTF-8"));
    assert_eq!(found.as_deref(), expected, "{pointer} in {text}");
}

fn check_malformed(text: &[u8]) {
    let text_shown = String::from_utf8_lossy(text);
    assert!(Pointers::new(["/a"]).find(text).is_err(), "{text_shown:?} is no JSON");
}

#[test]
fn values_are_found_as_written() {
    let text = r#" { "card" : {"bin":"476112","n":-1.50e+3,"ok":true,"no":null,"o":{}}, "list":[[1,2],{"x":"y"}] } "#;
    check(text, "/card/bin", Some("476112"));
    check(text, "/card/n", Some("-1.50e+3"));
    check(text, "/card/ok", Some("true"));
    check(text, "/card/no", None);
    check(text, "/card/o", None);
    check(text, "/card", None);
    check(text, "/list/0/1", Some("2"));
    check(text, "/list/1/x", Some("y"));
    check(text, "/list/01/x", None);
    check(text, "/list/-", None);
    check(text, "/list/+1/x", None);
    check(text, "/missing/bin", None);
}

#[test]
fn names_and_values_are_decoded() {
    check(r#"{"a\u002fb":"\u0041\n\"\\\/\ud83d\ude00é"}"#, "/a~1b", Some("A\n\"\\/😀é"));
    check(r#"{"a~b":"x"}"#, "/a~0b", Some("x"));
    check(r#"{"":"x"}"#, "/", Some("x"));
    check(r#"{"a":""}"#, "/a", Some(""));
}

#[test]
fn of_repeated_names_the_first_counts_at_every_level() {
    check(r#"{"a":"first","a":"second"}"#, "/a", Some("first"));
    check(r#"{"a":null,"a":"second"}"#, "/a", None);
    check(r#"{"a":{"b":1},"a":{"b":2,"c":3}}"#, "/a/b", Some("1"));
    check(r#"{"a":1,"a":{"b":2}}"#, "/a/b", None);
    check(r#"{"a":"first","\u0061":"second"}"#, "/a", Some("first"));
}

#[test]
fn a_text_that_is_no_json_is_never_taken_for_one_without_the_field() {
    for text in [
        r#"{"a":1"#,
        r#"{"a":1}}"#,
        r#"{"a":1,}"#,
        r#"{"a" 1}"#,
        r#"{a:1}"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":.5}"#,
        r#"{"a":+1}"#,
        r#"{"a":1e}"#,
        r#"{"a":tru}"#,
        r#"{"a":"x}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12g4"}"#,
        r#"{"a":"\ud83d"}"#,
        r#"{"a":"\ude00"}"#,
        r#"{"a":'x'}"#,
        "{\"a\":\"\n\"}",
        "[1,]",
        "[1 2]",
        " ",
        "\u{feff}{\"a\":1}",
        "a=1&b=2",
    ] {
        check_malformed(text.as_bytes());
    }
    check_malformed(b"\x1f\x8b\x08\x00compressed");
    check_malformed(b"{\"a\":\"\xff\"}");
    check_malformed(&[b'['; 100_000]);
    check_malformed(format!("{}1{}", "[".repeat(129), "]".repeat(129)).as_bytes());
    check(&format!("{{\"a\":{}1{}}}", "[".repeat(127), "]".repeat(127)), "/b", None);
}

#[test]
fn no_text_has_no_values() {
    assert_eq!(Pointers::new(["/a"]).find(b""), Ok(vec![None]));
}

#[test]
fn pointers_that_share_names_do_not_disturb_each_other() {
    let pointers = Pointers::new(["/a/b", "/a", "/a/c"]);
    let found = pointers.find(br#"{"a":{"c":2,"b":1}}"#).expect("JSON");
    assert_eq!(found[0].as_deref(), Some(&b"1"[..]));
    assert_eq!(found[1], None);
    assert_eq!(found[2].as_deref(), Some(&b"2"[..]));
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\/~é\n]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~\"]{0,2}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every pointer into the value, with what it points to.
fn pointers(value: &Value, at: &str, into: &mut Vec<(String, Option<String>)>) {
    let scalar = match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    if !at.is_empty() {
        into.push((at.to_owned(), scalar));
    }
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), into));
        }
        Value::Object(members) => members.iter().for_each(|(name, item)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            pointers(item, &format!("{at}/{name}"), into);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

proptest! {
    #[test]
    fn a_tree_would_find_the_same(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = text.expect("serialises");
        let mut expected = Vec::new();
        pointers(&value, "", &mut expected);
        let found = Pointers::new(expected.iter().map(|(pointer, _)| pointer.as_str()))
            .find(text.as_bytes())
            .expect("JSON");
        for ((pointer, expected), found) in expected.iter().zip(found) {
            let found = found.map(|value| String::from_utf8(value.into_owned()).expect("UTF-8"));
            prop_assert_eq!(&found, expected, "{} in {}", pointer, text);
        }
    }

    #[test]
    fn what_a_parser_refuses_is_refused(value in json(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut text = serde_json::to_vec(&value).expect("serialises");
        let place = place.index(text.len());
        text[place] = byte;
        let parsed = serde_json::from_slice::<Value>(&text);
        // Only a number that a parser finds too large for itself is legal all the same.
        let legal = parsed.is_ok() || parsed.is_err_and(|error| error.to_string().contains("out of range"));
        prop_assert_eq!(Pointers::new([]).find(&text).is_ok(), legal, "{}", String::from_utf8_lossy(&text));
    }
}
