//! A Cell's `values` against the parameters that its template declares: types, enums, patterns, defaults. Where the
//! values go is `substitute`'s.

use std::collections::BTreeMap;

use bulkhead_crds::template::{Parameter, ParameterType};
use regex::Regex;
use serde_json::Value;

use super::Refusal;

/// Every parameter's value, by its name: what the Cell set, or the default.
///
/// # Errors
/// The path of the first value that is missing, unknown or not what its parameter allows.
pub(super) fn resolve(
    parameters: &[Parameter],
    values: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Value>, Refusal> {
    if let Some(unknown) = values.keys().find(|name| !parameters.iter().any(|known| known.name == **name)) {
        let known: Vec<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Refusal::new(
            format!("spec.values.{unknown}"),
            format!("the template has no parameter of that name; it has: {known}"),
        ));
    }
    parameters
        .iter()
        .map(|parameter| {
            let path = format!("spec.values.{}", parameter.name);
            let value =
                values.get(&parameter.name).filter(|value| !value.is_null()).or(parameter.default.as_ref());
            let value = value.ok_or_else(|| {
                Refusal::new(&path, "is required: the template's parameter has no default".to_owned())
            })?;
            check(parameter, value, &path)?;
            Ok((parameter.name.clone(), value.clone()))
        })
        .collect()
}

/// Parameters that no Cell can use: patterns that do not compile, defaults that break their own rules.
///
/// # Errors
/// The path of the first such parameter, in the template.
pub(super) fn check_declarations(parameters: &[Parameter]) -> Result<(), Refusal> {
    for parameter in parameters {
        let path = format!("spec.parameters[{}]", parameter.name);
        if let Some(pattern) = &parameter.pattern {
            compile(pattern, &format!("{path}.pattern"))?;
        }
        if let Some(default) = &parameter.default {
            check(parameter, default, &format!("{path}.default"))?;
        }
    }
    Ok(())
}

fn check(parameter: &Parameter, value: &Value, path: &str) -> Result<(), Refusal> {
    let (fits, wanted) = match parameter.r#type {
        ParameterType::String => (value.is_string(), "a string"),
        ParameterType::Integer => (value.is_i64() || value.is_u64(), "a whole number"),
        ParameterType::Number => (value.is_number(), "a number"),
        ParameterType::Boolean => (value.is_boolean(), "true or false"),
    };
    if !fits {
        return Err(Refusal::new(
            path,
            format!("{value} is not {wanted}, as the template's parameter asks for"),
        ));
    }
    if !parameter.r#enum.is_empty() && !parameter.r#enum.contains(value) {
        let allowed: Vec<_> = parameter.r#enum.iter().map(Value::to_string).collect();
        return Err(Refusal::new(path, format!("{value} is not one of {}", allowed.join(", "))));
    }
    if let (Some(pattern), Some(text)) = (&parameter.pattern, value.as_str())
        && !compile(pattern, path)?.is_match(text)
    {
        return Err(Refusal::new(path, format!("{value} does not match the pattern {pattern}")));
    }
    Ok(())
}

fn compile(pattern: &str, path: &str) -> Result<Regex, Refusal> {
    // Anchored, because a pattern must match the value as a whole.
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        Refusal::new(path, format!("the pattern {pattern} is no regular expression: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameter(name: &str, r#type: ParameterType) -> Parameter {
        Parameter { name: name.to_owned(), r#type, ..Parameter::default() }
    }

    fn refused(parameter: Parameter, value: &Value) -> Option<String> {
        let name = parameter.name.clone();
        resolve(&[parameter], &[(name, value.clone())].into()).err().map(|refusal| refusal.path)
    }

    #[test]
    fn a_value_has_the_type_of_its_parameter() {
        let path = Some("spec.values.x".to_owned());
        assert_eq!(refused(parameter("x", ParameterType::Integer), &json!(3)), None);
        assert_eq!(refused(parameter("x", ParameterType::Integer), &json!(3.5)), path);
        assert_eq!(refused(parameter("x", ParameterType::Integer), &json!("3")), path);
        assert_eq!(refused(parameter("x", ParameterType::Number), &json!(3.5)), None);
        assert_eq!(refused(parameter("x", ParameterType::Boolean), &json!("true")), path);
        assert_eq!(refused(parameter("x", ParameterType::String), &json!("3")), None);
    }

    #[test]
    fn enums_and_patterns_bind_the_whole_value() {
        let mut sized = parameter("x", ParameterType::String);
        sized.r#enum = vec![json!("small"), json!("large")];
        assert_eq!(refused(sized.clone(), &json!("small")), None);
        assert!(refused(sized, &json!("medium")).is_some());
        let mut named = parameter("x", ParameterType::String);
        named.pattern = Some("[a-z]+|[0-9]+".to_owned());
        assert_eq!(refused(named.clone(), &json!("abc")), None);
        assert!(refused(named, &json!("abc1")).is_some());
    }

    #[test]
    fn defaults_fill_in_and_what_has_none_is_required() {
        let mut with_default = parameter("x", ParameterType::Integer);
        with_default.default = Some(json!(2));
        assert_eq!(resolve(&[with_default], &BTreeMap::new()), Ok([("x".to_owned(), json!(2))].into()));
        assert!(resolve(&[parameter("x", ParameterType::Integer)], &BTreeMap::new()).is_err());
        assert!(resolve(&[], &[("y".to_owned(), json!(1))].into()).is_err());
    }

    #[test]
    fn a_declaration_that_no_cell_could_use_is_refused() {
        let mut broken = parameter("x", ParameterType::String);
        broken.pattern = Some("(".to_owned());
        assert!(check_declarations(&[broken]).is_err());
        let mut wrong = parameter("x", ParameterType::Integer);
        wrong.default = Some(json!("two"));
        assert!(check_declarations(&[wrong]).is_err());
    }
}
