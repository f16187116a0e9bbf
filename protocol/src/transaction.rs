//! The identity of a transaction.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The id that a transaction keeps over all its attempts: a UUIDv8 made of the client's idempotency key, or a UUIDv7
/// where it sent none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransactionId(Uuid);

impl TransactionId {
    /// A new id from the time in milliseconds since 1970 and ten random bytes, which are the caller's to get.
    pub fn new_v7(unix_millis: u64, random: [u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(unix_millis, &random).into_uuid())
    }

    /// The id of a client's own key: a UUIDv8 (RFC 9562, section 5.8) of the SHA-256 of listener, authenticated principal
    /// and key, each behind its length, so that no two triples are one text. The key itself goes nowhere.
    pub fn of_key(listener: &str, principal: &[u8], key: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [listener.as_bytes(), principal, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(Uuid::new_v8(bytes))
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id as text, written into what is given.
    pub fn text<'a>(&self, into: &'a mut [u8; 36]) -> &'a str {
        self.0.as_hyphenated().encode_lower(into)
    }

    /// Whether a client may ask for it again, since it is made of the client's own key.
    pub fn is_from_key(&self) -> bool {
        self.0.get_version_num() == 8
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for TransactionId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(listener: &str, principal: &str, key: &str) -> TransactionId {
        TransactionId::of_key(listener, principal.as_bytes(), key.as_bytes())
    }

    #[test]
    fn the_same_key_is_the_same_transaction_and_two_principals_never_meet() {
        assert_eq!(id("http", "acme", "7"), id("http", "acme", "7"));
        let others = [
            id("http", "acm", "e7"),
            id("http", "", "acme7"),
            id("https", "acme", "7"),
            id("http", "b", "7"),
        ];
        assert!(others.iter().all(|other| *other != id("http", "acme", "7")));
    }

    /// The first 16 bytes of the SHA-256, with version and variant laid over them; the digest was made with sha256sum.
    #[test]
    fn ids_of_keys_are_the_same_on_every_machine_and_in_every_release() {
        let id = id("http", "acme", "7");
        assert_eq!(id.to_string(), "b4bf2596-1fb3-8ab8-ba3c-6e432c6e7f5a");
        assert!(id.is_from_key() && !TransactionId::new_v7(0, [0; 10]).is_from_key());
    }
}
