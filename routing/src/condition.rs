//! One condition of a rule in its normal form: a source, and what its value must look like. Reading the source from
//! a request is done elsewhere.

use bulkhead_crds::policy::{Attribute, MatchCondition, Source as SourceSpec};

/// A part of a request. The order puts what the head says before what the body says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    Method,
    Path,
    Host,
    /// Name in small letters.
    Header(String),
    Query(String),
    /// A JSON pointer into the body.
    Pointer(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Test {
    Exact(Vec<u8>),
    Range(u128, u128),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    /// Sorted, without repeats, at least two.
    In(Vec<Vec<u8>>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Condition {
    pub(crate) source: Source,
    pub(crate) test: Test,
}

impl Source {
    /// The normal form, or a sentence that says what is wrong.
    pub(crate) fn parse(spec: &SourceSpec) -> Result<Self, String> {
        let SourceSpec { header, query, json_pointer, attribute } = spec;
        match (header, query, json_pointer, attribute) {
            (Some(name), None, None, None) if !name.is_empty() => Ok(Self::Header(name.to_ascii_lowercase())),
            (None, Some(name), None, None) => Ok(Self::Query(name.clone())),
            (None, None, Some(pointer), None) if is_pointer(pointer) => Ok(Self::Pointer(pointer.clone())),
            (None, None, Some(pointer), None) => Err(format!(
                "{pointer:?} is not a JSON pointer; write /name/name, with ~0 for ~ and ~1 for / in names"
            )),
            (None, None, None, Some(Attribute::Method)) => Ok(Self::Method),
            (None, None, None, Some(Attribute::Path)) => Ok(Self::Path),
            (None, None, None, Some(Attribute::Host)) => Ok(Self::Host),
            _ => Err("name exactly one source: header, query, jsonPointer or attribute".to_owned()),
        }
    }

    pub(crate) fn is_body(&self) -> bool {
        matches!(self, Self::Pointer(_))
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Method => f.write_str("method"),
            Self::Path => f.write_str("path"),
            Self::Host => f.write_str("host"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Query(name) => write!(f, "query {name}"),
            Self::Pointer(pointer) => write!(f, "jsonPointer {pointer}"),
        }
    }
}

/// RFC 6901 without the empty pointer, which names the whole document.
fn is_pointer(text: &str) -> bool {
    let escapes_are_legal = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.starts_with('/') && escapes_are_legal
}

impl Condition {
    pub(crate) fn parse(spec: &MatchCondition) -> Result<Self, String> {
        let source = Source::parse(&spec.source)?;
        // Hosts are compared in small letters on both sides.
        let bytes = |text: &String| {
            if source == Source::Host {
                text.to_ascii_lowercase().into_bytes()
            } else {
                text.clone().into_bytes()
            }
        };
        let MatchCondition { source: _, exact, prefix, suffix, range, r#in } = spec;
        let test = match (exact, prefix, suffix, range, r#in.as_slice()) {
            (Some(value), None, None, None, []) => Test::Exact(bytes(value)),
            (None, Some(value), None, None, []) => Test::Prefix(bytes(value)),
            (None, None, Some(value), None, []) => Test::Suffix(bytes(value)),
            (None, None, None, Some(range), []) => {
                let bound = |text: &str| {
                    number(text.as_bytes())
                        .ok_or_else(|| format!("{text:?} is not a decimal number of at most 38 digits"))
                };
                let (from, to) = (bound(&range.from)?, bound(&range.to)?);
                if from > to {
                    return Err(format!("range from {from} to {to} holds nothing; swap its ends"));
                }
                Test::Range(from, to)
            }
            (None, None, None, None, [one]) => Test::Exact(bytes(one)),
            (None, None, None, None, [_, _, ..]) => {
                let mut values: Vec<_> = r#in.iter().map(bytes).collect();
                values.sort();
                values.dedup();
                match <[_; 1]>::try_from(values) {
                    Ok([one]) => Test::Exact(one),
                    Err(values) => Test::In(values),
                }
            }
            _ => return Err("name exactly one comparison: exact, prefix, suffix, range or in".to_owned()),
        };
        Ok(Self { source, test })
    }
}

impl Test {
    /// An absent value fulfils nothing.
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        let Some(value) = value else { return false };
        match self {
            Self::Exact(wanted) => value == wanted.as_slice(),
            Self::Prefix(wanted) => value.starts_with(wanted),
            Self::Suffix(wanted) => value.ends_with(wanted),
            Self::Range(from, to) => number(value).is_some_and(|number| (*from..=*to).contains(&number)),
            Self::In(wanted) => wanted.binary_search_by(|one| one.as_slice().cmp(value)).is_ok(),
        }
    }
}

/// A decimal number of 1 to 38 digits, which is what fits in `u128` whatever the digits are.
pub(crate) fn number(text: &[u8]) -> Option<u128> {
    if !(1..=38).contains(&text.len()) {
        return None;
    }
    text.iter()
        .try_fold(0_u128, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u128::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_crds::policy::Range;

    fn header(change: impl FnOnce(&mut MatchCondition)) -> MatchCondition {
        let mut spec = MatchCondition::default();
        spec.source.header = Some("X-Partner".to_owned());
        change(&mut spec);
        spec
    }

    fn check(spec: &MatchCondition, value: &str, expected: bool) {
        let condition = Condition::parse(spec).expect("a legal condition");
        assert_eq!(condition.test.holds(Some(value.as_bytes())), expected, "{spec:?} of {value:?}");
        assert!(!condition.test.holds(None), "an absent value fulfils nothing: {spec:?}");
    }

    #[test]
    fn every_comparison_takes_what_it_says_and_nothing_else() {
        let exact = header(|c| c.exact = Some("acme".to_owned()));
        check(&exact, "acme", true);
        check(&exact, "Acme", false);
        check(&header(|c| c.exact = Some(String::new())), "", true);
        let prefix = header(|c| c.prefix = Some("47".to_owned()));
        check(&prefix, "4761", true);
        check(&prefix, "4", false);
        let suffix = header(|c| c.suffix = Some("61".to_owned()));
        check(&suffix, "4761", true);
        check(&suffix, "4762", false);
        let list = header(|c| c.r#in = vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]);
        check(&list, "a", true);
        check(&list, "b", true);
        check(&list, "c", false);
    }

    #[test]
    fn ranges_compare_numbers_and_hold_both_ends() {
        let range = header(|c| c.range = Some(Range { from: "0100".to_owned(), to: "200".to_owned() }));
        for (value, expected) in
            [("100", true), ("200", true), ("00150", true), ("99", false), ("201", false), ("", false)]
        {
            check(&range, value, expected);
        }
        for value in ["150x", "-150", "1e2", " 150", &"1".repeat(39)] {
            check(&range, value, false);
        }
    }

    #[test]
    fn the_normal_form_does_not_depend_on_how_it_was_written() {
        let list = header(|c| c.r#in = vec!["a".to_owned(), "a".to_owned()]);
        let exact = header(|c| c.exact = Some("a".to_owned()));
        let mut small = exact.clone();
        small.source.header = Some("x-partner".to_owned());
        assert_eq!(Condition::parse(&list), Condition::parse(&exact));
        assert_eq!(Condition::parse(&small), Condition::parse(&exact));
    }

    #[test]
    fn what_the_schema_would_refuse_is_refused_with_a_sentence() {
        let two = header(|c| (c.exact, c.prefix) = (Some("a".to_owned()), Some("a".to_owned())));
        let none = header(|_| {});
        let backwards = header(|c| c.range = Some(Range { from: "2".to_owned(), to: "1".to_owned() }));
        let mut pointer = header(|c| c.exact = Some("a".to_owned()));
        pointer.source = SourceSpec { json_pointer: Some("/a~2".to_owned()), ..SourceSpec::default() };
        let mut sources = header(|c| c.exact = Some("a".to_owned()));
        sources.source.query = Some("q".to_owned());
        for (spec, word) in [
            (two, "exactly one comparison"),
            (none, "exactly one comparison"),
            (backwards, "holds nothing"),
            (pointer, "JSON pointer"),
            (sources, "exactly one source"),
        ] {
            let error = Condition::parse(&spec).expect_err("an illegal condition");
            assert!(error.contains(word), "{error}");
        }
    }
}
