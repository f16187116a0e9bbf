//! Pieces of OpenAPI schema that derive cannot write, and the last touches that every schema gets.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^([0-9]+(\\.[0-9]+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
        "maxLength": 32,
        "minimum": 0,
    })
}

/// Bytes, as a Kubernetes quantity with a binary unit or none.
pub(crate) fn byte_size(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^[0-9]{1,12}(Ki|Mi|Gi)?$", "maxLength": 16})
}

pub(crate) fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "format": "date-time",
        "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$",
        "maxLength": 40,
    })
}

pub(crate) fn scalar(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

pub(crate) fn scalar_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 64, "items": {"x-kubernetes-preserve-unknown-fields": true}})
}

pub(crate) fn scalar_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

pub(crate) fn label_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": {
            "type": "string",
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
            "maxLength": 63,
        },
    })
}

/// Whole Kubernetes objects. Not `x-kubernetes-embedded-resource`: that checks labels before anything is substituted,
/// and would refuse `${values.tier}` in one.
pub(crate) fn embedded_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 128,
        "items": {
            "type": "object",
            "required": ["apiVersion", "kind", "metadata"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "apiVersion": {"description": "Group and version of its kind.", "type": "string", "minLength": 1, "maxLength": 317},
                "kind": {"description": "One of the allowed kinds.", "type": "string", "minLength": 1, "maxLength": 63},
                "metadata": {
                    "description": "As everywhere in Kubernetes, without a namespace.",
                    "type": "object",
                    "required": ["name"],
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"name": {"description": "Name of the object in the cell's namespace.", "type": "string", "minLength": 1, "maxLength": 253}},
                },
            },
        },
    })
}

/// Makes a derived definition one that the API server takes without warnings.
pub(crate) fn finish(definition: &CustomResourceDefinition) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(definition)?;
    visit(&mut value);
    for version in value["spec"]["versions"].as_array_mut().into_iter().flatten() {
        defaults_out_of_lists(&mut version["schema"]["openAPIV3Schema"], false);
    }
    Ok(value)
}

/// A default that the server writes into an item of a list makes every `kubectl apply` of the unchanged file a change,
/// since a custom resource's lists are compared whole. There the default is for the reader, and code fills it in.
fn defaults_out_of_lists(schema: &mut Value, in_list: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    if in_list
        && let Some(default) = schema.remove("default")
        && !default.is_object()
    {
        let text = default.as_str().map_or_else(|| default.to_string().replace(',', ", "), ToOwned::to_owned);
        let description = schema.entry("description").or_insert(json!(""));
        let before = description.as_str().unwrap_or_default();
        *description = json!(format!("{before} Default: `{text}`.").trim_start());
    }
    if let Some(items) = schema.get_mut("items") {
        defaults_out_of_lists(items, true);
    }
    for property in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        defaults_out_of_lists(property.1, in_list);
    }
}

fn visit(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(visit),
        Value::Object(object) => {
            signed_integers(object);
            optional_enum(object);
            null_is_absent(object);
            object.values_mut().for_each(visit);
        }
        Value::Number(number) => whole_number(number),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The API knows int32 and int64 only, and warns of other formats.
fn signed_integers(object: &mut Map<String, Value>) {
    let format = match object.get("format").and_then(Value::as_str) {
        Some("uint16") => "int32",
        Some("uint32") => "int64",
        _ => return,
    };
    object.insert("format".to_owned(), json!(format));
    object.entry("minimum").or_insert(json!(0));
    object.entry("maximum").or_insert(if format == "int32" { json!(u16::MAX) } else { json!(u32::MAX) });
}

/// `Option<Enum>` derives as `anyOf` with a null branch, which is not structural.
fn optional_enum(object: &mut Map<String, Value>) {
    let is_null = |branch: &Value| branch.get("enum") == Some(&json!([null]));
    let Some(Value::Array(branches)) = object.get("anyOf") else { return };
    if branches.len() != 2 || !branches.iter().any(is_null) {
        return;
    }
    let Some(Value::Object(kept)) = branches.iter().find(|branch| !is_null(branch)).cloned() else { return };
    object.remove("anyOf");
    for (key, value) in kept {
        object.entry(key).or_insert(value);
    }
}

/// Unset, null and empty mean the same. The API server drops a null, or puts the default in its place, where the
/// schema does not say `nullable`; where it does, the null stays and `has()` holds for it.
fn null_is_absent(object: &mut Map<String, Value>) {
    if object.get("nullable").is_some_and(Value::is_boolean) {
        object.remove("nullable");
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if object.get("default").is_some_and(|default| default.is_null() || *default == json!([])) {
        object.remove("default");
    }
}

/// Limits derive as floating point; `100.0` reads as if half a percent could be meant.
fn whole_number(number: &mut serde_json::Number) {
    if let Some(float) = number.as_f64().filter(|_| number.is_f64())
        && float.fract() == 0.0
        && float.abs() < 9e15
    {
        *number = serde_json::Number::from(float as i64);
    }
}
