//! Whose transaction a request is: its id from the client's own idempotency key, or a new one. Pure.

use bulkhead_crds::router::{Idempotency, OnRepeat};
use bulkhead_http1::Fields;
use bulkhead_protocol::{Reason, TransactionId};
use bulkhead_routing::Refusal;
use http::header::HeaderName;

/// Bytes of a key or a principal.
const MOST: usize = 255;

/// Where a listener looks for keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    header: HeaderName,
    principal: Option<HeaderName>,
    pub(crate) on_repeat: OnRepeat,
}

impl Keys {
    /// None where a name is none of a header field, which the API lets nobody write.
    pub(crate) fn new(spec: &Idempotency) -> Option<Self> {
        let name = |text: &String| HeaderName::try_from(text).ok();
        let principal = match &spec.principal_header {
            Some(text) => Some(name(text)?),
            None => None,
        };
        Some(Self { header: name(&spec.header)?, principal, on_repeat: spec.on_repeat })
    }

    /// Takes the client's key off the request, which goes nowhere, and gives the id that it makes. None without a key.
    ///
    /// # Errors
    /// `Malformed`: a key or a principal that is repeated, too long or no visible ASCII; a key without a principal.
    pub(crate) fn take(&self, listener: &str, fields: &mut Fields) -> Result<Option<TransactionId>, Refusal> {
        let Some(key) = self.one(fields, &self.header)? else { return Ok(None) };
        let principal = match &self.principal {
            None => None,
            Some(name) => Some(self.one(fields, name)?.ok_or_else(|| {
                malformed(format!("{} is needed beside {}: it says whose key it is", name, self.header))
            })?),
        };
        let id = TransactionId::of_key(listener, principal.unwrap_or_default(), key);
        fields.remove(self.header.as_str());
        Ok(Some(id))
    }

    fn one<'a>(&self, fields: &'a Fields, name: &'a HeaderName) -> Result<Option<&'a [u8]>, Refusal> {
        let mut values = fields.get_all(name.as_str());
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(malformed(format!("{name} is given more than once")));
        }
        let visible = value.iter().all(u8::is_ascii_graphic);
        if !visible || !(1..=MOST).contains(&value.len()) {
            return Err(malformed(format!(
                "{name} must be 1 to {MOST} visible ASCII characters, without spaces"
            )));
        }
        Ok(Some(value))
    }
}

fn malformed(detail: String) -> Refusal {
    Refusal { reason: Reason::Malformed, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(principal: Option<&str>) -> Keys {
        let spec = Idempotency {
            header: "Idempotency-Key".to_owned(),
            principal_from: None,
            principal_header: principal.map(str::to_owned),
            on_repeat: OnRepeat::Join,
        };
        Keys::new(&spec).expect("names of headers")
    }

    fn take(keys: &Keys, fields: &[(&'static str, &str)]) -> Result<Option<TransactionId>, String> {
        let mut fields: Fields = fields.iter().copied().collect();
        let id = keys.take("http", &mut fields).map_err(|refusal| refusal.detail)?;
        assert!(id.is_none() || !fields.contains("idempotency-key"), "the key goes nowhere");
        Ok(id)
    }

    #[test]
    fn a_key_makes_the_id_and_no_key_makes_none() {
        let keys = keys(None);
        let id = take(&keys, &[("idempotency-key", "7")]);
        assert_eq!(id, Ok(Some(TransactionId::of_key("http", b"", b"7"))));
        assert_eq!(take(&keys, &[("x-partner", "acme")]), Ok(None));
    }

    #[test]
    fn two_principals_with_the_same_key_never_meet() {
        let keys = keys(Some("x-partner"));
        let id = |partner| take(&keys, &[("idempotency-key", "7"), ("x-partner", partner)]).expect("legal");
        assert_ne!(id("acme"), id("beta"));
        assert_eq!(id("acme"), id("acme"));
    }

    #[test]
    fn what_is_malformed_or_repeated_is_refused() {
        let keys = keys(Some("x-partner"));
        let check = |fields: &[(&'static str, &str)], words: &str| {
            let refusal = take(&keys, fields).expect_err("is refused");
            assert!(refusal.contains(words), "{refusal:?} does not contain {words:?}");
        };
        check(&[("idempotency-key", "7")], "x-partner is needed beside idempotency-key");
        check(&[("idempotency-key", "7"), ("idempotency-key", "7")], "more than once");
        let partner = ("x-partner", "acme");
        check(&[("idempotency-key", ""), partner], "1 to 255 visible");
        check(&[("idempotency-key", "a b"), partner], "1 to 255 visible");
        check(&[("idempotency-key", &"k".repeat(256)), partner], "1 to 255 visible");
        check(&[("idempotency-key", "7"), partner, partner], "x-partner is given more than once");
    }
}
