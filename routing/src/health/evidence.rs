//! Whether a cell does worse than its siblings, by what requests say of it and them. Where all do as badly nobody stands
//! out: the fault is elsewhere.

use std::fmt;

use bulkhead_crds::router::Evidence;

use super::samples::{Part, Samples};

/// Samples that a judgement needs, of the cell and, of its siblings together, as many.
pub(super) const LEAST: u64 = 20;
/// Of a cell on its way back, whose share is small.
pub(super) const LEAST_RAMPING: u64 = 5;

/// Ranks of errors are above this, those of latency up to it.
const ERRORS: u16 = 1_000;

/// How far a cell has to stand out.
struct Bar {
    /// By how much more of its attempts fail, absolutely and in multiples of its siblings' part.
    above: f64,
    times: f64,
    /// Half of its answers take longer than so many medians of its siblings' answers, and than a median and so much more.
    medians: u64,
    longer_micros: u64,
    /// By how many standard errors, so that chance seldom does it.
    deviations: f64,
    /// How many of its samples have to be bad at all, since of few samples chance makes anything.
    bad: u64,
}

const BAD: Bar = Bar { above: 0.10, times: 3.0, medians: 3, longer_micros: 50_000, deviations: 4.0, bad: 3 };
/// About half of that. What is between is no reason to send a cell more.
const WORSE: Bar =
    Bar { above: 0.05, times: 2.0, medians: 2, longer_micros: 25_000, deviations: 2.0, bad: 2 };

/// What speaks against a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Errors,
    Latency,
}

impl Fault {
    /// The word for it as a reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Errors => "HighErrorRate",
            Self::Latency => "HighLatency",
        }
    }

    /// The fault that a rank is of.
    pub fn of_rank(rank: u16) -> Self {
        if rank > ERRORS { Self::Errors } else { Self::Latency }
    }
}

/// The case against a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Errors, or answers that took longer than a bound.
    own: Part,
    siblings: Part,
    /// The bound; none for errors.
    longer_than_micros: Option<u64>,
}

impl Case {
    pub fn fault(&self) -> Fault {
        if self.longer_than_micros.is_none() { Fault::Errors } else { Fault::Latency }
    }

    /// Errors before latency, and then by how many of a thousand more of its latest samples are bad than of its siblings':
    /// those before may be of a time when it was well.
    pub(super) fn rank(&self, latest: &Samples) -> u16 {
        let (base, own) = match self.longer_than_micros {
            None => (ERRORS, latest.failed()),
            Some(micros) => (0, latest.slower_than(micros)),
        };
        let own = if own.of >= LEAST_RAMPING { own } else { self.own };
        let above = (1_000.0 * (own.ratio() - self.siblings.ratio())).clamp(1.0, 1_000.0);
        base + above.round() as u16
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, siblings, longer_than_micros } = self;
        match longer_than_micros {
            None => write!(
                f,
                "{} of {} attempts failed here, and {} of {} in its siblings",
                own.part, own.of, siblings.part, siblings.of
            ),
            Some(micros) => write!(
                f,
                "{} of {} answers took longer than {} ms here, and {} of {} in its siblings",
                own.part,
                own.of,
                micros / 1_000,
                siblings.part,
                siblings.of
            ),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Too few samples.
    Unknown,
    Well,
    /// Between well and bad.
    Worse,
    Bad(Case),
}

impl Finding {
    pub(super) fn speaks_against(self) -> bool {
        matches!(self, Self::Worse | Self::Bad(_))
    }
}

/// How the cell does beside its siblings, of which it takes so many samples to tell.
pub(super) fn compare(own: &Samples, siblings: &Samples, looked_at: Evidence, least: u64) -> Finding {
    let enough = |own: u64, siblings: u64| own >= least && siblings >= LEAST;
    let (mine, theirs) = (own.failed(), siblings.failed());
    if !enough(mine.of, theirs.of) {
        return Finding::Unknown;
    }
    let errors = |bar: &Bar| looked_at.errors.then(|| errors(mine, theirs, bar)).flatten();
    let timed = looked_at.latency && enough(own.answered(), siblings.answered());
    let latency = |bar: &Bar| timed.then(|| latency(own, siblings, bar)).flatten();
    match errors(&BAD).or_else(|| latency(&BAD)) {
        Some(case) => Finding::Bad(case),
        None if errors(&WORSE).or_else(|| latency(&WORSE)).is_some() => Finding::Worse,
        None => Finding::Well,
    }
}

fn errors(own: Part, siblings: Part, bar: &Bar) -> Option<Case> {
    let (mine, theirs) = (own.ratio(), siblings.ratio());
    let bad = mine >= theirs + bar.above && mine >= theirs * bar.times && stands_out(own, siblings, bar);
    bad.then_some(Case { own, siblings, longer_than_micros: None })
}

fn latency(own: &Samples, siblings: &Samples, bar: &Bar) -> Option<Case> {
    let median = siblings.median_micros()?;
    let bound = (median * bar.medians).max(median + bar.longer_micros);
    let (own, siblings) = (own.slower_than(bound), siblings.slower_than(bound));
    let bad = own.part * 2 >= own.of && stands_out(own, siblings, bar);
    bad.then_some(Case { own, siblings, longer_than_micros: Some(bound) })
}

/// Whether the difference of two parts is more than chance makes of samples so few: so many standard errors of the
/// difference, by the part of both together.
fn stands_out(own: Part, siblings: Part, bar: &Bar) -> bool {
    let both = Part { part: own.part + siblings.part, of: own.of + siblings.of }.ratio();
    let variance = both * (1.0 - both) * (1.0 / own.of as f64 + 1.0 / siblings.of as f64);
    let above = own.ratio() - siblings.ratio();
    own.part >= bar.bad && above > 0.0 && above * above >= bar.deviations.powi(2) * variance
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Evidence = Evidence { errors: true, latency: true };

    /// So many failures, and answers of so many milliseconds each.
    fn samples(failed: u32, answers: &[(u32, u64)]) -> Samples {
        let mut samples = Samples::default();
        (0..failed).for_each(|_| samples.fail());
        for (count, millis) in answers {
            (0..*count).for_each(|_| samples.answer(millis * 1_000));
        }
        samples
    }

    #[track_caller]
    fn check(own: &Samples, siblings: &Samples, least: u64, expected: &str) {
        let found = match compare(own, siblings, ALL, least) {
            Finding::Bad(case) => case.fault().as_str(),
            Finding::Worse => "Worse",
            Finding::Well => "Well",
            Finding::Unknown => "Unknown",
        };
        assert_eq!(found, expected);
    }

    /// Failures of so many attempts, here and among the siblings.
    #[track_caller]
    fn check_errors(own: (u32, u32), siblings: (u32, u32), expected: &str) {
        let of = |(failed, all): (u32, u32)| samples(failed, &[(all - failed, 10)]);
        check(&of(own), &of(siblings), LEAST, expected);
    }

    #[test]
    fn errors_count_beside_those_of_the_siblings() {
        check_errors((20, 20), (0, 40), "HighErrorRate");
        check_errors((10, 20), (0, 40), "HighErrorRate");
        check_errors((50, 500), (0, 1_000), "HighErrorRate");
        // Ten of a hundred more, and three times as many.
        check_errors((49, 500), (0, 1_000), "Worse");
        check_errors((151, 1_000), (100, 2_000), "HighErrorRate");
        check_errors((149, 1_000), (100, 2_000), "Worse");
        check_errors((140, 1_000), (100, 1_000), "Well");
        check_errors((24, 1_000), (0, 1_000), "Well");
    }

    #[test]
    fn where_all_are_as_bad_nobody_is() {
        check_errors((100, 100), (200, 200), "Well");
        check_errors((50, 100), (100, 200), "Well");
        check_errors((0, 100), (200, 200), "Well");
        let slow = samples(0, &[(100, 2_000)]);
        check(&slow, &slow, LEAST, "Well");
    }

    #[test]
    fn few_samples_tell_nothing_and_few_failures_little() {
        check_errors((19, 19), (0, 100), "Unknown");
        check_errors((20, 20), (0, 19), "Unknown");
        check_errors((2, 20), (0, 40), "Worse");
        check_errors((4, 20), (2, 40), "Well");
    }

    #[test]
    fn a_cell_on_its_way_back_needs_fewer() {
        let all_fail = samples(5, &[]);
        let well = samples(0, &[(100, 10)]);
        check(&all_fail, &well, LEAST, "Unknown");
        check(&all_fail, &well, LEAST_RAMPING, "HighErrorRate");
        check(&samples(3, &[(2, 10)]), &well, LEAST_RAMPING, "HighErrorRate");
        check(&samples(2, &[(3, 10)]), &well, LEAST_RAMPING, "Worse");
        check(&samples(1, &[(4, 10)]), &well, LEAST_RAMPING, "Well");
        check(&samples(4, &[]), &well, LEAST_RAMPING, "Unknown");
    }

    #[test]
    fn half_of_the_answers_have_to_be_late() {
        let usual = samples(0, &[(200, 60)]);
        check(&samples(0, &[(100, 400)]), &usual, LEAST, "HighLatency");
        check(&samples(0, &[(51, 400), (49, 60)]), &usual, LEAST, "HighLatency");
        check(&samples(0, &[(49, 400), (51, 60)]), &usual, LEAST, "Well");
        check(&samples(0, &[(100, 180)]), &usual, LEAST, "Worse");
        check(&samples(0, &[(100, 90)]), &usual, LEAST, "Well");
    }

    #[test]
    fn some_milliseconds_more_are_nothing_however_many_times_it_is() {
        let fast = samples(0, &[(200, 1)]);
        check(&samples(0, &[(100, 20)]), &fast, LEAST, "Well");
        check(&samples(0, &[(100, 100)]), &fast, LEAST, "HighLatency");
    }

    #[test]
    fn work_of_two_kinds_is_compared_as_a_whole() {
        let mixed = samples(0, &[(120, 5), (80, 500)]);
        check(&samples(0, &[(9, 5), (11, 500)]), &mixed, LEAST, "Well");
        check(&samples(0, &[(10, 5), (190, 500)]), &mixed, LEAST, "HighLatency");
    }

    #[test]
    fn what_is_not_looked_at_speaks_against_nobody() {
        let (bad, well) = (samples(40, &[(40, 900)]), samples(0, &[(200, 10)]));
        for (errors, latency, expected) in
            [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
        {
            let finding = compare(&bad, &well, Evidence { errors, latency }, LEAST);
            assert_eq!(finding.speaks_against(), expected, "{errors} {latency}");
        }
    }

    #[test]
    fn a_case_is_told_in_a_sentence_and_errors_rank_first() {
        let Finding::Bad(case) = compare(&samples(12, &[(28, 5)]), &samples(0, &[(80, 5)]), ALL, LEAST)
        else {
            panic!("is bad");
        };
        assert_eq!(case.to_string(), "12 of 40 attempts failed here, and 0 of 80 in its siblings");
        assert_eq!((case.rank(&Samples::default()), case.rank(&samples(8, &[(2, 5)]))), (1_300, 1_800));
        assert_eq!(Fault::of_rank(1_001), Fault::Errors);
        let Finding::Bad(case) = compare(&samples(0, &[(40, 900)]), &samples(0, &[(80, 5)]), ALL, LEAST)
        else {
            panic!("is bad");
        };
        assert!(case.to_string().starts_with("40 of 40 answers took longer than 5"), "{case}");
        let rank = case.rank(&samples(9, &[(9, 900)]));
        assert_eq!((rank, Fault::of_rank(rank)), (1_000, Fault::Latency));
    }
}
