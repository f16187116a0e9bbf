//! hyper's server beside this codec, on the same bytes.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::beside::{Difference, Sight, check_cases, check_seen};
use crate::forwarding::{Form, Seen};
use crate::inputs::inputs;

/// hyper takes what senders are known to get wrong. None of it may go on: whoever is behind may take it otherwise.
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
            ("trailers-with-lf", "POST /"),
            ("end-in-lf", "POST / | GET /last"),
        ],
    },
    Difference {
        reason: "which form of a target a method has is left to the service (RFC 9112, section 3.2)",
        cases: &[
            ("userinfo", "GET http://u:p@b/ | GET /last"),
            ("absolute-form-without-host", "GET http://:80/ | GET /last"),
            ("authority-form-of-get", "GET b:80 | GET /last"),
            ("asterisk-of-get", "GET * | GET /last"),
            ("fragment", "GET /a | GET /last"),
            ("connect-without-port", "CONNECT b"),
            ("connect-to-a-path", "CONNECT /"),
            ("connect-to-absolute-form", "CONNECT http://b:80/"),
        ],
    },
    Difference {
        reason: "it answers CONNECT with 200 here, and what follows is a tunnel's (RFC 9110, section 9.3.6); a router refuses it",
        cases: &[("connect", "CONNECT b:443")],
    },
    Difference {
        reason: "the host is left to the service, though RFC 9112, section 3.2, has a server refuse these",
        cases: &[
            ("no-host", "GET / | GET /last"),
            ("two-hosts", "GET / | GET /last"),
            ("same-host-twice", "GET / | GET /last"),
            ("host-with-path", "GET / | GET /last"),
            ("host-with-a-name-for-port", "GET / | GET /last"),
        ],
    },
    Difference {
        reason: "RFC 9112, section 6.3, lets a recipient take a length that is repeated for one",
        cases: &[("lengths-that-agree", "POST / <hello> | GET /last")],
    },
    Difference {
        reason: "RFC 9112, section 6.3, lets a server take the coding and drop the length, if it closes the connection then",
        cases: &[("length-and-coding", "POST /"), ("coding-and-length", "POST /")],
    },
    Difference {
        reason: "it takes any coding whose last is chunked, and decodes no other",
        cases: &[
            ("coding-twice", "POST / | GET /last"),
            ("chunked-twice-in-one", "POST / | GET /last"),
            ("another-coding", "POST / | GET /last"),
        ],
    },
    Difference {
        reason: "it does not look into extensions, nor at the space behind a size",
        cases: &[
            ("extension-with-nul", "POST / <xx> | GET /last"),
            ("space-after-size", "POST / <hello> | GET /last"),
        ],
    },
];

/// What a hyper server sees on a connection that ends behind these bytes.
fn sight(bytes: &[u8]) -> Sight {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(bytes).await.expect("there is room");
        client.shutdown().await.expect("is open");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let service = service_fn(|request: Request<Incoming>| record(request, Arc::clone(&seen)));
        let mut server = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .max_headers(128)
            .serve_connection(TokioIo::new(server), service);
        let served = (&mut server).await;
        drop(server);
        let mut answered = Vec::new();
        client.read_to_end(&mut answered).await.expect("the server has ended");
        let seen = std::mem::take(&mut *seen.lock().expect("nobody panicked"));
        Sight { seen, refused: served.is_err() }
    })
}

async fn record(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> Result<Response<Empty<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes().to_vec();
    seen.lock().expect("nobody panicked").push((head.method.to_string(), head.uri.to_string(), body));
    Ok(Response::new(Empty::new()))
}

#[test]
fn cases_are_read_alike_but_for_what_is_listed() {
    check_cases(DIFFERENCES, sight);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn what_goes_on_is_seen_as_what_was_read(bytes in inputs(), form in select(vec![Form::Whole, Form::Chunked])) {
        check_seen(&bytes, form, |_| false, sight);
    }
}
