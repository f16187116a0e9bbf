//! What is sent in which way: the rows of the bench, and the requests themselves. Pure.

use std::ops::Range;

use anyhow::{Result, ensure};

/// Bytes of a payment.
const BODY: usize = 512;
/// Bytes of a large body.
const LARGE: usize = 64 * 1024;
/// Every request's fields that rules look at. The id, which picks the cell, is another one in each request.
pub(super) const FIELDS: &str =
    "x-partner: p123\r\nx-transaction-id: 0192f0c1-0000-7000-8000-000000000000\r\n";
/// Digits that count.
pub(crate) const DIGITS: usize = 12;

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) sent: Sent,
    pub(super) way: Way,
    pub(super) over: Over,
}

/// Where TLS is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Nowhere.
    Plain,
    /// By clients: 1.3, over connections that are kept.
    Tls,
    /// By cells, which ask for a certificate.
    MutualTls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Get,
    /// With so many bytes.
    Post(usize),
}

/// When requests are sent, and over which connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Closed loop: so many connections, each with a request when it has the answer to the last.
    Kept(usize),
    /// Closed loop: so many at once, each over a connection of its own.
    Anew(usize),
    /// Open loop: they come when they come, whatever became of the others, at the same rate for every proxy.
    Open,
}

pub(super) const ONE: &str = "POST 512 B x 1";
pub(super) const SOME: &str = "POST 512 B x 32";
pub(super) const MANY: &str = "POST 512 B x 512";
pub(super) const OPEN: &str = "POST 512 B, open loop";

pub(super) static SHAPES: [Shape; 9] = [
    Shape { name: ONE, sent: Sent::Post(BODY), way: Way::Kept(1), over: Over::Plain },
    Shape { name: SOME, sent: Sent::Post(BODY), way: Way::Kept(32), over: Over::Plain },
    Shape { name: MANY, sent: Sent::Post(BODY), way: Way::Kept(512), over: Over::Plain },
    Shape { name: "GET x 32", sent: Sent::Get, way: Way::Kept(32), over: Over::Plain },
    Shape { name: "POST 64 KiB x 32", sent: Sent::Post(LARGE), way: Way::Kept(32), over: Over::Plain },
    Shape {
        name: "POST 512 B x 32, connection each",
        sent: Sent::Post(BODY),
        way: Way::Anew(32),
        over: Over::Plain,
    },
    Shape { name: OPEN, sent: Sent::Post(BODY), way: Way::Open, over: Over::Plain },
    Shape { name: "tls: POST 512 B x 32", sent: Sent::Post(BODY), way: Way::Kept(32), over: Over::Tls },
    Shape {
        name: "mtls: POST 512 B x 32",
        sent: Sent::Post(BODY),
        way: Way::Kept(32),
        over: Over::MutualTls,
    },
];

/// Those whose names have `filter` in them.
///
/// # Errors
/// When there are none, with all that there are.
pub(super) fn shapes(filter: &str) -> Result<Vec<&'static Shape>> {
    let wanted = filter.to_lowercase();
    let chosen: Vec<_> = SHAPES.iter().filter(|shape| shape.name.to_lowercase().contains(&wanted)).collect();
    ensure!(
        !chosen.is_empty(),
        "no row has {filter:?} in its name; there are: {}",
        SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join("; ")
    );
    Ok(chosen)
}

/// Bytes of a request, in which only some digits change.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) bytes: Vec<u8>,
    digits: Range<usize>,
    /// Numbers from here on begin again at 0.
    below: u64,
    /// Bytes of the head.
    pub(super) head: usize,
}

impl Template {
    /// With an id of its own in each.
    pub(super) fn new(shape: &Shape) -> Self {
        let body = match shape.sent {
            Sent::Get => Vec::new(),
            Sent::Post(length) => payment(length),
        };
        let closes = matches!(shape.way, Way::Anew(_));
        Self::with(FIELDS, closes, body, u64::MAX)
    }

    /// POSTs of 512 bytes with a field whose digits say of which rule each is, so that every one of so many has its turn.
    pub(crate) fn of_rules(field: &str, rules: u64) -> Self {
        Self::with(&format!("{field}: p{:0DIGITS$}\r\n", 0), false, payment(BODY), rules)
    }

    /// The digits are the last of `fields`.
    fn with(fields: &str, closes: bool, body: Vec<u8>, below: u64) -> Self {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut head = format!("{method} /v1/authorize HTTP/1.1\r\nhost: payments.example\r\n{fields}");
        let end = head.len() - "\r\n".len();
        if closes {
            head += "connection: close\r\n";
        }
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        head += "\r\n";
        Self { digits: end - DIGITS..end, below, head: head.len(), bytes: [head.into_bytes(), body].concat() }
    }

    /// From now on the one of that number.
    pub(crate) fn number(&mut self, number: u64) {
        let mut number = number % self.below;
        for digit in self.bytes[self.digits.clone()].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

fn payment(length: usize) -> Vec<u8> {
    let start = r#"{"partner":"p123","market":"US","paymentType":"card","amount":1250,"currency":"USD","pan":"374500000000007","pad":""#;
    let pad = length.saturating_sub(start.len() + r#""}"#.len());
    format!(r#"{start}{}"}}"#, "x".repeat(pad)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::wire::Head;

    fn named(name: &str) -> &'static Shape {
        shapes(name).expect("there is one")[0]
    }

    #[test]
    fn rows_are_chosen_by_a_part_of_their_names() {
        assert_eq!(shapes("").expect("all").len(), SHAPES.len());
        assert_eq!(shapes("OPEN").expect("is one"), [named(OPEN)]);
        assert!(shapes("PUT").expect_err("there is none").to_string().contains("GET x 32"));
    }

    #[test]
    fn a_request_says_how_long_it_is_and_whether_its_connection_ends() {
        for (name, body, closes) in
            [(ONE, BODY, false), ("GET", 0, false), ("64 KiB", LARGE, false), ("each", BODY, true)]
        {
            let template = Template::new(named(name));
            let head = Head::read(&template.bytes).expect("is HTTP").expect("is whole");
            assert_eq!((head.length, head.body, head.closes), (template.head, body, closes), "{name}");
            assert_eq!(template.bytes.len(), head.length + body);
        }
    }

    #[test]
    fn each_request_has_an_id_of_its_own() {
        let mut template = Template::new(named(ONE));
        for (number, id) in [(7, "8000-000000000007\r\n"), (1_234_567, "8000-000001234567\r\n")] {
            template.number(number);
            let text = String::from_utf8(template.bytes.clone()).expect("is text");
            assert!(text.contains(id) && text.ends_with("x\"}"), "{text}");
        }
    }

    #[test]
    fn every_rule_has_its_turn() {
        let mut template = Template::of_rules("x-partner", 40_000);
        for (number, partner) in
            [(7, "x-partner: p000000000007\r\n"), (80_001, "x-partner: p000000000001\r\n")]
        {
            template.number(number);
            let text = String::from_utf8(template.bytes.clone()).expect("is text");
            assert!(text.contains(partner), "{text}");
        }
    }
}
