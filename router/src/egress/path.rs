//! The path of a message: the Destination's own, or one below it that the cell names. Pure.

/// How often a path is decoded to find what somebody behind may find in it. Deeper nesting is no honest path.
const DECODINGS: usize = 3;

/// The path, with its query, that a message goes to, or `None` where the cell asks for one that does not lie below the
/// Destination's: further segments may follow, and nothing leads up again however it is written.
pub(crate) fn within(base: &str, asked: Option<&str>) -> Option<String> {
    let Some(asked) = asked else { return is_plain(base).then(|| base.to_owned()) };
    let base = path_of(base);
    let rest = asked.strip_prefix(base)?;
    let extends = base.ends_with('/') || matches!(rest.chars().next(), None | Some('/' | '?'));
    (extends && is_plain(asked) && !leads_up(path_of(asked))).then(|| asked.to_owned())
}

fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// Whether it is a target in origin form (RFC 9112, section 3.2.1): visible ASCII, and no fragment.
fn is_plain(target: &str) -> bool {
    target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Whether a segment is `.` or `..` to anybody who may read it: percent-decoded once or more, with backslashes for slashes,
/// or with parameters behind it.
fn leads_up(path: &str) -> bool {
    let mut path = path.as_bytes().to_vec();
    for _ in 0..DECODINGS {
        let dotted = path.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
            let name = segment.split(|byte| *byte == b';').next();
            matches!(name, Some(b"." | b".."))
        });
        if dotted || path.iter().any(u8::is_ascii_control) {
            return true;
        }
        let decoded = decoded(&path);
        if decoded == path {
            return false;
        }
        path = decoded;
    }
    true
}

fn decoded(path: &[u8]) -> Vec<u8> {
    let digit = |at: usize| path.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        match (path[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                // Two hexadecimal digits are a byte.
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(base: &str, asked: &str, expected: bool) {
        let path = within(base, Some(asked));
        assert_eq!(path, expected.then(|| asked.to_owned()), "{asked:?} within {base:?}");
    }

    #[test]
    fn without_a_wish_it_is_the_destinations_own() {
        assert_eq!(within("/authorise?v=2", None).as_deref(), Some("/authorise?v=2"));
        assert_eq!(within("/", None).as_deref(), Some("/"));
        assert_eq!(within("/a b", None), None);
    }

    #[test]
    fn a_cell_may_add_segments_and_a_query() {
        for asked in
            ["/authorise", "/authorise/", "/authorise/x?y", "/authorise?y=/../z", "/authorise/a.b/..c"]
        {
            check("/authorise", asked, true);
        }
        check("/authorise?v=2", "/authorise/x", true);
        check("/v1/", "/v1/x", true);
        check("/", "/anything/at%20all", true);
    }

    #[test]
    fn a_cell_may_not_leave_what_the_destination_names() {
        for asked in
            ["/authorised", "/authoris", "/", "", "/Authorise", "/%61uthorise", "authorise", "//authorise"]
        {
            check("/authorise", asked, false);
        }
        check("/v1/", "/v1", false);
    }

    #[test]
    fn nothing_leads_up_again_however_it_is_written() {
        for rest in [
            "..",
            "../admin",
            "x/../../admin",
            "./x",
            "%2e%2e/admin",
            "%2E./admin",
            "..%2fadmin",
            "%252e%252e/admin",
            "%25252e%25252e/admin",
            "..\\admin",
            "..%5cadmin",
            "..;/admin",
            "..;a=b/admin",
            "%2e%2e%3b/admin",
        ] {
            check("/authorise", &format!("/authorise/{rest}"), false);
            check("/", &format!("/{rest}"), false);
        }
    }

    #[test]
    fn what_no_request_line_can_hold_is_refused() {
        for asked in ["/a b", "/a#b", "/a\r\nx: y", "/a%0d%0ax", "/a%00", "/ä"] {
            check("/", asked, false);
        }
    }
}
