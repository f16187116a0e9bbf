//! The health stream: `GET /v1/health` on a cell-runtime answers with JSON lines that never end.
//!
//! The first line and every change is a [`HealthLine::Verdict`]; in between a [`HealthLine::Beat`] every
//! [`BEAT_INTERVAL`] shows that the orchestrator still runs. Two missed beats mean silence.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub const PATH: &str = "/v1/health";
/// Between two lines of one stream.
pub const BEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Without any line for this long, a stream is silent.
pub const SILENCE: Duration = Duration::from_millis(2 * 250 + 100);
/// Longest line that a reader accepts, in bytes.
pub const MAX_LINE: usize = 16 * 1024;

/// One line of the stream. Readers skip a `type` they do not know, so that newer cell-runtimes can say more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum HealthLine {
    Verdict(Verdict),
    Beat(Beat),
}

/// What the orchestrator says of its cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The cell's name, so that a router that reached the wrong pod notices.
    pub cell: String,
    /// Name of the pod that speaks.
    pub pod: String,
    pub ready: bool,
    /// CamelCase word for why not, such as `ServiceNotReady`; `Ready` when ready.
    pub reason: String,
    /// A sentence for people.
    #[serde(default)]
    pub message: String,
    /// Milliseconds for which the cell has been ready, by the clock of the orchestrator that knows longest; 0 when not ready.
    #[serde(default)]
    pub ready_for_ms: u64,
    /// Transactions under way in this pod.
    #[serde(default)]
    pub in_flight: u32,
    /// Transactions that the whole cell may have under way, where it has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Revision of the template that this pod runs.
    #[serde(default)]
    pub revision: String,
    /// How many routers stream from this pod.
    #[serde(default)]
    pub routers: u32,
    /// Versions of contexts that this pod can go on from, whoever wrote them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_versions: Vec<String>,
}

/// A sign of life, with the numbers that change all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beat {
    #[serde(default)]
    pub ready_for_ms: u64,
    #[serde(default)]
    pub in_flight: u32,
    #[serde(default)]
    pub routers: u32,
}

impl HealthLine {
    /// The line with its end, as it goes on the wire.
    ///
    /// # Errors
    /// Never for these types; the signature is serde's.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self).map(|line| line + "\n")
    }

    /// Reads one line. `Ok(None)` is a line of a type that this version does not know.
    ///
    /// # Errors
    /// When the line is no JSON object, or a known type lacks a field.
    pub fn from_line(line: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Type {
            r#type: String,
        }
        match serde_json::from_slice::<Type>(line)?.r#type.as_str() {
            "verdict" | "beat" => serde_json::from_slice(line).map(Some),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_wire() {
        let verdict =
            Verdict { cell: "a".to_owned(), pod: "p".to_owned(), ready: true, ..Verdict::default() };
        for line in [HealthLine::Verdict(verdict), HealthLine::Beat(Beat { in_flight: 3, ..Beat::default() })]
        {
            let text = line.to_line().expect("serialises");
            assert_eq!(HealthLine::from_line(text.trim_end().as_bytes()).expect("reads"), Some(line));
        }
    }

    #[test]
    fn a_newer_type_is_skipped_and_garbage_is_an_error() {
        assert_eq!(HealthLine::from_line(br#"{"type":"later","x":1}"#).expect("reads"), None);
        assert!(HealthLine::from_line(b"{").is_err());
        assert!(HealthLine::from_line(br#"{"type":"verdict"}"#).is_err());
    }
}
