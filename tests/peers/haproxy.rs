//! HAProxy beside the codec. It says of each request what it saw in a field of its answer, which
//! is made within itself.

use http::StatusCode;

use crate::beside::{Difference, Sight, check_cases};
use crate::daemon::{Daemon, check_any};
use crate::peers::Peer;

const CONFIGURATION: &str = r#"
global
  nbthread 1
  maxconn 100
  tune.bufsize 131072
defaults
  mode http
  timeout connect 10s
  timeout client 10s
  timeout server 10s
  # What it waits for does not come: a test sends all that there is at once.
  timeout http-request 2s
frontend front
  bind unix@@FOLDER@/front
  option http-buffer-request
  http-request set-var(txn.seen) req.body,hex
  http-request set-var-fmt(txn.seen) "%[method] %[url] %[var(txn.seen)]"
  http-response set-header x-seen %[var(txn.seen)]
  default_backend origin
backend origin
  server origin unix@@FOLDER@/origin
frontend origin
  bind unix@@FOLDER@/origin
  http-request return status 200
"#;

/// HAProxy takes more than goes on behind a router, and knows that it does: it writes each request anew for whoever is
/// behind it.
#[rustfmt::skip]
const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "RFC 9112, section 2.2, lets a recipient take LF alone for the end of a line; it need not, and who does not sees another",
        cases: &[
            ("empty-line-of-lf-before", "GET / | GET /last"),
            ("lf-everywhere", "GET / | GET /last"),
            ("lf-after-first-line", "GET / | GET /last"),
            ("lf-after-field", "GET / | GET /last"),
            ("lf-at-end-of-head", "GET / | GET /2 | GET /last"),
            ("trailers-with-lf", "POST / | GET /last"),
            ("end-in-lf", "POST / | GET / | GET /last"),
        ],
    },
    Difference {
        reason: "RFC 9112, section 3, lets a recipient take any white space between the words of a first line",
        cases: &[("two-spaces", "GET / | GET /last"), ("tab-between", "GET / | GET /last")],
    },
    Difference {
        reason: "it speaks HTTP/2, and takes what names it for a request of HTTP/1.1 where no preface is",
        cases: &[("version-2", "GET / | GET /last"), ("preface", "")],
    },
    Difference {
        reason: "it does not hold targets to the form of their method (RFC 9112, section 3.2)",
        cases: &[
            ("authority-form-of-get", "GET b:80 | GET /last"),
            ("asterisk-of-get", "GET * | GET /last"),
            ("path-without-slash", "GET a/b | GET /last"),
        ],
    },
    Difference {
        reason: "it refuses an absolute target whose authority is not the host's, where RFC 9112, section 3.2.2, has the target count; \
                 what goes on has one host",
        cases: &[("absolute-form", "!"), ("absolute-form-without-path", "!")],
    },
    Difference {
        reason: "it answers CONNECT with 200 here, and what follows is a tunnel's (RFC 9110, section 9.3.6); a router refuses it",
        cases: &[("connect", "CONNECT b:443")],
    },
    Difference {
        reason: "of wrong hosts it refuses several that differ and those with a slash, though RFC 9112, section 3.2, has a server refuse these",
        cases: &[
            ("no-host", "GET / | GET /last"),
            ("same-host-twice", "GET / | GET /last"),
            ("host-with-a-name-for-port", "GET / | GET /last"),
        ],
    },
    Difference {
        reason: "RFC 9112, section 5.2, lets a server take a line that goes on in the next for one with a space",
        cases: &[
            ("obs-fold", "GET / | GET /last"),
            ("obs-fold-by-tab", "GET / | GET /last"),
            ("obs-fold-of-coding", "POST / | GET /last"),
        ],
    },
    Difference {
        reason: "of control characters in values it refuses those alone that RFC 9110, section 5.5, names",
        cases: &[("control-character-in-value", "GET / | GET /last")],
    },
    Difference {
        reason: "RFC 9112, section 6.3, lets a recipient take a length that is repeated for one",
        cases: &[("lengths-that-agree", "POST / <hello> | GET /last"), ("list-of-lengths", "POST / <hello> | GET /last")],
    },
    Difference {
        reason: "RFC 9112, sections 6.1 and 6.3, let a server take the coding of what is faulty, if it closes the connection then",
        cases: &[("length-and-coding", "POST /"), ("coding-and-length", "POST /"), ("coding-in-http-1.0", "POST /")],
    },
    Difference {
        reason: "it does not look into extensions, nor at the space behind a size",
        cases: &[("extension-with-nul", "POST / <xx> | GET /last"), ("space-after-size", "POST / <hello> | GET /last")],
    },
    Difference {
        reason: "it refuses a WebSocket's handshake without its key (RFC 6455, section 4.2.1), which is for who takes the upgrade to do",
        cases: &[("upgrade", "!")],
    },
];

fn sight(daemon: &Daemon, bytes: &[u8]) -> Sight {
    let mut sight = Sight::default();
    for (status, fields) in daemon.answers(bytes, false) {
        match (status, fields.text("x-seen")) {
            (StatusCode::OK, Some(told)) => {
                let mut words = told.split(' ').map(str::to_owned);
                let mut word = || words.next().unwrap_or_default();
                sight.seen.push((word(), word(), unhex(&word())));
            }
            // The rest of a request that is not whole is waited for, and does not come.
            (StatusCode::CONTINUE | StatusCode::REQUEST_TIMEOUT, _) => {}
            _ => sight.refused = true,
        }
    }
    sight
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |place| u8::from_str_radix(&digits[place..place + 2], 16).expect("two digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[test]
fn haproxy_reads_cases_alike_but_for_what_is_listed() {
    let daemon = Daemon::start(Peer::Haproxy, CONFIGURATION);
    check_cases(DIFFERENCES, |bytes| sight(&daemon, bytes));
}

#[test]
fn haproxy_sees_what_goes_on_as_what_was_read() {
    let daemon = Daemon::start(Peer::Haproxy, CONFIGURATION);
    check_any(|_| false, |bytes| sight(&daemon, bytes));
}
