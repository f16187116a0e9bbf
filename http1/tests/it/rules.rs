//! What the RFCs say of requests and answers, case by case.

use std::collections::BTreeSet;

use bulkhead_http1::Error;
use http::Method;

use crate::cases::{ANSWERS, Case, REQUESTS};
use crate::reading::{LIMIT, answers, requests};

#[test]
fn requests_are_read_as_the_rules_say() {
    for Case { rule, name, bytes, read } in REQUESTS {
        assert_eq!(requests(&[bytes]).to_string(), *read, "{name}, by {rule}");
    }
}

#[test]
fn answers_are_read_as_the_rules_say() {
    for (method, Case { rule, name, bytes, read }) in ANSWERS {
        let method = method.parse().expect("a method");
        assert_eq!(answers(&[bytes], &method).to_string(), *read, "{name}, by {rule}");
    }
}

#[test]
fn no_two_cases_have_one_name() {
    let names: BTreeSet<_> = REQUESTS.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), REQUESTS.len());
    let names: BTreeSet<_> = ANSWERS.iter().map(|(_, case)| case.name).collect();
    assert_eq!(names.len(), ANSWERS.len());
}

#[test]
fn every_refusal_has_a_case() {
    let told = |error: &Error| format!("! {error:?}");
    let of_requests = REQUESTS.iter().map(|case| case.read);
    let all: Vec<_> = of_requests.chain(ANSWERS.iter().map(|(_, case)| case.read)).collect();
    // Their size is other tests' here.
    let untold = Error::ALL.iter().filter(|error| !error.is_too_large());
    let untold: Vec<_> =
        untold.filter(|error| !all.iter().any(|read| read.ends_with(&told(error)))).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

#[test]
fn a_refusal_is_of_requests_or_of_answers_as_it_says() {
    for input in REQUESTS.iter().chain(ANSWERS.iter().map(|(_, case)| case)) {
        let (request, answer) = (requests(&[input.bytes]).error, answers(&[input.bytes], &Method::GET).error);
        assert!(request.is_none_or(Error::is_of_requests), "{request:?}");
        assert!(answer.is_none_or(Error::is_of_answers), "{answer:?}");
    }
}

#[test]
fn a_head_may_be_as_large_as_its_limit_and_no_larger() {
    let head = |length: usize| {
        let (begin, end) = (&b"GET / HTTP/1.1\r\nHost: a\r\nX: "[..], &b"\r\n\r\n"[..]);
        [begin, &vec![b'x'; length - begin.len() - end.len()], end].concat()
    };
    let check = |length: usize, expected: &str| {
        let bytes = [&head(length)[..], b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(requests(&[&bytes]).to_string(), expected, "{length}");
        assert_eq!(
            requests(&bytes.chunks(1).collect::<Vec<_>>()).to_string(),
            expected,
            "{length}, byte by byte"
        );
    };
    check(LIMIT, "GET / | GET /2");
    check(LIMIT + 1, "! HeadTooLarge");
    check(3 * LIMIT, "! HeadTooLarge");
    let empty = [&b"\r\n".repeat(LIMIT)[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    assert_eq!(requests(&[&empty]).to_string(), "! HeadTooLarge");
}

#[test]
fn a_head_may_have_a_hundred_fields() {
    let head = |fields: usize| format!("HTTP/1.1 200\r\n{}\r\n", "a:\r\n".repeat(fields)).into_bytes();
    let check = |fields: usize, expected: &str| {
        let bytes = head(fields);
        for parts in [vec![&bytes[..]], bytes.chunks(1).collect()] {
            assert_eq!(answers(&parts, &Method::GET).to_string(), expected, "{fields}");
        }
    };
    check(100, "200 close <>");
    check(101, "! TooManyFields");
}
