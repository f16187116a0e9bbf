//! Whose transaction a request is: its id from the client's own idempotency key, or a new one. Pure.

use bulkhead_crds::router::{Idempotency, OnRepeat, PrincipalFrom};
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
    principal: Principal,
    pub(crate) on_repeat: OnRepeat,
}

/// Who says whose a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Principal {
    /// All clients are one.
    Nobody,
    Field(HeaderName),
    Certificate,
}

impl Keys {
    /// None where a name is none of a header field, which the API lets nobody write.
    pub(crate) fn new(spec: &Idempotency) -> Option<Self> {
        let name = |text: &String| HeaderName::try_from(text).ok();
        let principal = match (spec.principal_from, &spec.principal_header) {
            (Some(PrincipalFrom::ClientCertificate), _) => Principal::Certificate,
            (_, Some(text)) => Principal::Field(name(text)?),
            (_, None) => Principal::Nobody,
        };
        Some(Self { header: name(&spec.header)?, principal, on_repeat: spec.on_repeat })
    }

    /// Takes the client's key off the request, which goes nowhere, and gives the id that it makes. None without a key.
    ///
    /// # Errors
    /// `Malformed`: a key or a principal that is repeated, too long or no visible ASCII; a key without a principal.
    pub(crate) fn take(
        &self,
        listener: &str,
        subject: Option<&[u8; 32]>,
        fields: &mut Fields,
    ) -> Result<Option<TransactionId>, Refusal> {
        let Some(key) = self.one(fields, &self.header)? else { return Ok(None) };
        let missing = |what: &str| {
            malformed(format!("{what} is needed beside {}: it says whose key it is", self.header))
        };
        let id = |principal| TransactionId::of_key(listener, principal, key);
        let id = match &self.principal {
            Principal::Nobody => id(&[]),
            Principal::Field(name) => id(self.one(fields, name)?.ok_or_else(|| missing(name.as_str()))?),
            Principal::Certificate => {
                id(subject.ok_or_else(|| missing("a client certificate that names its client"))?)
            }
        };
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
        let id = keys.take("http", None, &mut fields).map_err(|refusal| refusal.detail)?;
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
    fn a_certificate_says_whose_a_key_is_whatever_fields_say() {
        let spec =
            Idempotency { principal_from: Some(PrincipalFrom::ClientCertificate), ..Idempotency::default() };
        let keys = Keys::new(&Idempotency { header: "idempotency-key".to_owned(), ..spec }).expect("a name");
        let take = |subject: Option<&[u8; 32]>, keyed: bool| {
            let key = keyed.then_some(("idempotency-key", "7"));
            let mut fields = key.into_iter().collect();
            keys.take("http", subject, &mut fields).map_err(|refusal| refusal.detail)
        };
        let (acme, beta) = (take(Some(&[1; 32]), true), take(Some(&[2; 32]), true));
        assert!(acme != beta && acme == take(Some(&[1; 32]), true), "{acme:?} {beta:?}");
        assert_eq!(acme, Ok(Some(TransactionId::of_key("http", &[1; 32], b"7"))));
        assert_eq!(take(None, false), Ok(None));
        let refusal = take(None, true).expect_err("nobody's key");
        assert!(refusal.contains("a client certificate"), "{refusal}");
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
