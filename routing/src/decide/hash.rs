//! Keys, and the exact weighted rendezvous that maps a key to a cell the same way on every machine.
//!
//! It decides routing, so it is fixed. With XXH3-64 (seed 0) and little-endian bytes:
//! `key = XXH3(the key's bytes)`, where the bytes are the value as it was sent (of JSON strings: decoded, in UTF-8) or
//! the 16 bytes of the transaction's id; `cell = XXH3(the cell's name)`; `h = XXH3(key as 8 bytes, then cell as 8 bytes)`;
//! `u = ((h >> 11) + 1) / 2^53`, which is in (0, 1]. The cell with the least `-ln(u) / weight` has the key; of equals, the
//! one whose name sorts first. The logarithm is libm's, in software, since the processor's or the C library's may
//! differ in the last bit.

use std::borrow::Cow;

use bulkhead_protocol::{Reason, TransactionId};
use xxhash_rust::xxh3::xxh3_64;

use super::Refusal;
use crate::request::{self, RequestView};
use crate::table::{KeySource, Rule};

/// What picks the cell: equal keys pick equal cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub(crate) u64);

impl Key {
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }
}

/// The key of a request under that rule. A request without the value that the rule names is keyed by its transaction.
///
/// # Errors
/// `Malformed` when the key is in a body that is no JSON, or when an `owner` rule finds no key.
pub fn key(rule: &Rule, view: &impl RequestView, transaction: &TransactionId) -> Result<Key, Refusal> {
    let value = key_value(rule, view)?;
    Ok(Key::of(value.as_deref().unwrap_or(transaction.as_bytes())))
}

/// What the rule's key is in this request; none when it is the transaction's id.
pub(crate) fn key_value<'r>(
    rule: &Rule,
    view: &'r impl RequestView,
) -> Result<Option<Cow<'r, [u8]>>, Refusal> {
    let Some(KeySource { source, pointers }) = &rule.key else { return Ok(None) };
    let value = if source.is_body() {
        request::read_body(pointers, view)?.pop().flatten()
    } else {
        request::read_head(source, view)
    };
    if value.is_none() && rule.owner {
        let detail = format!("rule {} needs the key {source}, and the request has none", rule.id);
        return Err(Refusal::new(Reason::Malformed, detail));
    }
    Ok(value)
}

pub(crate) fn digest_name(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// The least score has the key. The weight is above 0 and below 2^53, so that it is exact.
pub(crate) fn score(key: Key, cell: u64, weight: u64) -> f64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.0.to_le_bytes());
    bytes[8..].copy_from_slice(&cell.to_le_bytes());
    let unit = ((xxh3_64(&bytes) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -libm::log(unit) / weight as f64
}
