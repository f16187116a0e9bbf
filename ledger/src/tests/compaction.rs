//! Old segments go once nothing in them is needed, and what is needed goes to the newest first.

use super::fault_disk::{FaultDisk, Unsynced};
use super::{ANSWERED, Stage, keyed, minted, small};
use crate::effect::Standing;
use crate::options::Options;
use crate::record::{Outcome, Resolution};
use crate::segment::{ASIDE, file_name};
use std::time::Duration;

const WINDOW_MS: u64 = 60_000;

fn options() -> Options {
    Options { window: Duration::from_millis(WINDOW_MS), ..small() }
}

/// Two unknown effects and an open one among transactions that are done, over several segments.
fn filled(disk: &FaultDisk) -> Stage {
    let (mut stage, _) = Stage::open(disk, &options());
    stage.whole(keyed(1), 1, Outcome::Unknown);
    stage.whole(minted(2), 1, Outcome::Unknown);
    (10..20).for_each(|number| stage.whole(keyed(number), 1, ANSWERED));
    stage
}

fn tick(stage: &mut Stage, times: usize) {
    (0..times).for_each(|_| stage.writer.tick());
}

#[test]
fn segments_go_after_the_window_and_what_is_unknown_stays_known() {
    let disk = FaultDisk::default();
    let mut stage = filled(&disk);
    let before = disk.names();
    assert!(before.len() > 3, "{before:?}");
    stage.clock.pass_ms(WINDOW_MS - 1);
    tick(&mut stage, 10);
    assert_eq!(disk.names(), before, "within the window");
    assert_eq!(stage.ledger.standing(&keyed(10)), Some(Standing::Decided));
    stage.clock.pass_ms(1);
    tick(&mut stage, 10);
    assert_eq!(stage.ledger.standing(&keyed(10)), None);
    assert_eq!(disk.names(), before[before.len() - 1..], "but the one that is written");
    for (found, damages) in [(&stage, vec![])].into_iter().chain([(
        &Stage::open(&disk.after(Unsynced::None), &options()).0,
        Stage::open(&disk.after(Unsynced::None), &options()).1.damages,
    )]) {
        assert_eq!(damages, []);
        assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Unknown));
        let view = &found.ledger.show(&minted(2)).transactions[0];
        assert_eq!((&*view.effects[0].destination, &*view.effects[0].cell), ("visa", "payments-a"));
    }
    stage.resolve(keyed(1), 1, Resolution::NotSent).expect("is unknown");
    let (found, _) = Stage::open(&disk.after(Unsynced::None), &options());
    assert_eq!(found.ledger.standing(&keyed(1)), None);
}

#[test]
fn an_effect_that_is_under_way_for_longer_than_the_window_is_carried_too() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &options());
    let under_way = stage.intend(keyed(1), 1).expect("is taken");
    (10..20).for_each(|number| stage.whole(keyed(number), 1, ANSWERED));
    stage.clock.pass_ms(WINDOW_MS);
    tick(&mut stage, 10);
    assert_eq!(disk.names().len(), 1);
    under_way.end(ANSWERED);
    stage.pump();
    stage.writer.tick();
    let at_end = stage.clock.clone();
    let (found, _) = Stage::open_at(&disk.after(Unsynced::None), &options(), at_end);
    assert_eq!(
        found.ledger.standing(&keyed(1)),
        Some(Standing::Decided),
        "for the window from its outcome on"
    );
}

#[test]
fn what_was_decided_later_than_its_segment_is_kept_for_its_whole_window() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &options());
    let slow = stage.intend(keyed(1), 1).expect("is taken");
    stage.clock.pass_ms(WINDOW_MS - 10);
    slow.end(ANSWERED);
    (10..20).for_each(|number| stage.whole(keyed(number), 1, ANSWERED));
    stage.clock.pass_ms(WINDOW_MS - 1);
    tick(&mut stage, 10);
    let clock = stage.clock.clone();
    let (found, _) = Stage::open_at(&disk.after(Unsynced::None), &options(), clock);
    assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Decided));
}

#[test]
fn a_crash_in_the_midst_of_a_compaction_loses_nothing() {
    for power in 0..600 {
        let disk = FaultDisk::default();
        let mut stage = filled(&disk);
        stage.clock.pass_ms(WINDOW_MS);
        disk.power_for(power);
        tick(&mut stage, 10);
        for unsynced in [Unsynced::All, Unsynced::Half, Unsynced::None] {
            let (found, recovery) = Stage::open(&disk.after(unsynced), &options());
            assert_eq!(recovery.damages, [], "power for {power}, {unsynced:?}");
            for id in [keyed(1), minted(2)] {
                let standing = found.ledger.standing(&id);
                assert_eq!(standing, Some(Standing::Unknown), "power for {power}, {unsynced:?}");
            }
        }
    }
}

#[test]
fn a_clock_that_is_set_back_deletes_nothing_early_and_does_not_stop_it() {
    let disk = FaultDisk::default();
    let mut stage = filled(&disk);
    stage.clock.jump_to(5);
    tick(&mut stage, 10);
    stage.close();
    let clock = crate::time::manual::ManualClock::at(5);
    let (mut found, _) = Stage::open_at(&disk, &options(), clock.clone());
    assert_eq!(found.ledger.standing(&keyed(10)), Some(Standing::Decided));
    let before = disk.names().len();
    clock.pass_ms(WINDOW_MS - 1);
    tick(&mut found, 20);
    assert_eq!(disk.names().len(), before);
    clock.pass_ms(1);
    tick(&mut found, 20);
    assert_eq!(disk.names().len(), 1);
}

#[test]
fn a_damaged_segment_is_put_aside_when_it_is_no_longer_needed() {
    let disk = FaultDisk::default();
    filled(&disk).close();
    let damaged = disk.with(&file_name(1), |bytes| bytes[60] ^= 1);
    let contents = damaged.bytes(&file_name(1));
    let (mut stage, recovery) = Stage::open(&damaged, &options());
    assert_eq!(recovery.damages.len(), 1);
    stage.clock.pass_ms(WINDOW_MS);
    tick(&mut stage, 20);
    let aside = file_name(1) + ASIDE;
    assert_eq!(damaged.bytes(&aside), contents);
    assert_eq!(damaged.names().len(), 2, "it and the one that is written");
    let (_, recovery) = Stage::open(&damaged.after(Unsynced::None), &options());
    assert_eq!((recovery.damages, recovery.aside), (vec![], vec![aside]));
}
