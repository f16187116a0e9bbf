//! The reference of every field, `docs/reference/crds.md`, made from the same definitions as the YAML.

use std::fmt::Write;
use std::path::Path;

use schemars::JsonSchema;
use serde_json::Value;

use crate::manifest::{self, Manifest};

const OPENING: &str = "\
<!-- Made from the types in crds/src; `BLESS=1 cargo test -p bulkhead-crds` refreshes it. -->

# Reference of the API

Group `bulkhead.dev`, version `v1alpha1`. Unset, null and empty mean the same, except for an `exact` text, which may be empty. Limits are the
API server's to enforce; a router that reads files holds them to the same.
";

const HEAD: &str = "| field | type | default | limits | meaning |\n|---|---|---|---|---|";

#[test]
fn the_reference_names_every_field() {
    let mut page = OPENING.to_owned();
    conditions(&mut page).expect("a String takes all text");
    for manifest in manifest::all().expect("derived definitions serialise") {
        kind(&mut page, &manifest).expect("a String takes all text");
    }
    crate::blessed::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/crds.md"), &page);
}

fn kind(page: &mut String, manifest: &Manifest) -> std::fmt::Result {
    let spec = &manifest.definition["spec"];
    let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"];
    writeln!(page, "\n## {}\n\n{}", text(&spec["names"]["kind"]), text(&schema["description"]))?;
    let scope = if spec["scope"] == "Cluster" { "the cluster" } else { "a namespace" };
    write!(page, "It belongs to {scope}. `kubectl get {}`", manifest.name)?;
    for short in spec["names"]["shortNames"].as_array().into_iter().flatten() {
        write!(page, " or `{}`", text(short))?;
    }
    writeln!(page, ".")?;
    for part in ["spec", "status"] {
        let schema = &schema["properties"][part];
        writeln!(
            page,
            "\n### {}.{part}\n\n{}\n",
            text(&spec["names"]["kind"]),
            text(&schema["description"])
        )?;
        writeln!(page, "{HEAD}")?;
        fields(page, schema, "")?;
    }
    let mut found = Vec::new();
    rules(schema, "", &mut found);
    if !found.is_empty() {
        writeln!(page, "\nRules over several fields, as the API server words them:\n")?;
    }
    for (path, message) in found {
        let place = if path.is_empty() { String::new() } else { format!("`{path}`: ") };
        writeln!(page, "- {place}{message}")?;
    }
    Ok(())
}

/// The same in every kind, so they are told once.
fn conditions(page: &mut String) -> std::fmt::Result {
    let definitions = manifest::all().expect("derived definitions serialise");
    let schema = &definitions[0].definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    writeln!(
        page,
        "\n## Conditions\n\nEvery kind has `status.conditions`, as kstatus and `kubectl wait` read them.\n"
    )?;
    writeln!(page, "{HEAD}")?;
    fields(page, &schema["properties"]["status"]["properties"]["conditions"]["items"], "conditions[].")
}

fn fields(page: &mut String, schema: &Value, parent: &str) -> std::fmt::Result {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{parent}{name}");
        assert!(
            !text(&field["description"]).is_empty(),
            "{path} has no description; give its Rust field a doc comment"
        );
        let required =
            schema["required"].as_array().is_some_and(|names| names.iter().any(|other| other == name));
        // Within lists the default stands in the description.
        let description = text(&field["description"]);
        let (meaning, told) = description
            .rsplit_once(" Default: ")
            .map_or((description, ""), |(meaning, default)| (meaning, default.trim_end_matches('.')));
        let default = match field.get("default") {
            _ if required => "required".to_owned(),
            None => told.to_owned(),
            // Its fields have their own defaults, below.
            Some(Value::Object(_)) => String::new(),
            Some(default) => format!("`{}`", plain(default)),
        };
        let cells = [format!("`{path}`"), type_of(field), default, limits(field), meaning.to_owned()];
        writeln!(page, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))?;
        fields(page, field, &format!("{path}."))?;
        if name != "conditions" {
            fields(page, &field["items"], &format!("{path}[]."))?;
        }
    }
    Ok(())
}

/// Texts that have a form of their own; their pattern says less to people than its name.
fn form(field: &Value) -> Option<&'static str> {
    let pattern = field["pattern"].as_str()?;
    let is = |schema: schemars::Schema| schema.get("pattern").and_then(Value::as_str) == Some(pattern);
    let generator = &mut schemars::SchemaGenerator::default();
    if is(crate::Duration::json_schema(generator)) {
        Some("duration, such as `1m30s` or `250ms`")
    } else if is(crate::schema::byte_size(generator)) {
        Some("bytes, such as `256Ki`")
    } else if is(crate::schema::quantity(generator)) {
        Some("quantity, such as `8`, `500m` or `16Gi`")
    } else if is(crate::schema::date_time(generator)) {
        Some("time, such as `2030-01-02T03:04:05Z`")
    } else {
        None
    }
}

fn type_of(field: &Value) -> String {
    if let Some(form) = form(field) {
        return form.to_owned();
    }
    match field["type"].as_str() {
        Some("array") => format!("list of {}", type_of(&field["items"])),
        Some("object") if field.get("additionalProperties").is_some() => {
            format!("map to {}", type_of(&field["additionalProperties"]))
        }
        Some(name) => name.to_owned(),
        None => "string, number or boolean".to_owned(),
    }
}

fn limits(field: &Value) -> String {
    let mut parts = Vec::new();
    if form(field).is_some() {
        return String::new();
    }
    if let Some(words) = field["enum"].as_array() {
        parts.push(words.iter().map(|word| format!("`{}`", plain(word))).collect::<Vec<_>>().join(", "));
    }
    parts.extend(between(field, "minimum", "maximum", ""));
    parts.extend(between(field, "minLength", "maxLength", " characters"));
    parts.extend(between(field, "minItems", "maxItems", " items"));
    parts.extend(between(field, "minProperties", "maxProperties", " entries"));
    if let Some(pattern) = field["pattern"].as_str() {
        parts.push(format!("`{pattern}`"));
    }
    if let Some(keys) = field["x-kubernetes-list-map-keys"].as_array() {
        parts.push(format!("unique by {}", keys.iter().map(text).collect::<Vec<_>>().join(" and ")));
    }
    if field["x-kubernetes-list-type"] == "set" {
        parts.push("no item twice".to_owned());
    }
    if field["type"] == "array" && field["items"]["properties"].is_null() {
        let each = limits(&field["items"]);
        if !each.is_empty() {
            parts.push(format!("each: {each}"));
        }
    }
    parts.join("; ")
}

fn between(field: &Value, least: &str, most: &str, unit: &str) -> Option<String> {
    match (field[least].as_i64(), field[most].as_i64()) {
        (None | Some(0), Some(most)) if !unit.is_empty() => Some(format!("at most {most}{unit}")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
        (None, Some(most)) => Some(format!("at most {most}{unit}")),
        (Some(least), None) => Some(format!("at least {least}{unit}")),
        (None, None) => None,
    }
}

fn rules(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.push((path.to_owned(), text(&rule["message"]).to_owned()));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        rules(&field["items"], &format!("{path}[]"), found);
        rules(field, &path, found);
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
