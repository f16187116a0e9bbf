//! What Bulkhead's own accounts wrote, as the API server's audit log has it.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::world::{SYSTEM, World};

/// One write that the API server saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub verb: String,
    pub resource: String,
    /// Empty for what is in none.
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}/{}", self.verb, self.resource, self.namespace, self.name)
    }
}

/// Where the log ends now.
///
/// # Errors
/// When the cluster writes none.
pub fn end(world: &World) -> Result<u64> {
    Ok(std::fs::metadata(&world.audit_log).context("the cluster writes no audit log")?.len())
}

/// Writes of Bulkhead's own accounts from there on, in order. Leases are renewed by design and left out.
///
/// # Errors
/// When the log cannot be read.
pub fn writes_since(world: &World, from: u64) -> Result<Vec<Write>> {
    let mut log = File::open(&world.audit_log)?;
    log.seek(SeekFrom::Start(from))?;
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events.filter_map(|event| write(&event)).collect())
}

fn write(event: &Value) -> Option<Write> {
    let field = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let write = Write {
        verb: field("/verb"),
        resource: field("/objectRef/resource"),
        namespace: field("/objectRef/namespace"),
        name: field("/objectRef/name"),
    };
    let ours = field("/user/username").starts_with(&format!("system:serviceaccount:{SYSTEM}:"));
    let reads = matches!(write.verb.as_str(), "get" | "list" | "watch");
    (ours && !reads && write.resource != "leases").then_some(write)
}
