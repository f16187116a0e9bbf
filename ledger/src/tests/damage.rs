//! Damage to what is on the disk: every byte, every length, every file. It is said, or it changes nothing.

use std::collections::BTreeMap;

use super::fault_disk::FaultDisk;
use super::{ANSWERED, Stage, keyed, small};
use crate::damage::{Damage, Kind};
use crate::effect::Standing;
use crate::record::{Outcome, Record, Resolution};
use crate::segment::{self, sequence_of};

const TRANSACTIONS: u8 = 8;

/// A ledger of several segments with every kind of record, closed in order or left.
fn ledger(closed: bool) -> FaultDisk {
    let disk = FaultDisk::default();
    let (mut stage, _) = Stage::open(&disk, &small());
    for number in 0..TRANSACTIONS {
        let outcome = [ANSWERED, Outcome::Unknown, Outcome::NotSent][usize::from(number % 3)];
        stage.whole(keyed(number), 1, outcome);
    }
    stage.resolve(keyed(1), 1, Resolution::Answered).expect("is unknown");
    if closed {
        stage.close();
    }
    assert!(disk.names().len() >= 3, "{:?}", disk.names());
    disk
}

type Standings = BTreeMap<u8, Option<Standing>>;

fn open(disk: &FaultDisk) -> (Standings, Vec<Damage>) {
    let (stage, recovery) = Stage::open(disk, &small());
    let standings = (0..TRANSACTIONS).map(|number| (number, stage.ledger.standing(&keyed(number))));
    (standings.collect(), recovery.damages)
}

#[test]
fn without_damage_none_is_found() {
    for closed in [true, false] {
        let (standings, damages) = open(&ledger(closed));
        assert_eq!(damages, []);
        assert_eq!(standings[&0], Some(Standing::Decided));
        assert_eq!(standings[&1], Some(Standing::Decided), "by its resolution");
        assert_eq!((standings[&2], standings[&4]), (None, Some(Standing::Unknown)));
    }
}

#[test]
fn every_flipped_byte_is_detected_or_harmless_and_costs_one_transaction_at_most() {
    for closed in [true, false] {
        let disk = ledger(closed);
        let (whole, _) = open(&ledger(closed));
        let (mut bytes, mut told) = (0, 0);
        for name in disk.names() {
            // Each bit of a frame is flipped in the tests of `frame`.
            for byte in 0..disk.bytes(&name).len() {
                let flipped = disk.with(&name, |bytes| bytes[byte] ^= 1 << (byte % 8));
                let (standings, damages) = open(&flipped);
                let differ = whole.iter().filter(|(number, standing)| standings[number] != **standing);
                let most = usize::from(!damages.is_empty());
                assert!(differ.count() <= most, "byte {byte} of {name}: {damages:?}");
                told += usize::from(!damages.is_empty());
                bytes += 1;
                let (again, damages_again) = open(&flipped);
                assert_eq!((again, damages_again), (standings, damages), "it is said at every start");
            }
        }
        // Seals of segments that have a successor say nothing that it does not say.
        assert!(told * 10 > bytes * 8, "{told} of {bytes}");
    }
}

#[test]
fn a_cut_anywhere_but_at_the_very_end_is_detected() {
    let disk = ledger(true);
    let names = disk.names();
    for name in &names[..names.len() - 1] {
        for length in 0..disk.bytes(name).len() {
            let cut = disk.with(name, |bytes| bytes.truncate(length));
            let (_, damages) = open(&cut);
            // Without its seal a segment is still whole: its successor says where it ended.
            let whole = length as u64 >= acknowledged(&disk, name);
            assert_eq!(damages.is_empty(), whole, "{length} bytes of {name}: {damages:?}");
        }
    }
}

/// How long the successor says that the segment was.
fn acknowledged(disk: &FaultDisk, name: &str) -> u64 {
    let sequence = sequence_of(name).expect("is a segment's");
    let successor = segment::file_name(sequence + 1);
    let mut found = 0;
    segment::scan(&disk.bytes(&successor), sequence + 1, |record| {
        if let Record::Ended { segment, trusted_to } = record
            && segment == sequence
        {
            found = trusted_to;
        }
    });
    found
}

#[test]
fn every_missing_segment_is_told() {
    let disk = ledger(true);
    for name in disk.names() {
        let (_, damages) = open(&disk.without(&name));
        let missing: Vec<_> = damages.iter().map(|damage| (damage.segment, damage.kind.clone())).collect();
        assert_eq!(missing, [(sequence_of(&name).expect("is a segment's"), Kind::Missing)], "{name}");
    }
}

#[test]
fn a_segment_that_cannot_be_read_is_told_and_the_others_are_read() {
    let disk = ledger(true);
    let (whole, _) = open(&disk.with(&disk.names()[0], |_| ()));
    let first = disk.names()[0].clone();
    disk.make_unreadable(&first);
    let (standings, damages) = open(&disk);
    assert!(matches!(&damages[..], [Damage { segment: 1, kind: Kind::Unreadable(_), .. }]), "{damages:?}");
    assert_eq!(standings[&7], whole[&7]);
}

#[test]
fn damaged_segments_stay_as_they_are() {
    let disk = ledger(true);
    let first = disk.names()[0].clone();
    let flipped = disk.with(&first, |bytes| bytes[60] ^= 1);
    let before = flipped.bytes(&first);
    let (_, damages) = open(&flipped);
    assert!(!damages.is_empty());
    assert_eq!(flipped.bytes(&first), before);
}
