//! The tables of objects that the API takes and refuses: `testdata/accept` and `testdata/reject`, one object a file,
//! or an edit as `old` and `new`. A refused one says in a comment `# expect: TEXT` what the message must contain.
//! Here they meet what can be checked without an API server; the tests on a cluster send the same files to a real one.

#![allow(clippy::panic, reason = "a test that fails names the file")]

mod admission;
mod limits;

use std::fmt::Debug;
use std::path::Path;
use std::sync::LazyLock;

use bulkhead_crds::{Cell, CellTemplate, Destination, Manifest, Router, RoutingPolicy, TrafficShift, all};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// One file of a table.
struct Case {
    name: String,
    expect: Option<String>,
    old: Option<Value>,
    object: Value,
}

fn cases(table: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(table);
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .expect("the table is there")
        .map(|entry| case(&entry.expect("the folder can be read").path()))
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn case(path: &Path) -> Case {
    let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).expect("the file can be read");
    let expect = text.lines().find_map(|line| line.strip_prefix("# expect: ")).map(str::to_owned);
    let mut document: Value =
        serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{name} is no YAML: {error}"));
    let (old, object) = match document.get("new") {
        Some(_) => (Some(document["old"].take()), document["new"].take()),
        None => (None, document),
    };
    Case { name, expect, old, object }
}

static DEFINITIONS: LazyLock<Vec<Manifest>> = LazyLock::new(|| all().expect("derived definitions serialise"));

fn schema_of(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn schema(case: &Case) -> &'static Value {
    let definitions = DEFINITIONS.iter().map(|manifest| &manifest.definition);
    let mut ours =
        definitions.filter(|definition| definition["spec"]["names"]["kind"] == case.object["kind"]);
    ours.next().map(schema_of).unwrap_or_else(|| panic!("{} is of no kind of ours", case.name))
}

fn admit(case: &Case) -> Vec<String> {
    let schema = schema(case);
    if let Some(old) = &case.old {
        let errors = admission::admit(schema, old, None);
        assert!(errors.is_empty(), "{}: the old object must be legal: {errors:?}", case.name);
    }
    admission::admit(schema, &case.object, case.old.as_ref())
}

#[test]
fn what_is_legal_is_accepted() {
    for case in cases("accept") {
        let errors = admit(&case);
        assert!(errors.is_empty(), "{}: {errors:#?}", case.name);
    }
}

#[test]
fn what_is_not_legal_is_refused_with_a_sentence_that_says_why() {
    for case in cases("reject") {
        let expected = case.expect.as_deref().unwrap_or_else(|| panic!("{} lacks `# expect:`", case.name));
        let errors = admit(&case);
        assert!(
            errors.iter().any(|error| error.contains(expected)),
            "{}: wanted {expected:?} in {errors:#?}",
            case.name
        );
    }
}

/// Whatever the API stores, our types can read, and they lose nothing of it: a written 0 stays.
#[test]
fn what_is_legal_can_be_read_and_written_back() {
    for case in cases("accept") {
        match case.object["kind"].as_str() {
            Some("Cell") => round_trip::<Cell>(&case),
            Some("CellTemplate") => round_trip::<CellTemplate>(&case),
            Some("Destination") => round_trip::<Destination>(&case),
            Some("Router") => round_trip::<Router>(&case),
            Some("RoutingPolicy") => round_trip::<RoutingPolicy>(&case),
            Some("TrafficShift") => round_trip::<TrafficShift>(&case),
            kind => panic!("{}: {kind:?} is no kind of ours", case.name),
        }
    }
}

fn round_trip<T: DeserializeOwned + Serialize + PartialEq + Debug>(case: &Case) {
    let read: T = serde_json::from_value(admission::without_nulls(schema(case), &case.object))
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", case.name));
    let written = serde_json::to_value(&read).expect("types of the API are JSON");
    lost_nothing(&case.object["spec"], &written["spec"], &format!("{}: spec", case.name));
    let again: T = serde_json::from_value(written).expect("what was written can be read");
    assert_eq!(again, read, "{}", case.name);
}

/// Everything that was said and is not empty must still be there; a quantity may have become text.
fn lost_nothing(said: &Value, kept: &Value, path: &str) {
    match said {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(_, value)| !is_empty(value)) {
                lost_nothing(value, &kept[name], &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                lost_nothing(item, &kept[index], &format!("{path}[{index}]"));
            }
        }
        Value::Number(number) if kept.is_string() => {
            assert_eq!(kept.as_str(), Some(&*number.to_string()), "{path}");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            assert_eq!(said, kept, "{path}")
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A sentinel of the schema that no table tries is one that nobody has tried.
#[test]
fn every_value_of_every_enum_is_in_the_accept_table() {
    let texts: String = cases("accept").iter().map(|case| case.object.to_string()).collect();
    for manifest in all().expect("derived definitions serialise") {
        let spec =
            &manifest.definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        for word in enum_values(spec) {
            assert!(texts.contains(&format!("\"{word}\"")), "{}: no object with {word:?}", manifest.name);
        }
    }
}

fn enum_values(schema: &Value) -> Vec<String> {
    let own = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    let mut found: Vec<_> = own.filter_map(Value::as_str).map(str::to_owned).collect();
    match schema {
        Value::Object(fields) => found.extend(fields.values().flat_map(enum_values)),
        Value::Array(items) => found.extend(items.iter().flat_map(enum_values)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    found
}
