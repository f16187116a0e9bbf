//! Checks a document against the schema and the CEL rules that the API server would hold it to, so that a folder of files
//! refuses what a cluster refuses.

use std::collections::BTreeMap;

use kube::core::cel::{CompiledSchema, compile_schema, validate_compiled};
use regex::Regex;
use serde_json::{Map, Value};

/// The schema of every kind, by its name.
pub(crate) struct Schemas {
    kinds: BTreeMap<String, Kind>,
    patterns: BTreeMap<String, Regex>,
}

struct Kind {
    schema: Value,
    rules: CompiledSchema,
}

impl Schemas {
    /// # Errors
    /// When the generated definitions are no JSON, which they always are.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let mut schemas = Self { kinds: BTreeMap::new(), patterns: BTreeMap::new() };
        for manifest in bulkhead_crds::all()? {
            let definition = manifest.definition;
            let kind = definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
            let schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
            schemas.learn_patterns(&schema)?;
            let rules = compile_schema(&schema);
            schemas.kinds.insert(kind, Kind { schema, rules });
        }
        Ok(schemas)
    }

    fn learn_patterns(&mut self, schema: &Value) -> anyhow::Result<()> {
        match schema {
            Value::Object(fields) => {
                if let Some(pattern) = fields.get("pattern").and_then(Value::as_str)
                    && !self.patterns.contains_key(pattern)
                {
                    self.patterns.insert(pattern.to_owned(), Regex::new(pattern)?);
                }
                fields.values().try_for_each(|value| self.learn_patterns(value))
            }
            Value::Array(items) => items.iter().try_for_each(|value| self.learn_patterns(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    pub(crate) fn knows(&self, kind: &str) -> bool {
        self.kinds.contains_key(kind)
    }

    /// The first thing wrong with a document of that kind, with the path of the field.
    ///
    /// # Errors
    /// A sentence for people.
    pub(crate) fn check(&self, kind: &str, document: &Value) -> Result<(), String> {
        let Some(Kind { schema, .. }) = self.kinds.get(kind) else {
            return Err(format!("kind {kind} is not known"));
        };
        let Value::Object(fields) = document else { return Err("not an object".to_owned()) };
        for (name, value) in fields {
            match (name.as_str(), &schema["properties"][name]) {
                // The API server's own, and the operator's.
                ("apiVersion" | "kind" | "metadata" | "status", _) => {}
                (_, Value::Null) => return Err(unknown(name)),
                (_, schema) => self.value(schema, value, name)?,
            }
        }
        if fields.contains_key("spec") { Ok(()) } else { Err("spec is missing".to_owned()) }
    }

    /// What a document of that kind, with its defaults in place, breaks of the rules between fields.
    ///
    /// # Errors
    /// The sentences of the broken rules.
    pub(crate) fn check_rules(&self, kind: &str, document: &Value) -> Result<(), String> {
        let Some(Kind { rules, .. }) = self.kinds.get(kind) else { return Ok(()) };
        validate_compiled(rules, document, None).map_err(|broken| broken.to_string())
    }

    fn value(&self, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
        if value.is_null() {
            // Unset, null and empty mean the same.
            return Ok(());
        }
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            let words: Vec<String> = allowed.iter().map(Value::to_string).collect();
            return Err(format!("{path} is {value}, but must be one of {}", words.join(", ")));
        }
        let expected = schema["type"].as_str();
        match (expected, value) {
            (Some("object"), Value::Object(fields)) => self.object(schema, fields, path),
            (Some("array"), Value::Array(items)) => self.array(schema, items, path),
            (Some("string") | None, Value::String(text)) => self.string(schema, text, path),
            (Some("integer" | "number"), Value::Number(number)) => {
                range(schema, number.as_f64().unwrap_or_default(), path)?;
                if expected == Some("integer") && !number.is_i64() && !number.is_u64() {
                    return Err(format!("{path} is {number}, but must be a whole number"));
                }
                Ok(())
            }
            (Some("boolean"), Value::Bool(_)) | (None, _) => Ok(()),
            (Some(expected), _) => Err(format!("{path} is {value}, but must be of type {expected}")),
        }
    }

    fn object(&self, schema: &Value, fields: &Map<String, Value>, path: &str) -> Result<(), String> {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return Ok(());
        }
        for (name, value) in fields {
            let at = format!("{path}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Null) => return Err(unknown(&at)),
                (Value::Null, schema) | (schema, _) => self.value(schema, value, &at)?,
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if fields.get(name).is_none_or(Value::is_null) {
                return Err(format!("{path}.{name} is missing"));
            }
        }
        let most = schema["maxProperties"].as_u64().unwrap_or(u64::MAX);
        if fields.len() as u64 > most {
            return Err(format!("{path} has {} entries, but must have at most {most}", fields.len()));
        }
        Ok(())
    }

    fn array(&self, schema: &Value, items: &[Value], path: &str) -> Result<(), String> {
        let (least, most) =
            (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64().unwrap_or(u64::MAX));
        if !(least..=most).contains(&(items.len() as u64)) {
            return Err(format!("{path} has {} items, but must have {}", items.len(), between(least, most)));
        }
        for (place, item) in items.iter().enumerate() {
            self.value(&schema["items"], item, &format!("{path}[{place}]"))?;
        }
        let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let same = |one: &Value, other: &Value| keys.iter().all(|key| one[key] == other[key]);
        for (place, item) in items.iter().enumerate() {
            if !keys.is_empty() && items[..place].iter().any(|before| same(before, item)) {
                return Err(format!(
                    "{path}[{place}] repeats the {} of an entry before it",
                    keys.join(" and ")
                ));
            }
        }
        Ok(())
    }

    fn string(&self, schema: &Value, text: &str, path: &str) -> Result<(), String> {
        let (least, most) =
            (schema["minLength"].as_u64().unwrap_or(0), schema["maxLength"].as_u64().unwrap_or(u64::MAX));
        if !(least..=most).contains(&(text.chars().count() as u64)) {
            return Err(format!("{path} must have {} characters", between(least, most)));
        }
        match schema["pattern"].as_str() {
            Some(pattern) if !self.patterns.get(pattern).is_some_and(|regex| regex.is_match(text)) => {
                Err(format!("{path} is {text:?}, which does not match {pattern}"))
            }
            _ => Ok(()),
        }
    }
}

fn unknown(path: &str) -> String {
    format!("{path} is not a field; check its spelling and where it stands")
}

fn range(schema: &Value, number: f64, path: &str) -> Result<(), String> {
    let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
        let bound = |bound: Option<f64>| bound.map_or_else(|| "any".to_owned(), |bound| bound.to_string());
        return Err(format!("{path} is {number}, but must be from {} to {}", bound(least), bound(most)));
    }
    Ok(())
}

fn between(least: u64, most: u64) -> String {
    if most == u64::MAX { format!("at least {least}") } else { format!("from {least} to {most}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: &Value, expected: Result<(), &str>) {
        let schemas = Schemas::load().expect("the definitions are JSON");
        let checked = schemas.check("Cell", &json!({"apiVersion": "v", "kind": "Cell", "spec": spec}));
        assert_eq!(checked, expected.map_err(str::to_owned), "{spec}");
    }

    #[test]
    fn a_good_document_passes() {
        check(&json!({"weight": 0, "state": "Drained", "endpoints": ["127.0.0.1:8080"]}), Ok(()));
        check(&json!({"template": "t", "values": {"replicas": 3, "name": "x"}, "placement": null}), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_path() {
        check(
            &json!({"wieght": 0}),
            Err("spec.wieght is not a field; check its spelling and where it stands"),
        );
        check(&json!({"weight": 101}), Err("spec.weight is 101, but must be from 0 to 100"));
        check(&json!({"weight": "1"}), Err("spec.weight is \"1\", but must be of type integer"));
        check(
            &json!({"placement": {"zome": "z"}}),
            Err("spec.placement.zome is not a field; check its spelling and where it stands"),
        );
        check(
            &json!({"state": "Drain"}),
            Err("spec.state is \"Drain\", but must be one of \"Active\", \"Drained\", \"Disabled\""),
        );
    }
}
