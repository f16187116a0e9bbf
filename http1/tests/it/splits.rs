//! Where bytes are cut on their way makes no difference: the same messages, the same bytes, the same error at the same
//! place.

use bulkhead_http1::Framing;
use http::Method;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases::{ANSWERS, REQUESTS};
use crate::forwarding::{Form, forward};
use crate::inputs::inputs;
use crate::reading::{LIMIT, Reading, answers, check_cuts, requests, requests_within};

/// One cut at every place, and a cut at every place at once.
fn check_everywhere(bytes: &[u8], read: impl Fn(&[&[u8]]) -> Reading) {
    for cut in 1..bytes.len() {
        check_cuts(bytes, &[cut], &read);
    }
    check_cuts(bytes, &(1..bytes.len()).collect::<Vec<_>>(), &read);
}

#[test]
fn every_case_is_read_the_same_wherever_it_is_cut() {
    for case in REQUESTS {
        check_everywhere(case.bytes, requests);
    }
    for (method, case) in ANSWERS {
        let method: Method = method.parse().expect("a method");
        check_everywhere(case.bytes, |parts| answers(parts, &method));
    }
}

#[test]
fn a_small_head_is_refused_at_its_first_wrong_byte() {
    let read = requests(&[b"\x16\x03"]);
    assert!(read.error.is_some() && read.left.len() == 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_arrives_in_any_pieces_is_read_the_same(
        bytes in inputs(),
        cuts in vec(0_usize..2048, 1..12),
        method in select(vec![Method::GET, Method::HEAD, Method::CONNECT]),
    ) {
        check_cuts(&bytes, &cuts, requests);
        check_cuts(&bytes, &cuts, |parts| answers(parts, &method));
        let each: Vec<_> = (1..bytes.len()).collect();
        check_cuts(&bytes, &each, requests);
        check_cuts(&bytes, &each, |parts| answers(parts, &method));
    }

    #[test]
    fn no_byte_is_lost_or_read_twice(bytes in inputs()) {
        let read = requests(&[&bytes]);
        let bodies: usize = read.messages.iter().map(|message| message.body.len()).sum();
        prop_assert!(bytes.ends_with(&read.left) && bodies + read.left.len() <= bytes.len());
        // Nothing but a body of that length lies behind such a head.
        for message in read.messages.iter().filter(|message| message.whole) {
            if let Framing::Length(length) = message.framing {
                prop_assert_eq!(message.body.len() as u64, length);
            }
        }
    }

    #[test]
    fn what_goes_on_is_what_was_read(bytes in inputs(), form in select(vec![Form::Whole, Form::Chunked])) {
        let (sent, expected) = forward(&requests(&[&bytes]), form);
        // A host may be put in where there was none.
        let again = requests_within(&[&sent], 2 * LIMIT);
        let (_, seen) = forward(&again, form);
        prop_assert_eq!((again.error, again.left.len()), (None, 0));
        prop_assert_eq!(seen, expected);
    }
}
