//! A disk that takes no writes or loses a sync: nothing that was acknowledged suffers, whoever waits is told, and a new
//! segment is used once there is one.

use super::fault_disk::{FaultDisk, Unsynced};
use super::{ANSWERED, Stage, intent, keyed, minted, small};
use crate::effect::{Standing, State};
use crate::options::Options;
use crate::record::{Outcome, Resolution};
use crate::refusal::Refusal;
use futures::FutureExt;

/// After the retry's time.
fn retry(stage: &mut Stage) {
    stage.clock.pass_ms(1_000);
    stage.writer.tick();
}

/// One that is decided, one that is in flight, and then a failure that a third finds.
fn check(fail: impl FnOnce(&FaultDisk), unsynced: Unsynced) {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    stage.whole(keyed(1), 1, ANSWERED);
    let in_flight = stage.intend(keyed(2), 1).expect("is taken");
    assert_eq!(stage.ledger.accepts(), Ok(()));
    fail(&disk);
    let refused = stage.intend(keyed(3), 1).expect_err("is not on the disk");
    assert_eq!(refused.reason(), "DiskFailed");
    assert_eq!(stage.ledger.standing(&keyed(3)), None, "nothing of it counts");
    assert!(stage.ledger.accepts().is_err(), "and none is taken");
    let at_once = stage.ledger.intend(intent(keyed(4), 1)).now_or_never();
    assert!(matches!(at_once, Some(Err(Refusal::Disk(_)))));

    // What comes meanwhile is kept.
    in_flight.end(ANSWERED);
    stage.pump();
    let segments = disk.names().len();
    stage.writer.tick();
    assert_eq!(disk.names().len(), segments, "not before its time");
    retry(&mut stage);
    assert_eq!(stage.ledger.accepts(), Ok(()));
    assert_eq!(disk.names().len(), segments + 1, "in a segment of its own");
    stage.whole(keyed(3), 1, ANSWERED);

    let (found, recovery) = Stage::open(&disk.after(unsynced), &small());
    assert_eq!(recovery.damages, []);
    for number in 1..=2 {
        assert_eq!(found.ledger.standing(&keyed(number)), Some(Standing::Decided), "{number}");
    }
    assert!(found.ledger.standing(&keyed(3)).is_some());
    assert_eq!(found.ledger.standing(&keyed(4)), None);
}

#[test]
fn a_failed_sync_ends_the_segment_and_loses_nothing() {
    for unsynced in [Unsynced::All, Unsynced::Half, Unsynced::None] {
        check(|disk| disk.fail_syncs(1), unsynced);
    }
}

#[test]
fn a_full_disk_ends_the_segment_and_loses_nothing() {
    for bytes in 0..60 {
        check(|disk| disk.write_fails_after(bytes), Unsynced::All);
    }
}

#[test]
fn what_a_failed_sync_left_on_the_disk_is_taken_back() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    disk.fail_syncs(1);
    stage.intend(keyed(1), 1).expect_err("is not on the disk");
    let (before, _) = Stage::open(&disk.after(Unsynced::All), &small());
    assert_eq!(before.ledger.standing(&keyed(1)), Some(Standing::Unknown), "the bytes were written");
    retry(&mut stage);
    let (after, _) = Stage::open(&disk.after(Unsynced::All), &small());
    assert_eq!(after.ledger.standing(&keyed(1)), None);
}

#[test]
fn a_failed_sync_is_not_tried_again() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    disk.fail_syncs(3);
    stage.intend(keyed(1), 1).expect_err("is not on the disk");
    let sealed = disk.names();
    let bytes = disk.bytes(&sealed[0]);
    // Two new segments fail as well, and are not left behind.
    retry(&mut stage);
    retry(&mut stage);
    assert!(stage.ledger.accepts().is_err());
    assert_eq!(disk.names(), sealed);
    retry(&mut stage);
    assert_eq!(stage.ledger.accepts(), Ok(()));
    assert_eq!(disk.bytes(&sealed[0]), bytes, "nothing is written to a segment that failed");
}

#[test]
fn outcomes_that_no_sync_had_kept_are_written_again() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    stage.whole(keyed(1), 1, ANSWERED);
    disk.fail_syncs(1);
    stage.intend(keyed(2), 1).expect_err("is not on the disk");
    let (lost, _) = Stage::open(&disk.after(Unsynced::None), &small());
    assert_eq!(
        lost.ledger.standing(&keyed(1)),
        Some(Standing::Unknown),
        "as long as there is no new segment"
    );
    retry(&mut stage);
    let (kept, _) = Stage::open(&disk.after(Unsynced::None), &small());
    assert_eq!(kept.ledger.standing(&keyed(1)), Some(Standing::Decided));
}

#[test]
fn outcomes_are_synced_within_a_second_although_nobody_waits() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    stage.whole(keyed(1), 1, ANSWERED);
    let found = |disk: &FaultDisk| {
        let (found, _) = Stage::open(&disk.after(Unsynced::None), &small());
        found.ledger.standing(&keyed(1))
    };
    assert_eq!(found(&disk), Some(Standing::Unknown));
    stage.writer.tick();
    assert_eq!(found(&disk), Some(Standing::Decided));
}

#[test]
fn short_writes_are_gone_on_with() {
    let disk = FaultDisk::default();
    disk.write_at_most(7);
    let (mut stage, _) = Stage::open(&disk, &small());
    (0..9).for_each(|number| stage.whole(keyed(number), 1, ANSWERED));
    stage.close();
    let (found, recovery) = Stage::open(&disk, &small());
    assert_eq!((recovery.damages, recovery.transactions), (vec![], 9));
    assert_eq!(found.ledger.standing(&keyed(8)), Some(Standing::Decided));
}

#[test]
fn a_disk_low_on_space_takes_outcomes_and_no_intents() {
    let disk = FaultDisk::default();
    let options = Options { reserve_bytes: 1_000, ..small() };
    let (mut stage, _) = Stage::open(&disk, &options);
    let in_flight = stage.intend(keyed(1), 1).expect("there is room");
    disk.set_free(999);
    stage.writer.tick();
    assert_eq!(stage.ledger.accepts(), Err(Refusal::DiskLow { free: 999, reserve: 1_000 }));
    in_flight.end(ANSWERED);
    stage.pump();
    stage.writer.tick();
    disk.set_free(1_000);
    stage.writer.tick();
    assert_eq!(stage.ledger.accepts(), Ok(()));
    let (found, _) = Stage::open(&disk.after(Unsynced::None), &options);
    assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Decided));
}

#[test]
fn a_ledger_whose_disk_takes_no_segment_at_the_start_serves_what_it_read() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    stage.whole(keyed(1), 1, ANSWERED);
    stage.close();
    disk.write_fails_after(5);
    let (mut found, recovery) = Stage::open(&disk, &small());
    assert_eq!(recovery.damages, []);
    assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Decided));
    assert_eq!(found.ledger.accepts().map_err(|refusal| refusal.reason()), Err("DiskFailed"));
    retry(&mut found);
    assert_eq!(found.ledger.accepts(), Ok(()));
}

#[test]
fn whoever_stops_waiting_has_sent_nothing() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    let ledger = stage.ledger.clone();
    for written in [false, true] {
        let mut waiting = Box::pin(ledger.intend(intent(keyed(1), 1)));
        assert!((&mut waiting).now_or_never().is_none());
        if written {
            stage.pump();
        }
        assert_eq!(ledger.standing(&keyed(1)), Some(Standing::InFlight));
        drop(waiting);
        assert_eq!(ledger.standing(&keyed(1)), None);
        stage.pump();
    }
    // Dropped and tried again before anything was written.
    let mut waiting = Box::pin(ledger.intend(intent(keyed(1), 1)));
    assert!((&mut waiting).now_or_never().is_none());
    drop(waiting);
    std::mem::forget(stage.intend(keyed(1), 1).expect("was not sent"));
    let (found, _) = Stage::open(&disk.after(Unsynced::None), &small());
    assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Unknown), "the second one counts");
}

#[test]
fn an_effect_that_nobody_ends_is_unknown() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    drop(stage.intend(minted(1), 1).expect("is taken"));
    assert_eq!(stage.ledger.standing(&minted(1)), Some(Standing::Unknown));
    assert!(matches!(stage.intend(minted(1), 1), Err(Refusal::Known(State::Unknown))));
    stage.intend(minted(1), 2).expect("is another effect").end(ANSWERED);
    stage.resolve(minted(1), 1, Resolution::NotSent).expect("is unknown");
    assert_eq!(stage.ledger.standing(&minted(1)), None);
}

#[test]
fn names_that_cannot_be_shown_are_refused() {
    let disk = FaultDisk::default();
    let (stage, _) = Stage::open(&disk, &small());
    let mut long = intent(keyed(1), 1);
    long.cell = "c".repeat(51).into();
    let refused = stage.ledger.intend(long).now_or_never().expect("at once");
    assert_eq!(refused.expect_err("is too long").reason(), "Name");
    assert_eq!(stage.ledger.standing(&keyed(1)), None);
}

#[test]
fn a_closed_ledger_writes_what_waits_and_takes_no_more() {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    let ledger = stage.ledger.clone();
    let ended = stage.intend(keyed(1), 1).expect("is open");
    ended.end(Outcome::Answered { status: Some(402) });
    stage.close();
    let refused = ledger.intend(intent(keyed(2), 1)).now_or_never().expect("at once");
    assert_eq!(refused.expect_err("is closed"), Refusal::Closed);
    let (found, recovery) = Stage::open(&disk.after(Unsynced::None), &small());
    assert_eq!((recovery.left_open, recovery.torn.len()), (0, 0));
    assert_eq!(found.ledger.standing(&keyed(1)), Some(Standing::Decided));
}
