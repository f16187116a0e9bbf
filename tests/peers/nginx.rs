//! nginx beside the codec. It passes requests on within itself, so that it reads their bodies, and writes into its log what
//! it saw before it ends a connection.

use std::sync::Mutex;

use crate::beside::{Difference, Sight, check_cases};
use crate::daemon::{Daemon, check_any};
use crate::peers::Peer;
use crate::reading::Message;

const CONFIGURATION: &str = r#"
master_process off;
daemon off;
pid @FOLDER@/nginx.pid;
error_log stderr crit;
events { worker_connections 100; }
http {
  log_format seen escape=default '$status $request_method $request_uri [$request_body]';
  access_log @FOLDER@/seen seen;
  client_max_body_size 0;
  client_body_buffer_size 1m;
  client_body_in_single_buffer on;
  client_header_timeout 10s;
  client_body_timeout 10s;
  lingering_close off;
  client_body_temp_path @FOLDER@/client;
  proxy_temp_path @FOLDER@/proxy;
  fastcgi_temp_path @FOLDER@/fastcgi;
  uwsgi_temp_path @FOLDER@/uwsgi;
  scgi_temp_path @FOLDER@/scgi;
  server {
    listen unix:@FOLDER@/front;
    location / {
      proxy_http_version 1.1;
      proxy_ignore_client_abort on;
      proxy_pass http://unix:@FOLDER@/origin:;
    }
  }
  server {
    listen unix:@FOLDER@/origin;
    access_log off;
    location / { return 204; }
  }
}
"#;

/// nginx takes more than goes on behind a router, and some of it reads otherwise.
#[rustfmt::skip]
const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "RFC 9112, section 2.2, lets a recipient take LF alone for the end of a line; it need not, and who does not sees another",
        cases: &[
            ("empty-line-of-lf-before", "GET / | GET /last"),
            ("cr-before", "GET / | GET /last"),
            ("lf-everywhere", "GET / | GET /last"),
            ("lf-after-first-line", "GET / | GET /last"),
            ("lf-after-field", "GET / | GET /last"),
            ("lf-at-end-of-head", "GET / | GET /2 | GET /last"),
        ],
    },
    Difference {
        reason: "RFC 9112, section 3, lets a recipient take any white space between the words of a first line and behind them",
        cases: &[("two-spaces", "GET / | GET /last"), ("space-at-end", "GET / | GET /last")],
    },
    Difference {
        reason: "it takes HTTP/0.9, whose connection ends with the answer, and any minor version for its newest",
        cases: &[("without-version", "GET /"), ("version-of-two-digits", "GET / | GET /last")],
    },
    Difference {
        reason: "it refuses methods with other letters than capital ones, though any token is one (RFC 9110, section 9.1)",
        cases: &[("method-of-small-letters", "!")],
    },
    Difference {
        reason: "it says the path of an absolute target, which is as much as goes on",
        cases: &[("absolute-form", "GET /c?d | GET /last"), ("absolute-form-without-path", "GET / | GET /last")],
    },
    Difference {
        reason: "it serves neither CONNECT nor the server as a whole",
        cases: &[("connect", "!"), ("asterisk", "!")],
    },
    Difference {
        reason: "what a target is made of is left to the service; a fragment would be lost on the way to it",
        cases: &[("fragment", "GET /a#b | GET /last"), ("byte-above-127-in-target", "GET /a\\xFFb | GET /last")],
    },
    Difference {
        reason: "it refuses an empty host, which RFC 9112, section 3.2, has a client send where its target has no authority",
        cases: &[("empty-host", "!")],
    },
    Difference {
        reason: "it leaves fields out whose names are none, unless `ignore_invalid_headers` is off",
        cases: &[("no-colon", "GET / | GET /last"), ("byte-above-127-in-name", "GET / | GET /last")],
    },
    Difference {
        reason: "it does not take a tab for space around a value, as RFC 9110, section 5.6.3, has it; a length goes on without",
        cases: &[("space-around-value", "!")],
    },
    Difference {
        reason: "of control characters in values it refuses those alone that RFC 9110, section 5.5, names",
        cases: &[("control-character-in-value", "GET / | GET /last")],
    },
    Difference {
        reason: "it does not look into extensions, nor at the space behind a size, nor into trailers",
        cases: &[
            ("extension-with-nul", "POST / <xx> | GET /last"),
            ("space-after-size", "POST / <hello> | GET /last"),
            ("trailers-with-space-before-colon", "POST / | GET /last"),
        ],
    },
];

/// What it refuses though it is legal: methods that are not of capital letters, the server as a whole for a target, and an
/// empty host, as goes on of a request of HTTP/1.0 that named none.
fn is_refused(message: &Message) -> bool {
    let (method, target) = message.line.split_once(' ').expect("a request has both");
    let is_plain = |byte: u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
    let has_host = message.fields.get("host").is_some_and(|host| !host.is_empty());
    !method.bytes().all(is_plain) || target == "*" || !has_host
}

/// One daemon and how much of its log was read.
struct Nginx {
    daemon: Daemon,
    read: Mutex<usize>,
}

impl Nginx {
    fn start() -> Self {
        Self { daemon: Daemon::start(Peer::Nginx, CONFIGURATION), read: Mutex::new(0) }
    }

    fn sight(&self, bytes: &[u8]) -> Sight {
        let mut read = self.read.lock().expect("nobody panicked");
        self.daemon.answers(bytes, true);
        let log = std::fs::read_to_string(self.daemon.path("seen")).expect("it writes a log");
        let new = &log[*read..];
        *read = log.len();
        let mut sight = Sight::default();
        for line in new.lines() {
            match line.strip_prefix("204 ").and_then(|line| line.strip_suffix(']')) {
                Some(line) => {
                    let (head, body) = line.split_once(" [").expect("as the log is written");
                    let (method, target) = head.split_once(' ').expect("as the log is written");
                    sight.seen.push((method.to_owned(), target.to_owned(), unescape(body)));
                }
                None => sight.refused = true,
            }
        }
        sight
    }
}

/// `-` is nothing; a byte that could be mistaken is `\xXX`.
fn unescape(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

#[test]
fn nginx_reads_cases_alike_but_for_what_is_listed() {
    let nginx = Nginx::start();
    check_cases(DIFFERENCES, |bytes| nginx.sight(bytes));
}

#[test]
fn nginx_sees_what_goes_on_as_what_was_read() {
    let nginx = Nginx::start();
    check_any(is_refused, |bytes| nginx.sight(bytes));
}
