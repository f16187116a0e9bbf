//! A histogram of durations in microseconds, exact below 128 and within 1 % above. Pure.

/// Buckets per power of two, as a power of two.
const BITS: u32 = 7;
const PER_POWER: usize = 1 << BITS;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Grows to the highest bucket that was hit.
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub fn record(&mut self, micros: u64) {
        let bucket = bucket(micros);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(micros);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that a fraction `q` of all values does not exceed (up to the buckets' width); 0 without values.
    pub fn quantile(&self, q: f64) -> u64 {
        // Counts are far below 2^52, so that nothing is lost.
        let wanted = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(bucket).min(self.max);
            }
        }
        0
    }

    /// What was recorded after `earlier`, which must be an older copy of this one. Its maximum is a bucket's bound.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |bucket: usize| earlier.buckets.get(bucket).copied().unwrap_or(0);
        let buckets: Vec<u64> = self
            .buckets
            .iter()
            .enumerate()
            .map(|(bucket, count)| count.saturating_sub(before(bucket)))
            .collect();
        let highest = buckets.iter().rposition(|count| *count > 0);
        Self {
            count: self.count.saturating_sub(earlier.count),
            max: highest.map_or(0, |bucket| upper(bucket).min(self.max)),
            buckets,
        }
    }
}

fn bucket(value: u64) -> usize {
    let power = u64::BITS - value.leading_zeros();
    let shift = power.saturating_sub(BITS + 1);
    // Below 2^8 the value itself; above, the top eight bits, of which the first is always set.
    (shift as usize) * PER_POWER + (value >> shift) as usize
}

/// The highest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let shift = (bucket / PER_POWER).saturating_sub(1);
    let top = (bucket - shift * PER_POWER) as u64;
    ((top + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value_without_gap_within_one_percent() {
        for value in (0..100_000).chain([1_000_000, 123_456_789, 1 << 40]) {
            let bound = upper(bucket(value));
            assert!(bound >= value && bound - value <= value / 128, "{value} {bound}");
            assert_eq!(bucket(bound), bucket(value));
            assert_eq!(bucket(bound + 1), bucket(value) + 1);
        }
    }

    #[test]
    fn quantiles_of_a_known_list() {
        let mut histogram = Histogram::default();
        for value in 1..=100 {
            histogram.record(value);
        }
        let check = |q, expected| assert_eq!(histogram.quantile(q), expected, "{q}");
        check(0.5, 50);
        check(0.99, 99);
        check(0.999, 100);
        assert_eq!(Histogram::default().quantile(0.99), 0);
    }

    #[test]
    fn a_window_holds_only_what_came_in_it() {
        let mut histogram = Histogram::default();
        histogram.record(1_000_000);
        let earlier = histogram.clone();
        histogram.record(50);
        let window = histogram.since(&earlier);
        assert_eq!((window.count(), window.max(), window.quantile(0.5)), (1, 50, 50));
    }
}
