//! Damage or what a crash leaves: the decision over all segments together, from how each was read and what later ones
//! say of it. Pure; the segments are read in `history`.

use std::collections::BTreeMap;

use crate::damage::{Damage, Kind, TornTail};
use crate::segment::{Flaw, Scan};

/// What the segments say of each other.
#[derive(Debug, Default)]
pub(crate) struct Testimony {
    /// How far a segment was acknowledged, as its successor says.
    pub(crate) ended: BTreeMap<u64, u64>,
    /// All below it were deleted by compactions.
    pub(crate) oldest: u64,
}

/// How one segment could be read: a scan, or why the operating system did not read it.
pub(crate) type Reading = Result<Scan, String>;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) damages: Vec<Damage>,
    pub(crate) torn: Vec<TornTail>,
    /// Segments of which no successor says yet where they ended, and where that is.
    pub(crate) unended: Vec<(u64, u64)>,
}

pub(crate) fn judge(segments: &BTreeMap<u64, Reading>, testimony: &Testimony) -> Judgement {
    let mut judgement = Judgement::default();
    let damages = &mut judgement.damages;
    let Some((&last, _)) = segments.last_key_value() else {
        return judgement;
    };
    // A segment that follows was not used before it said where this one ended, so that only segments without a record
    // can follow the one in which a crash came.
    let newest_in_use =
        segments.iter().rev().find(|(_, reading)| in_use(reading)).map_or(0, |(sequence, _)| *sequence);
    for sequence in testimony.oldest.max(1)..=last {
        let Some(reading) = segments.get(&sequence) else {
            damages.push(whole(sequence, Kind::Missing));
            continue;
        };
        let scan = match reading {
            Ok(scan) => scan,
            Err(error) => {
                damages.push(whole(sequence, Kind::Unreadable(error.clone())));
                continue;
            }
        };
        let ended = testimony.ended.get(&sequence).copied();
        let verdict = Verdict { sequence, scan, ended, may_be_torn: sequence >= newest_in_use };
        let before = damages.len();
        verdict.damages(damages);
        let torn = verdict.torn();
        if ended.is_none() && scan.seal.is_none() {
            // Damage stays within what is trusted, so that it is reported at the next start too.
            let trusted_to = if torn.is_some() || damages.len() == before { scan.end } else { scan.length };
            judgement.unended.push((sequence, trusted_to));
        }
        judgement.torn.extend(torn);
    }
    if segments[&last].as_ref().is_ok_and(|scan| scan.seal.is_some_and(|seal| seal.successor)) {
        damages.push(whole(last + 1, Kind::Missing));
    }
    judgement
}

fn in_use(reading: &Reading) -> bool {
    reading.as_ref().map_or(true, |scan| scan.records > 0)
}

fn whole(segment: u64, kind: Kind) -> Damage {
    Damage { segment, offset: 0, length: 0, kind, lost: None }
}

/// One segment with all that decides about it.
struct Verdict<'a> {
    sequence: u64,
    scan: &'a Scan,
    ended: Option<u64>,
    may_be_torn: bool,
}

impl Verdict<'_> {
    fn damages(&self, damages: &mut Vec<Damage>) {
        let Self { sequence, scan, ended, may_be_torn } = *self;
        for flaw in &scan.flaws {
            let acknowledged = ended.is_none_or(|trusted_to| flaw.offset < trusted_to);
            if acknowledged && !self.is_torn(flaw) {
                let behind_seal = scan.seal.is_some() && flaw.offset >= scan.end;
                let kind = if behind_seal { Kind::BehindSeal } else { Kind::of(flaw.wrong) };
                let Flaw { offset, length, lost, .. } = *flaw;
                damages.push(Damage { segment: sequence, offset, length, kind, lost });
            }
        }
        let told = scan.flaws.last().is_some_and(|flaw| flaw.offset + flaw.length >= scan.length);
        let short = match ended {
            Some(trusted_to) => scan.end < trusted_to,
            None => scan.seal.is_none() && !may_be_torn,
        };
        if short && !told {
            let kind = Kind::Truncated;
            damages.push(Damage { segment: sequence, offset: scan.length, length: 0, kind, lost: None });
        }
    }

    fn torn(&self) -> Option<TornTail> {
        let flaw = self.scan.flaws.last().filter(|flaw| self.is_torn(flaw))?;
        Some(TornTail { segment: self.sequence, offset: flaw.offset, length: flaw.length })
    }

    /// A write that was cut leaves the start of a frame, or zeros, at the end of a segment that nobody ended.
    fn is_torn(&self, flaw: &Flaw) -> bool {
        use crate::frame::Wrong;
        self.ended.is_none()
            && self.scan.seal.is_none()
            && self.may_be_torn
            && flaw.offset + flaw.length == self.scan.length
            && matches!(flaw.wrong, Wrong::Short | Wrong::Zeros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Wrong;
    use crate::segment::Seal;

    fn scan(end: u64, flaws: &[(u64, u64, Wrong)], seal: Option<bool>) -> Reading {
        let flaws = flaws.iter().map(|&(offset, length, wrong)| Flaw { offset, length, wrong, lost: None });
        let flaws: Vec<_> = flaws.collect();
        let length = flaws.iter().map(|flaw| flaw.offset + flaw.length).max().unwrap_or(0).max(end);
        let seal = seal.map(|successor| Seal { successor });
        Ok(Scan { flaws, records: u32::from(end > 40), end, length, seal, ..Scan::default() })
    }

    /// Damages as (segment, offset, kind), torn tails as (segment, offset), and what the next segment has to say.
    fn check(
        segments: &[(u64, Reading)],
        (oldest, ended): (u64, &[(u64, u64)]),
        damages: &[(u64, u64, Kind)],
        torn: &[(u64, u64)],
        unended: &[(u64, u64)],
    ) {
        let segments = segments.iter().cloned().collect();
        let judgement = judge(&segments, &Testimony { ended: ended.iter().copied().collect(), oldest });
        let found: Vec<_> =
            judgement.damages.into_iter().map(|found| (found.segment, found.offset, found.kind)).collect();
        assert_eq!(found, damages);
        assert_eq!(judgement.torn.iter().map(|torn| (torn.segment, torn.offset)).collect::<Vec<_>>(), torn);
        assert_eq!(judgement.unended, unended);
    }

    #[test]
    fn nothing_is_wrong_with_sealed_segments_or_with_none() {
        check(&[], (0, &[]), &[], &[], &[]);
        check(
            &[(1, scan(90, &[], Some(true))), (2, scan(90, &[], Some(false)))],
            (1, &[(1, 80)]),
            &[],
            &[],
            &[],
        );
    }

    #[test]
    fn a_crash_may_tear_the_newest_segment_in_use_and_those_that_were_not_yet_used() {
        let torn = [(80, 5, Wrong::Short)];
        check(&[(1, scan(80, &torn, None))], (1, &[]), &[], &[(1, 80)], &[(1, 80)]);
        check(&[(1, scan(80, &[(80, 5, Wrong::Zeros)], None))], (1, &[]), &[], &[(1, 80)], &[(1, 80)]);
        check(
            &[(1, scan(80, &torn, None)), (2, scan(0, &[(0, 9, Wrong::Short)], None))],
            (1, &[]),
            &[],
            &[(1, 80), (2, 0)],
            &[(1, 80), (2, 0)],
        );
    }

    #[test]
    fn a_cut_anywhere_else_is_damage_and_stays_it() {
        let cut = scan(80, &[(80, 5, Wrong::Short)], None);
        let later = (2, scan(90, &[], Some(false)));
        let truncated = [(1, 80, Kind::Truncated)];
        check(&[(1, cut.clone()), later.clone()], (1, &[(1, 200)]), &truncated, &[], &[]);
        check(&[(1, cut), later.clone()], (1, &[]), &truncated, &[], &[(1, 85)]);
        check(&[(1, scan(80, &[], None)), later.clone()], (1, &[]), &truncated, &[], &[(1, 80)]);
        check(&[(1, scan(80, &[], None)), later], (1, &[(1, 81)]), &truncated, &[], &[]);
    }

    #[test]
    fn a_flipped_bit_is_damage_even_at_the_very_end() {
        let flipped = scan(80, &[(80, 50, Wrong::Checksum)], None);
        check(&[(1, flipped)], (1, &[]), &[(1, 80, Kind::Checksum)], &[], &[(1, 130)]);
        let behind = scan(80, &[(80, 50, Wrong::Length)], Some(false));
        check(&[(1, behind)], (1, &[]), &[(1, 80, Kind::BehindSeal)], &[], &[]);
    }

    #[test]
    fn what_was_never_acknowledged_may_look_as_it_likes() {
        let failed = scan(120, &[(80, 9, Wrong::Checksum), (120, 9, Wrong::Length)], None);
        check(&[(1, failed), (2, scan(90, &[], None))], (1, &[(1, 80)]), &[], &[], &[(2, 90)]);
    }

    #[test]
    fn a_missing_segment_is_told_from_a_compacted_one() {
        let whole = scan(90, &[], None);
        check(&[(3, whole.clone())], (3, &[]), &[], &[], &[(3, 90)]);
        check(&[(3, whole.clone())], (2, &[]), &[(2, 0, Kind::Missing)], &[], &[(3, 90)]);
        check(&[(1, scan(90, &[], Some(true)))], (1, &[]), &[(2, 0, Kind::Missing)], &[], &[]);
        check(
            &[(1, Err("input/output error".to_owned())), (2, whole)],
            (1, &[]),
            &[(1, 0, Kind::Unreadable("input/output error".to_owned()))],
            &[],
            &[(2, 90)],
        );
    }
}
