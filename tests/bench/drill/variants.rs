//! What can be done to Bulkhead while it works, and what must come of it. All of it is done to real processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::clock::now_unix_millis;
use bulkhead_samples::issuer::Entry;
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::calls::{Call, End, Figures, Window, figures, unanswered_effects};
use super::namespace::Namespace;
use super::stage::{Issuer, Stage};
use super::traffic::{Traffic, ask_again};
use super::{cells, routers};
use crate::member::Member;

/// One way to hurt it.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// For people who choose one.
    pub(crate) about: &'static str,
    cells: usize,
    routers: usize,
    /// Flags of the issuer.
    issuer: &'static [&'static str],
    fault: Fault,
    promise: Promise,
}

/// What is done after a third of the time, and undone after two thirds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL of so many cells, which start again.
    KillCells(usize),
    /// SIGSTOP of a cell, then SIGCONT: it wakes up and goes on with what others have finished.
    StopCell,
    /// A cell's weight is written to 0, then to 100.
    DrainCell,
    /// SIGKILL of a router, which starts again with its ledger.
    KillRouter,
    /// SIGSTOP of a router, then SIGCONT.
    StopRouter,
    SlowIssuer,
    /// Nobody listens.
    DownIssuer,
    /// Packets to and from a cell are dropped without a word.
    DropPackets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// Every transaction is answered, none is executed twice.
    NothingLost,
    /// Without a destination every transaction is refused with a 5xx that says why; none hangs, none is executed twice.
    Refused,
    /// Only what was sent to the hurt router may go unanswered; if it had an effect, that router's ledger knows it. Whoever
    /// got no answer gets one from the other router, and by the issuer's duplicate check none is executed twice.
    KnownToTheLedger,
}

const CHECKED: &[&str] = &["--duplicate-check=true"];
const HOLDING: &[&str] = &["--delay-ms=100"];

pub(crate) const VARIANTS: [Variant; 10] = [
    Variant {
        name: "kill",
        about: "SIGKILL of one cell of two, before, at and after the destination",
        ..Variant::of(Fault::KillCells(1))
    },
    Variant {
        name: "kill-after-egress",
        about: "the same while the destination holds most answers, for 100 ms",
        issuer: HOLDING,
        ..Variant::of(Fault::KillCells(1))
    },
    Variant {
        name: "kill-two-of-three",
        about: "SIGKILL of two cells of three at once",
        cells: 3,
        ..Variant::of(Fault::KillCells(2))
    },
    Variant {
        name: "stop",
        about: "SIGSTOP of a cell, which goes on later with what others have finished",
        ..Variant::of(Fault::StopCell)
    },
    Variant { name: "drain", about: "a cell's weight edited to 0 and back", ..Variant::of(Fault::DrainCell) },
    Variant {
        name: "drop-packets",
        about: "packets to and from a cell dropped in a network namespace of its own; needs root",
        ..Variant::of(Fault::DropPackets)
    },
    Variant {
        name: "destination-slow",
        about: "the destination takes 500 ms",
        ..Variant::of(Fault::SlowIssuer)
    },
    Variant {
        name: "destination-down",
        about: "nobody listens at the destination",
        promise: Promise::Refused,
        ..Variant::of(Fault::DownIssuer)
    },
    Variant {
        name: "router-kill",
        about: "SIGKILL of one router of two, which comes back with its ledger",
        routers: 2,
        issuer: CHECKED,
        promise: Promise::KnownToTheLedger,
        ..Variant::of(Fault::KillRouter)
    },
    Variant {
        name: "router-stop",
        about: "SIGSTOP of one router of two, and SIGCONT",
        routers: 2,
        issuer: CHECKED,
        promise: Promise::KnownToTheLedger,
        ..Variant::of(Fault::StopRouter)
    },
];

/// How much, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rate: u32,
    pub(crate) duration: Duration,
}

/// One run of one variant.
pub(crate) struct Played {
    pub(crate) figures: Figures,
    /// What was promised to stay 0, and what it was.
    pub(crate) broken: Vec<(&'static str, u64)>,
}

/// All that was seen of a run.
struct Seen {
    calls: Vec<Call>,
    book: BTreeMap<String, Entry>,
    fault: Window,
}

impl Variant {
    /// Two cells, one router, an issuer that checks nothing and takes 15 ms.
    const fn of(fault: Fault) -> Self {
        Self { name: "", about: "", cells: 2, routers: 1, issuer: &[], fault, promise: Promise::NothingLost }
    }

    /// Why it cannot be played here.
    ///
    /// # Errors
    /// That.
    pub(crate) fn possible(&self) -> Result<()> {
        if self.fault == Fault::DropPackets { Namespace::possible() } else { Ok(()) }
    }

    /// Sets the stage, plays, and judges.
    ///
    /// # Errors
    /// When it could not be played to its end.
    pub(crate) async fn play(&self, shape: Shape, folder: TempDir) -> Result<Played> {
        let mut stage = self.stage(folder)?;
        stage.ready().await?;
        let seen = play(&mut stage, self.fault, shape).await?;
        let mut broken = self.judge(&stage, &seen)?;
        if self.promise == Promise::KnownToTheLedger {
            let (_, living) = stage.fronts.last().context("there is no router")?;
            let without = ask_again(*living, &stage.key_header, &seen.calls).await;
            let after = stage.issuer.executions().await?;
            broken.push(("without an answer when asked again", without));
            broken.push((
                "executed twice when asked again",
                figures(&seen.calls, &after, seen.fault).executed_twice,
            ));
        }
        Ok(Played { figures: figures(&seen.calls, &seen.book, seen.fault), broken })
    }

    fn stage(&self, folder: TempDir) -> Result<Stage> {
        let path = folder.path();
        let issuer = Issuer::start(self.issuer, path)?;
        let namespace = if self.fault == Fault::DropPackets { Some(Namespace::make()?) } else { None };
        let (mut members, mut endpoints) = (Vec::new(), Vec::new());
        for letter in ["a", "b", "c"].iter().take(self.cells) {
            let name = format!("payments-{letter}");
            // The first is the one that is hurt.
            let around = namespace.as_ref().filter(|_| members.is_empty());
            let (member, endpoint) = cells::flow(&name, path, around)?;
            members.push(member);
            endpoints.push((name, endpoint));
        }
        routers::write_objects(path, issuer.address, &endpoints)?;
        let fronts = (1..=self.routers).map(|number| routers::router(&format!("router-{number}"), path));
        Ok(Stage {
            fronts: fronts.collect::<Result<_>>()?,
            issuer,
            cells: members,
            endpoints: endpoints.into_iter().map(|(_, endpoint)| endpoint).collect(),
            key_header: http::HeaderName::from_static("idempotency-key"),
            namespace,
            folder,
        })
    }

    fn judge(&self, stage: &Stage, seen: &Seen) -> Result<Vec<(&'static str, u64)>> {
        let sums = figures(&seen.calls, &seen.book, seen.fault);
        let mut broken = vec![
            ("executed twice", sums.executed_twice),
            ("answered, never executed", sums.invented),
            ("503 although executed", sums.denied),
        ];
        match self.promise {
            Promise::NothingLost => {
                broken.push(("failed", sums.failed));
                if let Fault::KillCells(_) = self.fault {
                    broken.push(("p99 during, ms over two attempts", sums.over_two_attempts_ms()));
                }
            }
            Promise::Refused => {
                broken.push(("without an answer", sums.unanswered));
                broken.push(("failed with another status than 5xx", count(&seen.calls, not_5xx)));
                broken.push(("nobody failed", u64::from(sums.failed == 0)));
            }
            Promise::KnownToTheLedger => {
                let (hurt, address) = stage.fronts.first().context("there is no router")?;
                let lost = |call: &Call| call.end != End::Answered && call.target != Some(*address);
                broken.push(("failed elsewhere", count(&seen.calls, lost)));
                let known = routers::known_to_ledger(&hurt.name, stage.folder.path())?;
                let effects = unanswered_effects(&seen.calls, &seen.book);
                let unknown = effects.values().filter(|id| !known.contains(**id)).count() as u64;
                broken.push(("unanswered effects missing in the ledger", unknown));
            }
        }
        Ok(broken)
    }
}

/// Kills a cell of the peer's stage, as [`Fault::KillCells`] does to ours.
///
/// # Errors
/// When it could not be played to its end.
pub(crate) async fn play_peer(stage: &mut Stage, shape: Shape) -> Result<Figures> {
    stage.ready().await?;
    let seen = play(stage, Fault::KillCells(1), shape).await?;
    Ok(figures(&seen.calls, &seen.book, seen.fault))
}

async fn play(stage: &mut Stage, fault: Fault, shape: Shape) -> Result<Seen> {
    let targets: Vec<SocketAddr> = stage.fronts.iter().map(|(_, address)| *address).collect();
    let traffic = Traffic::start(targets, stage.key_header.clone(), shape.rate, shape.duration);
    traffic.at(shape.duration / 3).await;
    let from_ms = now_unix_millis();
    fault.begin(stage).await?;
    traffic.at(shape.duration * 2 / 3).await;
    fault.end(stage).await?;
    let to_ms = now_unix_millis();
    let calls = traffic.end().await?;
    Ok(Seen { calls, book: stage.issuer.executions().await?, fault: Window { from_ms, to_ms } })
}

impl Fault {
    async fn begin(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::KillCells(count) => stage.cells.iter_mut().take(count).for_each(Member::kill),
            Self::StopCell => stage.cells[0].signal(Signal::SIGSTOP)?,
            Self::DrainCell => stage.weigh(0, 0)?,
            Self::KillRouter => stage.fronts[0].0.kill(),
            Self::StopRouter => stage.fronts[0].0.signal(Signal::SIGSTOP)?,
            Self::SlowIssuer => stage.issuer.behave(&json!({"delayMs": 500})).await?,
            Self::DownIssuer => stage.issuer.behave(&json!({"answer": "refuse"})).await?,
            Self::DropPackets => stage.namespace()?.drop_packets()?,
        }
        Ok(())
    }

    async fn end(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::KillCells(count) => {
                stage.cells.iter_mut().take(count).try_for_each(Member::revive)?;
            }
            Self::StopCell => stage.cells[0].signal(Signal::SIGCONT)?,
            Self::DrainCell => stage.weigh(0, 100)?,
            Self::KillRouter => stage.fronts[0].0.revive()?,
            Self::StopRouter => stage.fronts[0].0.signal(Signal::SIGCONT)?,
            Self::SlowIssuer => stage.issuer.behave(&json!({"delayMs": 15})).await?,
            Self::DownIssuer => stage.issuer.behave(&json!({"answer": "approve"})).await?,
            Self::DropPackets => stage.namespace()?.pass_packets()?,
        }
        Ok(())
    }
}

fn count(calls: &[Call], wanted: impl Fn(&Call) -> bool) -> u64 {
    calls.iter().filter(|call| wanted(call)).count() as u64
}

fn not_5xx(call: &Call) -> bool {
    matches!(call.end, End::Failed(status, _) if !(500..600).contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_names_of_their_own_and_leave_a_cell() {
        for (index, variant) in VARIANTS.iter().enumerate() {
            assert!(!variant.about.is_empty(), "{}", variant.name);
            assert!(VARIANTS[..index].iter().all(|other| other.name != variant.name), "{}", variant.name);
            if let Fault::KillCells(count) = variant.fault {
                assert!(count < variant.cells, "{}", variant.name);
            }
        }
    }
}
