//! The power goes after every byte and between every two operations: whoever was told that an intent is on the disk finds
//! it again, and no outcome is found that nobody told.

use std::collections::BTreeMap;

use super::fault_disk::{FaultDisk, Unsynced};
use super::{ANSWERED, Stage, keyed, small};
use crate::effect::Standing;
use crate::frame::HEADER;
use crate::record::{Outcome, Resolution};

/// What the caller knows when the power goes.
#[derive(Default)]
struct Told {
    /// Effects whose intent was acknowledged, with the outcome that was told, if any was.
    effects: BTreeMap<(u8, u32), Option<Outcome>>,
    resolved: bool,
}

/// Eight transactions with all kinds of outcomes over several segments, and a resolution.
fn script(stage: &mut Stage) -> Told {
    let mut told = Told::default();
    for number in 0..8 {
        let Ok(intended) = stage.intend(keyed(number), 1) else { break };
        let outcome = match number % 4 {
            0 => Some(ANSWERED),
            1 => Some(Outcome::NotSent),
            2 => Some(Outcome::Unknown),
            _ => None,
        };
        told.effects.insert((number, 1), outcome);
        match outcome {
            Some(outcome) => intended.end(outcome),
            // The process is gone before this is ended.
            None => std::mem::forget(intended),
        }
        if number == 6 {
            stage.pump();
            told.resolved = stage.resolve(keyed(2), 1, Resolution::NotSent).is_ok();
        }
    }
    stage.pump();
    told
}

fn standing_of(outcome: Outcome) -> Option<Standing> {
    match outcome {
        Outcome::Answered { .. } => Some(Standing::Decided),
        Outcome::NotSent => None,
        Outcome::Unknown => Some(Standing::Unknown),
    }
}

fn check(found: &Stage, told: &Told, context: &str) {
    for number in 0..8_u8 {
        let standing = found.ledger.standing(&keyed(number));
        let unknown = Some(Standing::Unknown);
        match told.effects.get(&(number, 1)) {
            Some(_) if number == 2 && told.resolved => assert_eq!(standing, None, "resolved; {context}"),
            // That one may be resolved on the disk before anybody was told.
            Some(Some(Outcome::Unknown)) if number == 2 => {
                assert!(standing == unknown || standing.is_none(), "{context}");
            }
            Some(Some(outcome)) => assert!(
                standing == standing_of(*outcome) || standing == unknown,
                "{number} was told {outcome:?} and is found {standing:?}; {context}"
            ),
            Some(None) => assert_eq!(standing, unknown, "{number} was left open; {context}"),
            None => assert!(standing.is_none() || standing == unknown, "{number} was refused; {context}"),
        }
    }
}

/// Bytes and operations of the whole script.
fn whole_length() -> usize {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    let told = script(&mut stage);
    assert_eq!(told.effects.len(), 8, "without a fault all are taken");
    assert!(told.resolved && disk.names().len() > 2, "over several segments");
    disk.total() + 40
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_goes() {
    for power in 0..whole_length() {
        let disk = FaultDisk::default();
        disk.power_for(power);
        let (mut stage, _) = Stage::open(&disk, &small());
        let told = script(&mut stage);
        for unsynced in [Unsynced::All, Unsynced::Half, Unsynced::None] {
            let context = format!("power for {power}, {unsynced:?} of the unsynced bytes");
            let left = disk.after(unsynced);
            let (found, recovery) = Stage::open(&left, &small());
            assert_eq!(recovery.damages, [], "a crash is no damage; {context}");
            check(&found, &told, &context);
            // Once more, as if the second start had crashed at once.
            let (again, recovery) = Stage::open(&left.after(Unsynced::None), &small());
            assert_eq!(recovery.damages, [], "nor are two; {context}");
            check(&again, &told, &context);
        }
    }
}

#[test]
fn a_crash_in_the_midst_of_a_recovery_is_recovered_from() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    let told = script(&mut stage);
    // The start of another write, of which nothing was acknowledged.
    let image = disk.with(disk.names().last().expect("there are some"), |bytes| {
        bytes.extend_from_within(HEADER..HEADER + 9);
    });
    for power in 0..600 {
        let half = image.after(Unsynced::All);
        half.power_for(power);
        drop(Stage::open(&half, &small()));
        for unsynced in [Unsynced::All, Unsynced::Half, Unsynced::None] {
            let (found, recovery) = Stage::open(&half.after(unsynced), &small());
            assert_eq!(recovery.damages, [], "power for {power}");
            check(&found, &told, &format!("power for {power} of the recovery"));
        }
    }
}

#[test]
fn effects_that_were_left_open_are_unknown_and_written_down_as_such() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    std::mem::forget(stage.intend(keyed(1), 1).expect("is taken"));
    assert_eq!(stage.ledger.standing(&keyed(1)), Some(Standing::InFlight));
    let left = disk.after(Unsynced::None);
    for left_open in [1, 0] {
        let (found, recovery) = Stage::open(&left, &small());
        assert_eq!((recovery.left_open, recovery.unknown), (left_open, 1));
        assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Unknown));
    }
}
