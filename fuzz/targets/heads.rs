//! Connections of clients and of cells, from their first byte: nothing breaks, where they are cut makes no difference, and
//! what goes on to a cell is read there as what was read here.

#![no_main]

#[path = "../../http1/tests/it/forwarding.rs"]
mod forwarding;
#[path = "../../http1/tests/it/reading.rs"]
mod reading;

use forwarding::{Form, forward};
use http::Method;
use libfuzzer_sys::fuzz_target;
use reading::{LIMIT, answers, check_cuts, requests, requests_within};

// Two bytes say where it is cut; the third says what answers are to.
fuzz_target!(|input: &[u8]| {
    let [cut, other, method, bytes @ ..] = input else { return };
    let cuts = [usize::from(*cut), usize::from(*cut) + usize::from(*other)];
    let method = [Method::GET, Method::HEAD, Method::CONNECT][usize::from(*method) % 3].clone();
    check_cuts(bytes, &cuts, requests);
    check_cuts(bytes, &cuts, |parts| answers(parts, &method));
    for form in [Form::Whole, Form::Chunked] {
        let (sent, expected) = forward(&requests(&[bytes]), form);
        let again = requests_within(&[&sent], 2 * LIMIT);
        assert!(again.error.is_none() && again.left.is_empty(), "{again}");
        assert_eq!(forward(&again, form).1, expected);
    }
});
