//! What the API server does with an object, as far as it goes without one: refuse unknown fields, drop nulls, put in
//! defaults, check the schema, then the CEL rules. Only the keywords that our schemas use; messages as the server's.

use kube::core::cel::{Validator, apply_defaults};
use regex::Regex;
use serde_json::Value;

/// Why the object is refused; empty when it is accepted. `old` is what is stored, when this is an edit.
pub(crate) fn admit(schema: &Value, object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut errors = Vec::new();
    unknown_fields(&schema["properties"]["spec"], &object["spec"], "spec", &mut errors);
    let object = defaulted(schema, object);
    check(&schema["properties"]["spec"], &object["spec"], "spec", &mut errors);
    if errors.is_empty() {
        let old = old.map(|old| defaulted(schema, old));
        if let Err(broken) = Validator::new().validate(schema, &object, old.as_ref()) {
            errors.extend(broken.as_slice().iter().map(ToString::to_string));
        }
    }
    errors
}

fn defaulted(schema: &Value, object: &Value) -> Value {
    apply_defaults(schema, &without_nulls(schema, object))
}

/// None of our fields is `nullable`, so a null goes, and a default may take its place.
pub(crate) fn without_nulls(schema: &Value, object: &Value) -> Value {
    let mut object = object.clone();
    drop_nulls(&schema["properties"]["spec"], &mut object["spec"]);
    object
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// The schema of a field: declared, or that of every value of a map.
fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema["properties"].get(name).or_else(|| schema.get("additionalProperties"))
}

fn unknown_fields(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match field(schema, name) {
                    Some(schema) => unknown_fields(schema, value, &path, errors),
                    None if keeps_unknown(schema) => {}
                    None => errors.push(format!("unknown field {path:?}")),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                unknown_fields(&schema["items"], item, &format!("{path}[{index}]"), errors);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| !value.is_null() || field(schema, name).is_none());
            for (name, value) in fields {
                if let Some(schema) = field(schema, name) {
                    drop_nulls(schema, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(&schema["items"], item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check(schema: &Value, value: &Value, path: &str, errors: &mut Vec<String>) {
    if !has_type(schema, value) {
        errors
            .push(format!("{path} in body must be of type {}", schema["type"].as_str().unwrap_or_default()));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let words: Vec<_> = allowed.iter().map(Value::to_string).collect();
        errors.push(format!("{path}: Unsupported value: {value}: supported values: {}", words.join(", ")));
    }
    match value {
        Value::Number(number) => check_number(schema, number.as_f64().unwrap_or(f64::NAN), path, errors),
        Value::String(text) => check_text(schema, text, path, errors),
        Value::Array(items) => check_list(schema, items, path, errors),
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    errors.push(format!("{path}.{name}: Required value"));
                }
            }
            at_most(schema, "maxProperties", fields.len(), path, errors);
            for (name, value) in fields {
                if let Some(schema) = field(schema, name) {
                    check(schema, value, &format!("{path}.{name}"), errors);
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => true,
    }
}

fn check_number(schema: &Value, number: f64, path: &str, errors: &mut Vec<String>) {
    if let Some(limit) = schema["minimum"].as_f64().filter(|limit| number < *limit) {
        errors.push(format!("{path} in body should be greater than or equal to {limit}"));
    }
    if let Some(limit) = schema["maximum"].as_f64().filter(|limit| number > *limit) {
        errors.push(format!("{path} in body should be less than or equal to {limit}"));
    }
}

fn check_text(schema: &Value, text: &str, path: &str, errors: &mut Vec<String>) {
    let length = text.chars().count();
    at_least(schema, "minLength", length, path, errors);
    at_most(schema, "maxLength", length, path, errors);
    if let Some(pattern) = schema["pattern"].as_str()
        && !Regex::new(pattern).expect("our patterns are legal").is_match(text)
    {
        errors.push(format!("{path} in body should match '{pattern}'"));
    }
}

fn check_list(schema: &Value, items: &[Value], path: &str, errors: &mut Vec<String>) {
    at_least(schema, "minItems", items.len(), path, errors);
    at_most(schema, "maxItems", items.len(), path, errors);
    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let identity = |item: &Value| match (keys, schema["x-kubernetes-list-type"].as_str()) {
        (Some(keys), _) => {
            Some(keys.iter().filter_map(Value::as_str).map(|key| item[key].clone()).collect::<Vec<_>>())
        }
        (None, Some("set")) => Some(vec![item.clone()]),
        (None, _) => None,
    };
    for (index, item) in items.iter().enumerate() {
        if identity(item)
            .is_some_and(|own| items[..index].iter().filter_map(identity).any(|other| other == own))
        {
            errors.push(format!("{path}[{index}]: Duplicate value"));
        }
        check(&schema["items"], item, &format!("{path}[{index}]"), errors);
    }
}

fn at_least(schema: &Value, keyword: &str, length: usize, path: &str, errors: &mut Vec<String>) {
    if schema[keyword].as_u64().is_some_and(|limit| (length as u64) < limit) {
        errors.push(format!("{path} in body should have at least {}", schema[keyword]));
    }
}

fn at_most(schema: &Value, keyword: &str, length: usize, path: &str, errors: &mut Vec<String>) {
    if schema[keyword].as_u64().is_some_and(|limit| (length as u64) > limit) {
        errors.push(format!("{path}: Too many or too long: must have at most {}", schema[keyword]));
    }
}
