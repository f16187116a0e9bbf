//! The context of an egress, as bytes: the fields that steps to come get, a line each. Where to go on follows from the
//! egress's number, and which workflow it is from the version beside it, so that nothing else need be carried. Pure.

use bulkhead_protocol::fields;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Writes the caller's fields and the services' state; what else is the router's comes back with its next request.
pub(super) fn encode(headers: &HeaderMap) -> Bytes {
    let mut context = BytesMut::new();
    for (name, value) in headers {
        let name = name.as_str();
        if name.starts_with(fields::PREFIX) && name != fields::STATE {
            continue;
        }
        // No name holds a colon, no value a line's end (RFC 9110, section 5.5).
        context.put_slice(name.as_bytes());
        context.put_u8(b':');
        context.put_slice(value.as_bytes());
        context.put_u8(b'\n');
    }
    context.freeze()
}

/// The fields again; `None` for what [`encode`] did not write.
pub(super) fn decode(context: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    let lines = match context {
        [] => return Some(headers),
        [lines @ .., b'\n'] => lines,
        _ => return None,
    };
    for line in lines.split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(&line[colon + 1..]).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let value = prop::collection::vec(prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8], 0..40);
        let field = ("[a-z0-9!#$%&'*+.^_`|~-]{1,20}", value);
        prop::collection::vec(field, 0..20).prop_map(|fields| {
            let field = |(name, value): (String, Vec<u8>)| {
                let name: HeaderName = name.parse().expect("a name");
                (name, HeaderValue::from_bytes(&value).expect("a value"))
            };
            fields.into_iter().map(field).collect()
        })
    }

    proptest! {
        #[test]
        fn fields_survive_the_way(headers in headers()) {
            prop_assert_eq!(decode(&encode(&headers)), Some(headers));
        }

        #[test]
        fn garbage_is_refused_or_means_what_it_says(context in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(headers) = decode(&context) {
                prop_assert_eq!(decode(&encode(&headers)), Some(headers));
            }
        }

        #[test]
        fn a_context_that_lost_its_end_is_refused_or_lacks_whole_fields(headers in headers(), cut in 1..50_usize) {
            let context = encode(&headers);
            let cut = &context[..context.len().saturating_sub(cut)];
            prop_assert_eq!(decode(cut).is_some(), cut.is_empty() || cut.ends_with(b"\n"));
        }
    }

    #[test]
    fn what_only_one_request_means_stays_behind() {
        let mut headers = HeaderMap::new();
        let names =
            ["x-account", "bulkhead-attempt", "bulkhead-deadline", "bulkhead-egress", "bulkhead-state"];
        for name in names {
            headers.append(name, HeaderValue::from_static("7"));
        }
        assert_eq!(encode(&headers), "x-account:7\nbulkhead-state:7\n");
    }
}
