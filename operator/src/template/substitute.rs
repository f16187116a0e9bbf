//! `${cell.name}` and `${values.NAME}` in the strings of a template's objects. A string that is only a reference takes
//! the value's JSON type; keys of maps are left alone. What values may be is checked in `parameters`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Refusal;

/// What references may name, by their full names such as `values.replicas`.
pub(super) type Names = BTreeMap<String, Value>;

/// Replaces every reference in `value`, which lies at `path`.
///
/// # Errors
/// The path of a string with an unknown name or without an end.
pub(super) fn substitute(value: &Value, names: &Names, path: &str) -> Result<Value, Refusal> {
    Ok(match value {
        Value::String(text) => in_string(text, names, path)?,
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| substitute(item, names, &format!("{path}[{index}]")))
            .collect::<Result<_, _>>()?,
        Value::Object(fields) => fields
            .iter()
            .map(|(key, field)| Ok((key.clone(), substitute(field, names, &format!("{path}.{key}"))?)))
            .collect::<Result<serde_json::Map<_, _>, Refusal>>()
            .map(Value::Object)?,
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

fn in_string(text: &str, names: &Names, path: &str) -> Result<Value, Refusal> {
    if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
        && !name.contains(['$', '{', '}'])
    {
        return lookup(name, names, path).cloned();
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = (&rest[..at], &rest[at + 2..]);
        if let Some(escaped) = before.strip_suffix('$') {
            result.push_str(escaped);
            result.push_str("${");
            rest = reference;
            continue;
        }
        let Some(end) = reference.find('}') else {
            return Err(Refusal::new(
                path,
                format!("{text:?} has a ${{ without an end; write $${{ for the text ${{"),
            ));
        };
        result.push_str(before);
        match lookup(&reference[..end], names, path)? {
            Value::String(string) => result.push_str(string),
            other => result.push_str(&other.to_string()),
        }
        rest = &reference[end + 1..];
    }
    result.push_str(rest);
    Ok(Value::String(result))
}

fn lookup<'a>(name: &str, names: &'a Names, path: &str) -> Result<&'a Value, Refusal> {
    names.get(name).ok_or_else(|| {
        let known: Vec<_> = names.keys().map(String::as_str).collect();
        Refusal::new(path, format!("unknown name ${{{name}}}; known are {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        [
            ("cell.name".to_owned(), json!("a")),
            ("values.replicas".to_owned(), json!(3)),
            ("values.debug".to_owned(), json!(true)),
        ]
        .into()
    }

    fn check(text: &str, expected: &Value) {
        assert_eq!(substitute(&json!(text), &names(), "objects[0].x").as_ref(), Ok(expected), "{text}");
    }

    #[test]
    fn a_string_that_is_only_a_reference_takes_the_type_of_its_value() {
        check("${values.replicas}", &json!(3));
        check("${values.debug}", &json!(true));
        check("${cell.name}", &json!("a"));
    }

    #[test]
    fn an_embedded_reference_takes_the_text_of_its_value() {
        check("cell-${cell.name}-${values.replicas}", &json!("cell-a-3"));
        check("${cell.name}${cell.name}", &json!("aa"));
        check(" ${values.debug}", &json!(" true"));
    }

    #[test]
    fn a_doubled_dollar_escapes() {
        check("$${cell.name}", &json!("${cell.name}"));
        check("$$${cell.name}", &json!("$${cell.name}"));
        check("$5 and $${x} and ${cell.name}", &json!("$5 and ${x} and a"));
    }

    #[test]
    fn an_unknown_name_or_a_missing_end_names_the_field() {
        for text in ["${values.x}", "x ${nope}", "${cell.name", "${}"] {
            let refused = substitute(&json!({"a": ["ok", text]}), &names(), "objects[4]");
            assert_eq!(refused.map_err(|refusal| refusal.path), Err("objects[4].a[1]".to_owned()), "{text}");
        }
    }
}
