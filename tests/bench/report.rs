//! What every bench says as JSON: one object of the same shape (`--json`). What it prints for people is its own.

use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    /// One for each system and variant; its figures are the bench's own.
    pub(crate) rows: Vec<Value>,
    /// By peer, then by figure: ours divided by the peer's.
    pub(crate) ratios: Map<String, Value>,
    pub(crate) targets: Vec<Target>,
}

/// What the figures were measured on.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    cores: usize,
    /// For how long nothing ran that should have, in milliseconds.
    pub(crate) longest_stall_ms: f64,
}

/// Something promised.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) wanted: Value,
    pub(crate) got: Value,
    pub(crate) ok: bool,
}

impl Machine {
    pub(crate) fn stalled(longest_stall_ms: f64) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        Self { cores, longest_stall_ms }
    }
}

impl Target {
    /// At most `wanted`.
    pub(crate) fn at_most(name: impl Into<String>, wanted: u64, got: u64) -> Self {
        Self { name: name.into(), wanted: json!(wanted), got: json!(got), ok: got <= wanted }
    }
}

impl Report {
    pub(crate) fn met(&self) -> bool {
        self.targets.iter().all(|target| target.ok)
    }

    /// 0 when the bench ran, whatever it found; 2 when it missed a target on a machine that stood still for longer than
    /// `noise_ms`, so that nobody can tell whose fault it is.
    pub(crate) fn exit_code(&self, noise_ms: f64) -> ExitCode {
        if !self.met() && self.machine.longest_stall_ms > noise_ms {
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(got: u64, longest_stall_ms: f64) -> Report {
        Report {
            bench: "x",
            machine: Machine { cores: 2, longest_stall_ms },
            rows: vec![json!({"system": "bulkhead", "variant": "kill", "failed": got})],
            ratios: Map::new(),
            targets: vec![Target::at_most("failed", 0, got)],
        }
    }

    #[test]
    fn only_a_miss_on_a_noisy_machine_cannot_be_told() {
        let code = |got, stall| format!("{:?}", report(got, stall).exit_code(100.0));
        let fine = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!([code(0, 500.0), code(1, 50.0)], [fine.clone(), fine]);
        assert_eq!(code(1, 500.0), format!("{:?}", ExitCode::from(2)));
    }

    #[test]
    fn the_object_has_the_shape_of_all_benches() {
        let wanted = json!({
            "bench": "x",
            "machine": {"cores": 2, "longestStallMs": 1.5},
            "rows": [{"system": "bulkhead", "variant": "kill", "failed": 3}],
            "ratios": {},
            "targets": [{"name": "failed", "wanted": 0, "got": 3, "ok": false}],
        });
        assert_eq!(json!(report(3, 1.5)), wanted);
    }
}
