//! What every bench says as JSON: one object of the same shape (`--json`). What it prints for people is its own.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// With so many cores busy for others, a miss says more about the machine than about us.
pub(crate) const FOREIGN_CORES: f64 = 0.2;

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
    /// Cores that others kept busy at the worst, where that was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign_cores: Option<f64>,
}

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
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
        Self { cores, longest_stall_ms, foreign_cores: None }
    }

    pub(crate) fn beside_others(self, foreign_cores: f64) -> Self {
        Self { foreign_cores: Some(foreign_cores), ..self }
    }

    fn is_noisy(&self, noise_ms: f64) -> bool {
        self.longest_stall_ms > noise_ms || self.foreign_cores.is_some_and(|cores| cores > FOREIGN_CORES)
    }
}

impl Spread {
    /// 0 of nothing. Of an even number of values the median is the upper of the two in the middle.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        match (values.first(), values.get(values.len() / 2), values.last()) {
            (Some(min), Some(median), Some(max)) => Self { median: *median, min: *min, max: *max },
            _ => Self::default(),
        }
    }

    /// For people, with so many digits after the point.
    pub(crate) fn text(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

impl Target {
    /// At most `wanted`.
    pub(crate) fn at_most(name: impl Into<String>, wanted: u64, got: u64) -> Self {
        Self { name: name.into(), wanted: json!(wanted), got: json!(got), ok: got <= wanted }
    }

    /// At most `wanted`, of something that is no count.
    pub(crate) fn ratio_at_most(name: impl Into<String>, wanted: f64, got: f64) -> Self {
        Self { name: name.into(), wanted: json!(wanted), got: json!(got), ok: got <= wanted }
    }
}

impl Report {
    pub(crate) fn met(&self) -> bool {
        self.targets.iter().all(|target| target.ok)
    }

    /// For people: what was promised and what came of it, and what the machine itself did.
    pub(crate) fn verdicts(&self) -> String {
        let mut text = String::new();
        for Target { name, wanted, got, ok } in &self.targets {
            let verdict = if *ok { "met" } else { "missed" };
            text += &format!("{verdict}: {name}: {got} (wanted <= {wanted})\n");
        }
        text += &format!("longest stall of the machine {:.1} ms", self.machine.longest_stall_ms);
        if let Some(cores) = self.machine.foreign_cores {
            text += &format!(", others kept {cores:.2} cores busy at the worst");
        }
        text + "\n"
    }

    /// Prints the one object, or the text for people with the verdicts below it; and the exit status.
    ///
    /// # Errors
    /// When it cannot be said as JSON.
    pub(crate) fn conclude(&self, json: bool, text: &str, noise_ms: f64) -> Result<ExitCode> {
        if json {
            println!("{}", serde_json::to_string(self)?);
        } else {
            print!("{text}{}", self.verdicts());
        }
        Ok(self.exit_code(noise_ms))
    }

    /// 0 when the bench ran, whatever it found; 2 when it missed a target on a machine that stood still for longer than
    /// `noise_ms`, or on which others were at work, so that nobody can tell whose fault it is.
    pub(crate) fn exit_code(&self, noise_ms: f64) -> ExitCode {
        if !self.met() && self.machine.is_noisy(noise_ms) { ExitCode::from(2) } else { ExitCode::SUCCESS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(got: u64, longest_stall_ms: f64) -> Report {
        Report {
            bench: "x",
            machine: Machine { cores: 2, longest_stall_ms, foreign_cores: None },
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
    fn others_at_work_are_noise_too() {
        let check = |cores, expected| {
            let missed = report(1, 0.0);
            let report = Report { machine: missed.machine.clone().beside_others(cores), ..missed };
            assert_eq!(format!("{:?}", report.exit_code(100.0)), format!("{expected:?}"), "{cores}");
            assert_eq!(json!(report)["machine"]["foreignCores"], json!(cores));
        };
        check(0.1, ExitCode::SUCCESS);
        check(0.3, ExitCode::from(2));
    }

    #[test]
    fn a_spread_is_median_and_bounds_in_whatever_order() {
        let spread = Spread::of([3.0, 1.0, 10.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 10.0 });
        assert_eq!(spread.text(1), "3.0 (1.0-10.0)");
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn people_see_every_target_and_the_machine() {
        let report = Report { machine: Machine::stalled(1.25).beside_others(0.5), ..report(3, 0.0) };
        let expected = "missed: failed: 3 (wanted <= 0)\n\
                        longest stall of the machine 1.2 ms, others kept 0.50 cores busy at the worst\n";
        assert_eq!(report.verdicts(), expected);
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
