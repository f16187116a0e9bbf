//! What the API server refuses of a definition itself, or warns of, and what keeps the estimated cost of CEL rules within
//! its budget: every list, map and text has a limit.

use serde_json::Value;

use crate::{DEFINITIONS, schema_of};

/// Calls `look` with every schema of every kind and its path.
fn each(look: &mut impl FnMut(&str, &Value)) {
    for manifest in DEFINITIONS.iter() {
        let schema = schema_of(&manifest.definition);
        for part in ["spec", "status"] {
            visit(&format!("{}.{part}", manifest.name), &schema["properties"][part], look);
        }
    }
}

fn visit(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        visit(&format!("{path}.{name}"), field, look);
    }
    for (below, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(schema) = schema.get(below) {
            visit(&format!("{path}{mark}"), schema, look);
        }
    }
}

#[test]
fn everything_has_a_limit() {
    each(&mut |path, schema| {
        let limited = match schema["type"].as_str() {
            Some("array") => schema.get("maxItems").is_some(),
            Some("string") => schema.get("maxLength").or(schema.get("enum")).is_some(),
            Some("object") => {
                schema.get("additionalProperties").is_none() || schema.get("maxProperties").is_some()
            }
            _ => true,
        };
        assert!(limited, "{path} has no limit");
    });
}

#[test]
fn schemas_are_structural_and_use_what_the_api_server_knows() {
    each(&mut |path, schema| {
        let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
        let typed = schema["type"].is_string() || schema["x-kubernetes-int-or-string"] == true;
        assert!(typed || open, "{path} has no type");
        for keyword in ["anyOf", "oneOf", "allOf", "not", "$ref", "const", "nullable"] {
            assert!(schema.get(keyword).is_none(), "{path} uses {keyword}");
        }
        let format = schema["format"].as_str();
        assert!(
            format.is_none_or(|format| ["int32", "int64", "date-time"].contains(&format)),
            "{path}: {format:?}"
        );
        if schema["type"] == "array" {
            assert!(
                schema["x-kubernetes-list-type"].is_string(),
                "{path} does not say how appliers merge it"
            );
        }
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let required = schema["items"]["required"].as_array().is_some_and(|names| names.contains(key));
            assert!(required, "{path}: {key} names an item and may be absent");
        }
    });
}
