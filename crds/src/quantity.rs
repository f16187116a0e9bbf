//! Kubernetes quantities as users write them: `"8"`, `500m`, or a bare number. What they add up to is Kubernetes' to say.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Deserializer};

/// Reads a quantity written as a string or as a whole number; the API server keeps either as it came.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<IntOrString>::deserialize(deserializer)?.map(|quantity| match quantity {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text,
    }))
}

#[cfg(test)]
mod tests {
    use crate::cell::Quota;

    fn check(json: &str, expected: Option<&str>) {
        let quota: Quota = serde_json::from_str(json).expect("the quota is legal");
        assert_eq!(quota.pods.as_deref(), expected, "{json}");
    }

    #[test]
    fn a_quantity_may_be_a_number_a_string_null_or_absent() {
        check(r#"{"pods": 60}"#, Some("60"));
        check(r#"{"pods": "60"}"#, Some("60"));
        check(r#"{"pods": null}"#, None);
        check("{}", None);
    }
}
