//! Durations as Kubernetes users write them (`10s`, `1m30s`, `250ms`): the format of Gateway API's `Duration` (GEP-2257).

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the schema lets in: up to four numbers of at most five digits, each with a unit of h, m, s or ms.
const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// A span of time in whole milliseconds, written as `10s`, `1m30s` or `250ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(std::time::Duration);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a duration: write up to four numbers with a unit of h, m, s or ms, such as 10s or 1m30s"
)]
pub struct InvalidDuration(String);

impl Duration {
    pub const fn from_millis(millis: u64) -> Self {
        Self(std::time::Duration::from_millis(millis))
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    pub const fn get(self) -> std::time::Duration {
        self.0
    }
}

impl From<Duration> for std::time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl FromStr for Duration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidDuration(text.to_owned());
        let mut rest = text;
        let mut millis = 0;
        let mut parts = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = if (1..=5).contains(&digits) {
                rest[..digits].parse().map_err(|_| invalid())?
            } else {
                return Err(invalid());
            };
            let after = &rest[digits..];
            let unit = after.bytes().take_while(u8::is_ascii_lowercase).count();
            millis += number
                * match &after[..unit] {
                    "h" => 3_600_000,
                    "m" => 60_000,
                    "s" => 1_000,
                    "ms" => 1,
                    _ => return Err(invalid()),
                };
            rest = &after[unit..];
            parts += 1;
        }
        if (1..=4).contains(&parts) { Ok(Self::from_millis(millis)) } else { Err(invalid()) }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            let count = rest / size;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
            rest %= size;
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": PATTERN, "maxLength": 32})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(text.parse().ok(), expected.map(Duration::from_millis), "{text:?}");
    }

    #[test]
    fn reads_every_unit_and_sums_of_them() {
        check("250ms", Some(250));
        check("10s", Some(10_000));
        check("1m30s", Some(90_000));
        check("2h", Some(7_200_000));
        check("0s", Some(0));
    }

    #[test]
    fn refuses_what_the_schema_refuses() {
        for text in ["", "10", "s", "1d", "-1s", "1.5s", "123456s", "1s 2s", "1h1m1s1ms1s", "10S", "１s"] {
            check(text, None);
        }
    }

    #[test]
    fn writes_back_what_it_read() {
        for text in ["250ms", "10s", "1m30s", "2h", "0s"] {
            assert_eq!(text.parse::<Duration>().map(|d| d.to_string()), Ok(text.to_owned()));
        }
    }
}
