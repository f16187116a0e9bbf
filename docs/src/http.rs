//! `reference/http.md`: what of HTTP is refused and what is answered then, read from the codecs' own lists.

use std::fmt::Write;

use bulkhead_http1::{Error, Malformed};
use bulkhead_protocol::Reason;

const OPENING: &str = "\
<!-- Made from the lists in http1/src; `BLESS=1 cargo test -p bulkhead-docs` refreshes it. -->

# HTTP that is refused

What two readers of the same bytes could take for different messages is refused and never repaired, whether it comes from a client, a cell
or a destination: it is how requests are smuggled past whoever looks at them. A client gets a problem document
([reasons.md](reasons.md)) whose `detail` names the rule, and its connection ends where nobody can tell what comes next on it. A wrong
answer is its client's 502, or breaks off where it had begun; its connection is not used again.
";

/// One thing that is refused.
struct Row {
    what: &'static str,
    rule: &'static str,
    /// What is answered where it is in a request; none where it cannot be.
    request: Option<Reason>,
    /// The same of an answer.
    answer: Option<Reason>,
}

#[test]
fn the_reference_names_all_that_is_refused() {
    let mut page = OPENING.to_owned();
    // Each protocol is a section of its own.
    let http1 = Error::ALL.iter().copied().map(of_http1);
    section(&mut page, "HTTP/1.1", http1).expect("a String takes all text");
    let http2 = Malformed::ALL.iter().copied().map(of_http2);
    section(&mut page, "HTTP/2", http2).expect("a String takes all text");
    crate::check("http.md", &page);
}

fn of_http1(error: Error) -> Row {
    let request = if error.is_too_large() { Reason::HeadTooLarge } else { Reason::Malformed };
    Row {
        what: error.doc(),
        rule: error.rule(),
        request: error.is_of_requests().then_some(request),
        answer: error.is_of_answers().then_some(Reason::UpstreamProtocol),
    }
}

/// What a head in HTTP/2 may not say. Cells and destinations are spoken to in HTTP/1.1.
fn of_http2(error: Malformed) -> Row {
    let reason = if error.is_too_large() { Reason::HeadTooLarge } else { Reason::Malformed };
    Row { what: error.doc(), rule: error.rule(), request: Some(reason), answer: None }
}

fn section(page: &mut String, protocol: &str, rows: impl Iterator<Item = Row>) -> std::fmt::Result {
    writeln!(page, "\n## {protocol}\n\n| refused | by | in a request | in an answer |\n|---|---|---|---|")?;
    let told = |reason: Option<Reason>| {
        reason.map_or(String::new(), |reason| format!("{} `{reason}`", reason.status()))
    };
    for Row { what, rule, request, answer } in rows {
        writeln!(page, "| {} | {rule} | {} | {} |", what.trim(), told(request), told(answer))?;
    }
    Ok(())
}
