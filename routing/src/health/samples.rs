//! What requests say of a cell: how many of its attempts ended, how many by its own fault, and how long its answers took.

use std::collections::VecDeque;

/// Buckets of times: two to each doubling. Those of the first are below 256 µs, those of the last above 6 s.
const BUCKETS: usize = 32;
/// Micros in a unit of time of the buckets.
const UNIT: u64 = 128;
/// How long a sample counts.
pub(super) const WINDOW_S: u64 = 10;

/// Attempts in one cell that ended. Whose fault a failure is, whoever counts it has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    failed: u32,
    answered: [u32; BUCKETS],
}

impl Samples {
    pub fn fail(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// An attempt that was answered after so long.
    pub fn answer(&mut self, micros: u64) {
        let bucket = &mut self.answered[place(micros)];
        *bucket = bucket.saturating_add(1);
    }

    pub fn add(&mut self, other: &Self) {
        self.failed = self.failed.saturating_add(other.failed);
        for (mine, others) in self.answered.iter_mut().zip(&other.answered) {
            *mine = mine.saturating_add(*others);
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn failed(&self) -> Part {
        let failed = u64::from(self.failed);
        Part { part: failed, of: failed + self.answered() }
    }

    pub(super) fn answered(&self) -> u64 {
        self.answered.iter().copied().map(u64::from).sum()
    }

    /// Answers that surely took as long or longer: those of the bucket that the time is in are left out.
    pub(super) fn slower_than(&self, micros: u64) -> Part {
        let slow = (0..BUCKETS).filter(|place| starts(*place) >= micros);
        Part { part: slow.map(|place| u64::from(self.answered[place])).sum(), of: self.answered() }
    }

    /// The time that half of the answers took at most, as if those of a bucket were spread evenly over it. None without answers.
    pub(super) fn median_micros(&self) -> Option<u64> {
        let mut left = self.answered().div_ceil(2);
        for (place, count) in self.answered.iter().enumerate() {
            let count = u64::from(*count);
            if left > 0 && left <= count {
                let (start, end) = (starts(place), starts(place + 1));
                return Some(start + (end - start) * left / count);
            }
            left -= count.min(left);
        }
        None
    }
}

/// So many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub part: u64,
    pub of: u64,
}

impl Part {
    pub(super) fn ratio(self) -> f64 {
        if self.of == 0 { 0.0 } else { self.part as f64 / self.of as f64 }
    }
}

fn place(micros: u64) -> usize {
    match micros / UNIT {
        0 | 1 => 0,
        units => {
            let doublings = units.ilog2() as usize;
            let upper_half = (units >> (doublings - 1)) & 1;
            (2 * doublings - 1 + upper_half as usize).min(BUCKETS - 1)
        }
    }
}

/// The least time of the bucket.
fn starts(place: usize) -> u64 {
    match place {
        0 => 0,
        _ => {
            let (doublings, upper_half) = (place.div_ceil(2), place.is_multiple_of(2));
            let least = UNIT << doublings;
            if upper_half { least + least / 2 } else { least }
        }
    }
}

/// The samples of the last [`WINDOW_S`] seconds, by the second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window(VecDeque<(u64, Samples)>);

impl Window {
    pub(super) fn add(&mut self, samples: &Samples, now_ms: u64) {
        let second = now_ms / 1_000;
        self.0.retain(|(of, _)| of + WINDOW_S > second);
        if samples.is_empty() {
            return;
        }
        match self.0.back_mut() {
            Some((of, sum)) if *of == second => sum.add(samples),
            _ => self.0.push_back((second, *samples)),
        }
    }

    pub(super) fn sum(&self, now_ms: u64) -> Samples {
        self.of_last(WINDOW_S, now_ms)
    }

    /// The samples of this second and of the one before.
    pub(super) fn latest(&self, now_ms: u64) -> Samples {
        self.of_last(2, now_ms)
    }

    fn of_last(&self, seconds: u64, now_ms: u64) -> Samples {
        let mut sum = Samples::default();
        let counts = |of: u64| of + seconds > now_ms / 1_000;
        self.0.iter().filter(|(of, _)| counts(*of)).for_each(|(_, samples)| sum.add(samples));
        sum
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_that_starts_before_it_and_ends_after_it() {
        for micros in (0..3_000).chain([4_095, 4_096, 60_000, 999_999, 6_291_455]) {
            let place = place(micros);
            assert!(starts(place) <= micros && micros < starts(place + 1), "{micros} in {place}");
        }
        assert_eq!((place(u64::MAX), starts(BUCKETS - 1)), (BUCKETS - 1, 8_388_608));
    }

    fn answers(times_ms: &[u64]) -> Samples {
        let mut samples = Samples::default();
        times_ms.iter().for_each(|millis| samples.answer(millis * 1_000));
        samples
    }

    #[test]
    fn a_median_is_near_what_it_is_of() {
        assert_eq!(Samples::default().median_micros(), None);
        for millis in [1, 7, 60, 200, 3_000] {
            let (median, micros) =
                (answers(&[millis; 9]).median_micros().expect("has answers"), millis * 1_000);
            assert!((micros * 2 / 3..=micros * 3 / 2).contains(&median), "{median} for {micros}");
        }
        let median = answers(&[1, 1, 1, 900, 900]).median_micros().expect("has answers");
        assert!(median < 2_000, "{median}");
    }

    #[test]
    fn only_what_is_surely_slower_counts_as_slower() {
        let samples = answers(&[10, 100, 190, 500]);
        assert_eq!(samples.slower_than(180_000), Part { part: 1, of: 4 });
        assert_eq!(samples.slower_than(0), Part { part: 4, of: 4 });
        assert_eq!(samples.slower_than(u64::MAX), Part { part: 0, of: 4 });
    }

    #[test]
    fn a_sample_counts_for_ten_seconds() {
        let mut window = Window::default();
        window.add(&answers(&[1]), 1_999);
        window.add(&answers(&[1]), 2_000);
        window.add(&answers(&[1]), 2_750);
        for (now, expected) in [(2_750, 3), (10_999, 3), (11_000, 2), (11_999, 2), (12_000, 0)] {
            assert_eq!(window.sum(now).answered(), expected, "at {now}");
        }
        window.add(&Samples::default(), 60_000);
        assert_eq!(window, Window::default());
    }
}
