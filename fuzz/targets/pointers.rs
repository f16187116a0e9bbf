//! Values of a JSON body by their pointers: a text is refused where a whole parser refuses it, and what is found is what a
//! tree has there, the first of each name.

#![no_main]

#[allow(dead_code, reason = "the crate that it is of uses all of it")]
#[path = "../../routing/src/json/mod.rs"]
mod json;

use json::Pointers;
use libfuzzer_sys::fuzz_target;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

const WANTED: [&str; 7] = ["/a", "/a/b", "/a/0", "/b/1/a", "/~1/~0", "/\u{e4}", "/0"];

fuzz_target!(|text: &[u8]| {
    let found = Pointers::new(WANTED).find(text);
    let parsed = match serde_json::from_slice::<Value>(text) {
        Err(error) if error.to_string().contains("recursion") => return,
        // Only a number that a parser finds too large for itself is legal all the same.
        Err(error) if error.to_string().contains("out of range") => return,
        parsed => parsed.is_ok(),
    };
    // Nesting is refused one level apart, and nothing at all is no body rather than a broken one.
    let deep = found.as_ref().is_err_and(|error| error.to_string().contains("nesting"));
    assert!(deep || text.is_empty() || found.is_ok() == parsed, "{found:?}");
    let Ok(found) = found else { return };
    let Ok(tree) = serde_json::from_slice::<&RawValue>(text) else { return };
    for (pointer, found) in WANTED.iter().zip(found) {
        let names: Vec<_> =
            pointer.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~")).collect();
        let found = found.map(|value| String::from_utf8(value.into_owned()).expect("was UTF-8"));
        assert_eq!(found, look(tree, &names), "{pointer}");
    }
});

/// What a tree has at the end of those names, as the router compares it.
fn look(value: &RawValue, names: &[String]) -> Option<String> {
    let text = value.get();
    let Some((name, rest)) = names.split_first() else {
        return match text.as_bytes().first() {
            Some(b'"') => serde_json::from_str(text).ok(),
            Some(b'{' | b'[' | b'n') | None => None,
            Some(_) => Some(text.to_owned()),
        };
    };
    match text.as_bytes().first() {
        Some(b'{') => {
            let members = serde_json::Deserializer::from_str(text).deserialize_map(Members).ok()?;
            look(members.iter().find(|(known, _)| known == name)?.1, rest)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let index: usize = name.parse().ok().filter(|index: &usize| index.to_string() == *name)?;
            look(items.get(index)?, rest)
        }
        _ => None,
    }
}

/// All of them, the repeated too, in their order.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}
