//! Whether a live object already says what we want of it. Only fields that we set are compared, because the API server
//! fills in the rest; what is done about a difference is `apply`'s.

use serde_json::{Map, Value};

/// Whether every field of `desired` has that value in `live`.
///
/// Lists whose items carry a `name` are merged by it, as server-side apply does, and may have more items; other lists
/// must be the same. An empty object that we set must be empty: `podSelector: {}` means every pod.
pub(crate) fn matches(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Null, _) => live.is_null(),
        (Value::Object(desired), Value::Null) => desired.is_empty(),
        (Value::Object(desired), Value::Object(live)) => {
            if desired.is_empty() {
                live.is_empty()
            } else {
                fields_match(desired, live)
            }
        }
        (Value::Array(desired), Value::Null) => desired.is_empty(),
        (Value::Array(desired), Value::Array(live)) if has_names(desired) => desired
            .iter()
            .all(|wanted| live.iter().any(|item| item["name"] == wanted["name"] && matches(wanted, item))),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len()
                && desired.iter().zip(live).all(|(wanted, item)| matches(wanted, item))
        }
        _ => desired == live,
    }
}

fn fields_match(desired: &Map<String, Value>, live: &Map<String, Value>) -> bool {
    desired.iter().all(|(key, wanted)| matches(wanted, live.get(key).unwrap_or(&Value::Null)))
}

fn has_names(list: &[Value]) -> bool {
    !list.is_empty() && list.iter().all(|item| item["name"].is_string())
}

/// Whether `live` says exactly what `desired` does: unset, null and an empty list mean the same, and nothing may be
/// added. For walls, where an added field is a hole.
pub(crate) fn equals(desired: &Value, live: &Value) -> bool {
    let nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.keys().chain(live.keys()).all(|key| {
            equals(desired.get(key).unwrap_or(&Value::Null), live.get(key).unwrap_or(&Value::Null))
        }),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len() && desired.iter().zip(live).all(|(wanted, item)| equals(wanted, item))
        }
        _ => desired == live || (nothing(desired) && nothing(live)),
    }
}

/// What `live` says of the fields that `desired` sets: how the API server wrote our own words, such as `500m` for
/// `0.5`. An object whose projection stays the same has not drifted, however it differs from what we sent.
pub(crate) fn projection(desired: &Value, live: &Value) -> Value {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) if !desired.is_empty() => Value::Object(
            desired
                .iter()
                .map(|(key, wanted)| (key.clone(), projection(wanted, live.get(key).unwrap_or(&Value::Null))))
                .collect(),
        ),
        (Value::Array(desired), Value::Array(live)) if has_names(desired) => desired
            .iter()
            .map(|wanted| {
                let item = live.iter().find(|item| item["name"] == wanted["name"]);
                item.map_or(Value::Null, |item| projection(wanted, item))
            })
            .collect(),
        (Value::Array(desired), Value::Array(live)) if desired.len() == live.len() => {
            desired.iter().zip(live).map(|(wanted, item)| projection(wanted, item)).collect()
        }
        _ => live.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(desired: &Value, live: &Value, expected: bool) {
        assert_eq!(matches(desired, live), expected, "{desired} against {live}");
    }

    #[test]
    fn what_others_and_defaults_add_is_no_difference() {
        let live = json!({"spec": {"replicas": 2, "strategy": {"type": "RollingUpdate"}}, "status": {}});
        check(&json!({"spec": {"replicas": 2}}), &live, true);
        check(&json!({"spec": {"replicas": 3}}), &live, false);
        check(&json!({"spec": {"paused": false}}), &live, false);
    }

    #[test]
    fn containers_are_found_by_their_name() {
        let live = json!([{"name": "injected"}, {"name": "app", "image": "a:1", "env": [{"name": "A", "value": "1"}]}]);
        check(&json!([{"name": "app", "image": "a:1"}]), &live, true);
        check(&json!([{"name": "app", "image": "a:2"}]), &live, false);
        check(&json!([{"name": "app", "env": [{"name": "B"}]}]), &live, false);
    }

    #[test]
    fn a_rule_that_another_added_to_a_policy_is_a_difference() {
        let desired = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
        check(&desired, &desired, true);
        check(&desired, &json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}, {}]}), false);
        let narrowed =
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"from": [{"podSelector": {}}]}]});
        check(&desired, &narrowed, false);
        check(&json!({"egress": []}), &json!({}), true);
    }

    #[test]
    fn a_hole_in_a_wall_is_a_difference_wherever_it_was_added() {
        let wall = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}], "egress": []});
        assert!(equals(&wall, &json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]})));
        for hole in [
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}], "egress": [{}]}),
            json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]}),
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"from": [{"podSelector": {}}]}]}),
            json!({"podSelector": {}}),
        ] {
            assert!(!equals(&wall, &hole), "{hole}");
        }
    }

    #[test]
    fn the_projection_shows_how_the_server_wrote_our_words_and_nothing_else() {
        let desired = json!({"limits": {"cpu": "0.5"}, "list": [{"name": "a", "x": 1}]});
        let live = json!({"limits": {"cpu": "500m", "memory": "1Gi"}, "list": [{"name": "b"}, {"name": "a", "x": 1, "y": 2}]});
        assert_eq!(
            projection(&desired, &live),
            json!({"limits": {"cpu": "500m"}, "list": [{"name": "a", "x": 1}]})
        );
    }
}
