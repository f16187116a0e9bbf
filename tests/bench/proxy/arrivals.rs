//! When requests of an open loop come: at random, as those of many people do, and for every proxy at the same moments.
//! Pure.

/// Where every schedule begins: the same one each time.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Moments in microseconds, with exponential gaps between them.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    random: u64,
    /// Microseconds between two of them on average.
    gap: f64,
    next: f64,
}

impl Arrivals {
    /// So many per second, from that moment on.
    pub(crate) fn new(per_second: u32, from: u64) -> Self {
        let mut arrivals = Self { random: SEED, gap: 1e6 / f64::from(per_second.max(1)), next: from as f64 };
        arrivals.step();
        arrivals
    }

    /// The next one, if its time has come.
    pub(crate) fn due(&mut self, now: u64) -> Option<u64> {
        let next = self.next as u64;
        (next <= now).then(|| {
            self.step();
            next
        })
    }

    fn step(&mut self) {
        // xorshift64: good enough to spread arrivals.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // In (0, 1], of the upper 53 bits, which a float holds whole.
        let unit = ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        self.next -= self.gap * unit.ln();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(second: u64, arrivals: &mut Arrivals) -> Vec<u64> {
        std::iter::from_fn(|| arrivals.due(second * 1_000_000)).collect()
    }

    #[test]
    fn as_many_come_as_were_asked_for_and_at_the_same_moments_each_time() {
        let first = within(10, &mut Arrivals::new(5_000, 0));
        assert!((49_000..51_000).contains(&first.len()), "{}", first.len());
        assert_eq!(first, within(10, &mut Arrivals::new(5_000, 0)));
        assert!(first.is_sorted() && first.last().is_some_and(|last| *last <= 10_000_000));
    }

    #[test]
    fn they_come_at_random() {
        let moments = within(10, &mut Arrivals::new(1_000, 0));
        let gaps: Vec<_> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // Of exponential gaps 63 % are shorter than their mean.
        let short = gaps.iter().filter(|gap| **gap < 1_000).count() as f64 / gaps.len() as f64;
        assert!((0.60..0.66).contains(&short), "{short}");
    }

    #[test]
    fn whoever_looks_late_gets_all_that_came_meanwhile() {
        let mut arrivals = Arrivals::new(1_000, 500);
        assert_eq!(arrivals.due(400), None);
        let moments = within(1, &mut arrivals);
        assert!(moments[0] >= 500 && moments.len() > 900);
    }
}
